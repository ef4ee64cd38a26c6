"""What is known of brokers before one is asked: how their addresses are written, what readers may see."""

from __future__ import annotations

from typing import Final

from millrace.client.errors import InvalidOption

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def parse_servers(text: str) -> list[tuple[str, int]]:
    """The servers of a list such as "a:9092,b:9092"; InvalidOption names the one that is wrong."""
    servers: list[tuple[str, int]] = []
    for server in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = server.removeprefix("PLAINTEXT://").rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidOption(f"bootstrap.servers: {server!r} is not host:port")
        servers.append((host.strip("[]"), int(port)))
    if not servers:
        raise InvalidOption("bootstrap.servers names no server: give host:port, several with commas")
    return servers
