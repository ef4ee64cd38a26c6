"""Fetch for one partition, encoded and decoded by hand: the records stay where the socket put them."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.core.ids import TopicId
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import read_uvarint, skip_tags

VERSIONS: Final = (13, 17)
"""From 13 on a topic is named by its id, so a topic made anew under an old name is never read by mistake."""

_HEAD: Final = struct.Struct(">iiibii")
_HEAD_V13: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqiqi")
_TOP: Final = struct.Struct(">ihi")
_RESULT: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_NO_SESSION: Final = (0, -1)


class RawFetch(NamedTuple):
    """What a leader answered for one partition; its records lie where they arrived."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of aborted transactions that touch these records."""
    records: memoryview
    """Whole batches, and perhaps the beginning of one more."""


def encode_request(
    topic_id: TopicId,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    isolation: int,
    max_wait_ms: int,
    version: int = VERSIONS[1],
) -> bytes:
    """The body of a Fetch request for one partition, outside of any session."""
    if version >= 15:
        head = _HEAD.pack(max_wait_ms, 1, max_bytes, isolation, *_NO_SESSION)
    else:
        head = _HEAD_V13.pack(-1, max_wait_ms, 1, max_bytes, isolation, *_NO_SESSION)
    fields = _PARTITION.pack(partition, -1, offset, -1, -1, max_bytes)
    # One topic with one partition; each struct ends in no tags; nothing forgotten, no rack, no tags.
    return b"".join((head, b"\2", topic_id, b"\2", fields, b"\0\0\1\1\0"))


def decode_response(body: memoryview, subject: str) -> RawFetch:
    """The one partition of an answer; BrokerRefused for its error, with `subject` in the message."""
    try:
        return _decode(body, subject)
    except (struct.error, IndexError, MalformedRequest) as error:
        raise ConnectionFailed(f"{subject}: the broker's answer to Fetch is malformed: {error}") from error


def _decode(body: memoryview, subject: str) -> RawFetch:
    end = len(body)
    _, error_code, _ = _TOP.unpack_from(body)
    if error_code:
        raise BrokerRefused(error_code, subject)
    topics, position = read_uvarint(body, _TOP.size, end)
    if topics != 2:
        raise ConnectionFailed(f"{subject}: the broker answered for {topics - 1} topics instead of one")
    _, position = read_uvarint(body, position + 16, end)
    _, error_code, high_watermark, stable, log_start = _RESULT.unpack_from(body, position)
    position += _RESULT.size
    if error_code:
        raise BrokerRefused(error_code, subject)
    aborted_count, position = read_uvarint(body, position, end)
    aborted: list[tuple[int, int]] = []
    for _ in range(aborted_count - 1):
        aborted.append(_ABORTED.unpack_from(body, position))
        position = skip_tags(body, position + _ABORTED.size, end)
    size, position = read_uvarint(body, position + 4, end)
    size = max(0, size - 1)
    if position + size > end:
        raise ConnectionFailed(f"{subject}: {size} bytes of records in an answer with {end - position}")
    return RawFetch(high_watermark, stable, log_start, aborted, body[position : position + size])
