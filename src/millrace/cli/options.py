"""Options that several commands share: which broker to talk to and how to print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """How to reach a broker, as given on the command line."""

    bootstrap: str
    command_config: Path | None
    timeout_s: float


def broker_options(command: _Command) -> _Command:
    """Add the options that a `BrokerAddress` is made of."""
    for option in reversed(_BROKER_OPTIONS):
        command = option(command)
    return command


def json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on each line.")(
        command
    )


def key_values(pairs: tuple[str, ...], *, option: str) -> dict[str, str]:
    """Split `key=value` words; a word without `=` is a usage error that names the option."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise click.BadParameter(f"{pair!r} is not of the form key=value", param_hint=f"'{option}'")
        result[key.strip()] = value
    return result


_BROKER_OPTIONS: Final = (
    click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        envvar="MILLRACE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Broker to connect to first.",
    ),
    click.option(
        "--command-config",
        envvar="MILLRACE_CLIENT_CONFIG",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Client properties of Java's clients or librdkafka (security.protocol, sasl.mechanism, ...).",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for an answer.",
    ),
)
