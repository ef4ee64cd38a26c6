"""The requests and answers of one connection as bytes: knows no socket and no loop, and waits for nothing.

A request becomes a frame with a number. The answer with that number goes to whoever waits for it, in whatever
order answers come. Both transports are built upon this: `async_connection.py` and `blocking_connection.py`.
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Final, Generic, TypeVar

from millrace.client.errors import InvalidAnswer
from millrace.wire import schema
from millrace.wire.framing import LENGTH

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 64 * 1024
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
"""More than fetches ask for by far, though one batch may be larger than the limits of its request; and less
than what the first letters of HTTP would mean."""
FRAME_BYTES_MIN: Final = 4
"""The number of the request that is answered."""

_HEAD: Final = struct.Struct(">ihhih")
"""Length of the frame, api key, version, correlation id, length of the client id."""
_HEAD_SIZE: Final = _HEAD.size - 4
_ID_MASK: Final = 0x7FFF_FFFF

T = TypeVar("T")
Answered = Callable[[memoryview | None], None]
"""Called with the answer's body, to be read or copied before it returns; None if there will be none."""


@cache
def header_shape(api_key: int, version: int) -> tuple[bytes, int]:
    """What ends the request's header behind the client id, and where the answer's body begins in its frame.

    Flexible headers end in a block of tagged fields. Neither side has any there: one zero byte."""
    return (
        b"\0" if schema.request_header_version(api_key, version) >= 2 else b"",
        5 if schema.response_header_version(api_key, version) >= 1 else 4,
    )


def bad_size(address: str, size: int) -> InvalidAnswer:
    """Of a length that no answer has."""
    return InvalidAnswer(
        address,
        f"answers, but not with the Kafka protocol: a frame of {size} bytes, "
        f"where {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} are possible",
    )


class Exchange(Generic[T]):
    """Numbers and frames the requests of one connection, and keeps what waits for each answer."""

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        """The other end, as host:port."""
        self._client_id = client_id.encode()
        self._last_id = 0
        self._waiting: dict[int, tuple[int, T]] = {}
        """By the number of the request: where the body of its answer begins, and what waits for it."""

    def frame(self, api_key: int, version: int, body: bytes, waiting: T) -> bytes:
        """A request whose body is encoded already, as a whole frame."""
        self._last_id = correlation_id = (self._last_id + 1) & _ID_MASK
        tags, start = header_shape(api_key, version)
        self._waiting[correlation_id] = (start, waiting)
        client_id = self._client_id
        name_size = len(client_id)
        size = _HEAD_SIZE + name_size + len(tags) + len(body)
        return _HEAD.pack(size, api_key, version, correlation_id, name_size) + client_id + tags + body


class AnswerStream(Exchange[Answered], ABC):
    """Splits what arrives into answers and hands each out, in the buffer where it arrived.

    Its methods for bytes have the names that asyncio calls them by. Memory is taken for what has arrived, not
    for the length that a frame claims.
    """

    def __init__(self, address: str, client_id: str) -> None:
        super().__init__(address, client_id)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0

    @abstractmethod
    def give_up(self, failure: InvalidAnswer) -> None:
        """End the connection: what comes over it is of no use."""

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have been put there."""
        self._filled += nbytes
        buffer, filled = self._buffer, self._filled
        position = 0
        try:
            while filled - position >= 4:
                (size,) = LENGTH.unpack_from(buffer, position)
                if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
                    raise bad_size(self.address, size)
                end = position + 4 + size
                if end > filled:
                    break
                self._take(buffer[position + 4 : end])
                position = end
        except InvalidAnswer as failure:
            self.give_up(failure)
            return
        self._keep(position)

    def end(self) -> None:
        """No more answers will come: all who wait are told."""
        waiting, self._waiting = self._waiting, {}
        for _, answered in waiting.values():
            answered(None)

    def _take(self, frame: memoryview) -> None:
        (correlation_id,) = LENGTH.unpack_from(frame)
        entry = self._waiting.pop(correlation_id, None)
        if entry is None:
            raise InvalidAnswer(self.address, f"answered request {correlation_id}, which nobody waits for")
        start, answered = entry
        try:
            answered(frame[start:])
        except InvalidAnswer:
            raise
        except Exception as error:
            log.exception("an answer of %s could not be used", self.address)
            raise InvalidAnswer(self.address, f"sent an answer that could not be used: {error!r}") from error

    def _keep(self, position: int) -> None:
        """Move the beginning of an unfinished frame to the front, into a larger buffer if it needs one."""
        buffer = self._buffer
        rest = self._filled - position
        needed = 0
        if rest >= 4:
            needed = min(4 + LENGTH.unpack_from(buffer, position)[0], max(2 * rest, BUFFER_BYTES))
        if needed > len(buffer):
            self._buffer = memoryview(bytearray(needed))
        if rest and (position or self._buffer is not buffer):
            self._buffer[:rest] = bytes(buffer[position : self._filled])
        self._filled = rest
