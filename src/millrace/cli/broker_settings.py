"""Makes a broker's configuration of the options of `millrace serve`, which `millrace doctor` takes too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from millrace.cli.options import key_values
from millrace.cli.output import log_line

if TYPE_CHECKING:
    from millrace.broker.config.config import BrokerConfig

LISTENER_NAME: Final = "PLAINTEXT"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def broker_setting_options(command: _Command) -> _Command:
    """Add the options that `load_config` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def load_config(
    *, data_dirs: tuple[Path, ...], listen: str | None, config_file: Path | None, settings: tuple[str, ...]
) -> BrokerConfig:
    """The configuration that these options, the file and the environment give together."""
    from millrace.broker.config.config import load
    from millrace.metadata.config_definitions import broker_setting

    given = overrides(data_dirs, listen, settings)
    secrets = [name for name in given if (known := broker_setting(name)) is not None and known.sensitive]
    if secrets:
        log_line(
            f"{', '.join(secrets)}: a secret among the arguments of a process can be read by everybody on "
            "this machine. Put it into the file of --config, or into the environment"
        )
    return load(config_file, given, os.environ)


def overrides(data_dirs: tuple[Path, ...], listen: str | None, settings: tuple[str, ...]) -> dict[str, str]:
    """All options as settings; the short forms and --set must not contradict each other."""
    result = key_values(settings, option="--set")
    short_forms = (
        ("--data-dir", "log.dirs", ",".join(map(str, data_dirs)) or None),
        (
            "--listen",
            "listeners",
            None if listen is None else f"{LISTENER_NAME}://{_checked_address(listen)}",
        ),
    )
    for option, name, value in short_forms:
        if value is None:
            continue
        if name in result:
            raise click.UsageError(f"{option} and --set {name}=... say the same thing: give one of them")
        result[name] = value
    return result


def _checked_address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if (
        not separator
        or not port.isdecimal()
        or int(port) > 65535
        or (":" in host and not host.startswith("["))
    ):
        raise click.BadParameter(f"{text!r} is not of the form HOST:PORT", param_hint="'--listen'")
    return text


_OPTIONS: Final = (
    click.option(
        "-d",
        "--data-dir",
        "data_dirs",
        multiple=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where messages are kept, and metadata in the first one (log.dirs). Repeatable.",
    ),
    click.option(
        "-l",
        "--listen",
        metavar="HOST:PORT",
        help="Where to listen for clients (listeners). An empty host means all interfaces.",
    ),
    click.option(
        "-c",
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A TOML or .properties file of settings.",
    ),
    click.option(
        "-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting. Repeatable."
    ),
)
