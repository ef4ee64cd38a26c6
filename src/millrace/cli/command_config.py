"""The file of `--command-config`: how commands reach secured brokers, and which of them first."""

from __future__ import annotations

import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.cli.options import DEFAULT_BOOTSTRAP, BrokerAddress
from millrace.cli.output import log_line
from millrace.client.errors import InvalidOption
from millrace.client.properties import NO_PROPERTIES, ClientProperties, translated
from millrace.core.properties import parse_properties

if TYPE_CHECKING:
    from millrace.client.security import SecurityOptions

_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH


def properties_of(address: BrokerAddress) -> ClientProperties:
    """What the file says, by librdkafka's names; raises InvalidOption, which names the file."""
    return NO_PROPERTIES if address.command_config is None else read_properties(address.command_config)


@cache
def read_properties(path: Path) -> ClientProperties:
    """A file's properties. One command reads a file once, and complains about it once."""
    try:
        properties = translated(parse_properties(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{path}: is no text in UTF-8") from error
    except InvalidOption as error:
        raise InvalidOption(f"{path}: {error}") from error
    if properties.has_secrets and path.stat().st_mode & _OTHERS:
        log_line(f"Warning: {path} holds a secret that others may read: chmod 600 {path}")
    return properties


def security_of(address: BrokerAddress) -> SecurityOptions:
    """For connections of our own; raises InvalidOption, which names the file."""
    properties = properties_of(address)
    try:
        return properties.security()
    except InvalidOption as error:
        raise InvalidOption(f"{address.command_config}: {error}") from error


def servers_of(address: BrokerAddress) -> str:
    """The brokers to try first: those of the option, or else of the file."""
    in_file = properties_of(address).values.get("bootstrap.servers")
    return in_file if in_file is not None and address.bootstrap == DEFAULT_BOOTSTRAP else address.bootstrap
