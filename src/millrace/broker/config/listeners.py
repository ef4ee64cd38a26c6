"""The addresses in `listeners` and `advertised.listeners`: their form, and what must hold between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millrace.metadata.config_definitions import split_list
from millrace.metadata.errors import InvalidConfig

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_ADDRESS: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]/:]*):(?P<port>\d{1,5})", re.ASCII
)
_FORM: Final = "NAME://host:port, an IPv6 address in brackets"


class Listener(NamedTuple):
    """An address that the broker listens on."""

    name: str
    host: str
    """Empty for all interfaces."""
    port: int
    """0 for any free port."""
    security_protocol: str


def parse_listeners(addresses: Sequence[str], protocol_map: str) -> tuple[Listener, ...]:
    protocols = _parse_protocol_map(protocol_map)
    listeners = []
    for address in addresses:
        name, host, port = _parse("listeners", address)
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidConfig(
                "listeners",
                address,
                f"the name {name} is missing in listener.security.protocol.map",
                allowed=", ".join(protocols),
            )
        listeners.append(Listener(name, host, port, protocol))
    return tuple(listeners)


def parse_advertised(addresses: Sequence[str]) -> dict[str, tuple[str, int]]:
    advertised = {}
    for address in addresses:
        name, host, port = _parse("advertised.listeners", address)
        if host in ("", "0.0.0.0", "::") or port == 0:
            raise InvalidConfig("advertised.listeners", address, "not an address that a client can dial")
        if name in advertised:
            raise InvalidConfig("advertised.listeners", address, f"{name} is there twice")
        advertised[name] = (host, port)
    return advertised


def check_listeners(
    listeners: Sequence[Listener], advertised: Mapping[str, tuple[str, int]], *, between_brokers: str | None
) -> None:
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) != len(names):
        raise InvalidConfig("listeners", ",".join(names), "names must be there and differ from each other")
    bound = [(listener.host, listener.port) for listener in listeners if listener.port != 0]
    if len(set(bound)) != len(bound):
        raise InvalidConfig("listeners", ",".join(names), "two listeners share an address and port")
    for name in advertised:
        if name not in names:
            raise InvalidConfig(
                "advertised.listeners", name, "no listener has this name", allowed=", ".join(names)
            )
    if between_brokers is not None and between_brokers.upper() not in names:
        raise InvalidConfig(
            "inter.broker.listener.name",
            between_brokers,
            "no listener has this name",
            allowed=", ".join(names),
        )


def _parse(setting: str, address: str) -> tuple[str, str, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise InvalidConfig(setting, address, "not an address", allowed=_FORM)
    return match["name"].upper(), match["host"].removeprefix("[").removesuffix("]"), int(match["port"])


def _parse_protocol_map(text: str) -> dict[str, str]:
    protocols = {}
    for pair in split_list(text):
        name, colon, protocol = pair.partition(":")
        if not colon or protocol.upper() not in SECURITY_PROTOCOLS:
            raise InvalidConfig(
                "listener.security.protocol.map",
                pair,
                "not a pair of a listener's name and a protocol",
                allowed="NAME:PROTOCOL with " + ", ".join(SECURITY_PROTOCOLS),
            )
        protocols[name.upper()] = protocol.upper()
    return protocols
