"""A client's connection to one broker: requests as messages, answers by correlation id, in order."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Final

from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.framing import LENGTH, REQUEST_HEAD
from millrace.wire.schema_fields import Message

REQUEST_TIMEOUT_S: Final = 10.0
_CORRELATION: Final = struct.Struct(">i")


class Unanswered(MillraceError):
    """The connection broke or the time ran out: the request may or may not have been carried out."""


class ClientConnection(asyncio.Protocol):
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._next_id = 0
        self.is_broken = False
        self.versions: dict[int, int] = {}
        """The newest that the broker serves of each API, if it was asked."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        position = 0
        while len(received) - position >= 4:
            (size,) = LENGTH.unpack_from(received, position)
            if len(received) - position - 4 < size:
                break
            self._take(bytes(received[position + 4 : position + 4 + size]))
            position += 4 + size
        del received[:position]

    def _take(self, frame: bytes) -> None:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        api_key, version, future = self._waiting.pop(correlation_id)
        # A flexible header ends in a block of tagged fields, which is empty.
        start = 5 if schema.response_header_version(api_key, version) else 4
        if not future.done():
            future.set_result(schema.response_decoder(api_key, version)(frame, start))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_broken = True
        waiting, self._waiting = self._waiting, {}
        for _, _, future in waiting.values():
            if not future.done():
                future.set_exception(Unanswered(f"the connection was lost: {exc}"))

    def send(self, api_key: int, version: int, request: Message) -> asyncio.Future[Any]:
        """Send a request, in an older version if the broker knows no newer one; the answer, when it comes."""
        if self.is_broken or self._transport is None:
            raise Unanswered("the connection is closed")
        version = min(version, self.versions.get(api_key, version))
        self._next_id += 1
        body = schema.request_encoder(api_key, version)(request)
        tags = b"\0" if schema.request_header_version(api_key, version) == 2 else b""
        head = REQUEST_HEAD.pack(api_key, version, self._next_id, len(self._client_id))
        frame = head + self._client_id + tags + body
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = (api_key, version, future)
        self._transport.write(LENGTH.pack(len(frame)) + frame)
        return future

    def close(self) -> None:
        self.is_broken = True
        if self._transport is not None:
            self._transport.abort()


async def answer_of(future: asyncio.Future[Any], timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    """The answer, or Unanswered when the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            return await future
    except TimeoutError:
        raise Unanswered(f"no answer in {timeout_s:g} s") from None
