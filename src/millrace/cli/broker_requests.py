"""Requests that librdkafka has no call for, sent over a connection of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.cli.clients import NEEDS_SECURITY, RequestFailed, split_host_port
from millrace.cli.command_config import security_of, servers_of
from millrace.cli.options import BrokerAddress
from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import ConnectionClosed, NotReached
from millrace.client.opening import log_in
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.wire.error_codes import ErrorCode

_CLIENT_ID: Final = "millrace-cli"


class Connection(BlockingConnection):
    """To one broker, under the name of the command line; a request is answered before the next is sent."""

    def __init__(self, host: str, port: int, timeout_s: float, security: SecurityOptions = PLAINTEXT) -> None:
        super().__init__(host, port, client_id=_CLIENT_ID, timeout_s=timeout_s, tls=security.tls_context())
        if security.uses_sasl:
            try:
                self.answers_to(log_in(self.address, security))
            except BaseException:
                self.close()
                raise


def connect(host: str, port: int, where: BrokerAddress) -> Connection:
    """A connection to this broker, in the way that the options say."""
    return Connection(host, port, where.timeout_s, security_of(where))


@contextmanager
def connected(address: BrokerAddress) -> Iterator[Connection]:
    """A connection to the first broker named that can be reached."""
    connection = _first_reached(address)
    try:
        yield connection
    except ConnectionClosed as error:
        if address.command_config is None:
            raise RequestFailed(f"{error}; {NEEDS_SECURITY}") from error
        raise
    finally:
        connection.close()


def _first_reached(address: BrokerAddress) -> Connection:
    servers = [split_host_port(server.strip()) for server in servers_of(address).split(",")]
    for place, (host, port) in enumerate(servers):
        try:
            return connect(host, port, address)
        except NotReached:
            if place == len(servers) - 1:
                raise
    raise AssertionError(servers)


def raise_for(code: int, subject: str, message: str | None = None) -> None:
    """A broker's refusal as one line: in its own words, if it has said any."""
    if code:
        error = ErrorCode(code)
        raise RequestFailed(f"{subject}: {message or error.message} ({error.name})")
