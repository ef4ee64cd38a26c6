"""Requests that librdkafka has no call for, sent over a plain connection of our own."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from millrace.cli.clients import RequestFailed, split_host_port
from millrace.cli.options import BrokerAddress
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode

_HEAD: Final = struct.Struct(">hhih")
_INT32: Final = struct.Struct(">i")
_CLIENT_ID: Final = b"millrace-cli"


class Connection:
    """One connection; a request is answered before the next is sent."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._address = f"{host}:{port}"
        self._correlation_ids = itertools.count(1)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise RequestFailed(f"no broker answers at {self._address}: {error.strerror or error}") from error

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, version: int, request: object) -> Any:
        correlation_id = next(self._correlation_ids)
        head = _HEAD.pack(key, version, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
        if schema.request_header_version(key, version) >= 2:
            head += b"\0"
        frame = head + schema.request_encoder(key, version)(request)
        try:
            self._socket.sendall(_INT32.pack(len(frame)) + frame)
            (size,) = _INT32.unpack(self._read(4))
            answer = self._read(size)
        except OSError as error:
            raise RequestFailed(f"{self._address}: {error.strerror or error}") from error
        start = 5 if schema.response_header_version(key, version) >= 1 else 4
        return schema.response_decoder(key, version)(answer[start:])

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = self._socket.recv(min(size, 1 << 16))
            if not part:
                raise RequestFailed(f"{self._address} closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


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
