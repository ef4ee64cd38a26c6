"""For how long a client has to be silent, entered into an answer that is already encoded.

Nearly every response has the field `throttle_time_ms`, and nearly always it comes first. So whoever makes an
answer leaves it 0, and the rare answer that has to tell more is changed on its way out, whoever made it and
whether or not its bytes were kept from an earlier one. Versions without the field tell nothing: such clients
learn of it because nothing is read from them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeVar

from millrace.wire import schema

THROTTLE_TIME_MS_MAX: Final = 2**31 - 1
_FIELD: Final = "throttle_time_ms"
_INT32: Final = struct.Struct(">i")

Chunk = TypeVar("Chunk")


class Place(enum.Enum):
    """Where a version of a response has the field."""

    ABSENT = enum.auto()
    FIRST = enum.auto()
    ELSEWHERE = enum.auto()


@cache
def place_of(api_key: int, version: int) -> Place:
    fields = [field for field in schema.message_class(api_key, "Response").FIELDS if field.is_in(version)]
    names = [field.name for field in fields if field.tag is None]
    if _FIELD not in names:
        return Place.ABSENT
    return Place.FIRST if names[0] == _FIELD else Place.ELSEWHERE


def told(api_key: int, version: int, frame: bytes, throttle_ms: int) -> bytes:
    """The whole frame of a response, with this time in it."""
    place = place_of(api_key, version)
    if place is Place.ABSENT:
        return frame
    at = 9 if schema.response_header_version(api_key, version) >= 1 else 8
    throttle_ms = min(throttle_ms, THROTTLE_TIME_MS_MAX)
    if place is Place.FIRST:
        return frame[:at] + _INT32.pack(throttle_ms) + frame[at + 4 :]
    response: Any = schema.response_decoder(api_key, version)(frame, at)
    response.throttle_time_ms = throttle_ms
    # The field has the same size whatever is in it, and so has the frame.
    return frame[:at] + schema.response_encoder(api_key, version)(response)


def told_in_chunks(
    api_key: int, version: int, chunks: Sequence[bytes | Chunk], throttle_ms: int
) -> list[bytes | Chunk]:
    """The same for a frame in pieces, the first of which has its header and the field."""
    first = chunks[0]
    assert isinstance(first, bytes), chunks
    assert place_of(api_key, version) is Place.FIRST, (api_key, version)
    return [told(api_key, version, first, throttle_ms), *chunks[1:]]
