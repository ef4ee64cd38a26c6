"""Requests that librdkafka has no call for, sent over a plain connection of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.cli.clients import RequestFailed, split_host_port
from millrace.cli.options import BrokerAddress
from millrace.client.blocking_connection import BlockingConnection
from millrace.wire.error_codes import ErrorCode

_CLIENT_ID: Final = "millrace-cli"


class Connection(BlockingConnection):
    """To one broker, under the name of the command line; a request is answered before the next is sent."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__(host, port, client_id=_CLIENT_ID, timeout_s=timeout_s)


@contextmanager
def connected(address: BrokerAddress) -> Iterator[Connection]:
    """A connection to the first broker named."""
    if address.command_config is not None:
        raise RequestFailed("this command speaks to plaintext listeners only: leave out --command-config")
    host, port = split_host_port(address.bootstrap.split(",")[0].strip())
    connection = Connection(host, port, address.timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def raise_for(code: int, subject: str) -> None:
    """A broker's refusal as one line."""
    if code:
        error = ErrorCode(code)
        raise RequestFailed(f"{subject}: {error.message} ({error.name})")
