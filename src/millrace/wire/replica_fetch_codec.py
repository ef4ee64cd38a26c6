"""Fetch as followers speak it: requests encoded and responses decoded by hand, records as views, not copies.

Always version 17: flexible, topics by id, the asking replica with its epoch. The leader's side of it is
fetch_codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import read_uvarint, skip_tags, uvarint

VERSION: Final = 17

_HEAD: Final = struct.Struct(">iiibii")
_PARTITION: Final = struct.Struct(">iiqiqib")
_REPLICA: Final = struct.Struct(">bbbiqb")
_INT32: Final = struct.Struct(">i")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_RESULT: Final = struct.Struct(">ihqqq")
_DIVERGING: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_ABORTED_SIZE: Final = 17


class Wanted(NamedTuple):
    """One partition as a follower asks for it."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    max_bytes: int


class ReplicaData(NamedTuple):
    """A leader's answer for one partition."""

    topic_id: TopicId
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview | None
    diverging: tuple[int, int] | None
    current_leader: tuple[int, int] | None


def encode_request(
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int,
    session_epoch: int,
    wanted: Iterable[Wanted],
    forgotten: Iterable[tuple[TopicId, int]],
) -> bytes:
    """The body of a Fetch request."""
    by_topic: dict[TopicId, list[bytes]] = {}
    pack = _PARTITION.pack
    for topic_id, partition, leader_epoch, offset, last_epoch, start, partition_max in wanted:
        by_topic.setdefault(topic_id, []).append(
            pack(partition, leader_epoch, offset, last_epoch, start, partition_max, 0)
        )
    parts = [
        _HEAD.pack(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch),
        uvarint(len(by_topic) + 1),
    ]
    for topic_id, partitions in by_topic.items():
        parts += [topic_id, uvarint(len(partitions) + 1), *partitions, b"\0"]
    gone: dict[TopicId, list[bytes]] = {}
    for topic_id, partition in forgotten:
        gone.setdefault(topic_id, []).append(_INT32.pack(partition))
    parts.append(uvarint(len(gone) + 1))
    for topic_id, partitions in gone.items():
        parts += [topic_id, uvarint(len(partitions) + 1), *partitions, b"\0"]
    # No rack; one tagged field, number 1 of 13 bytes: the replica, its epoch, no tags.
    parts.append(b"\1" + _REPLICA.pack(1, 1, 13, replica_id, replica_epoch, 0))
    return b"".join(parts)


class ReplicaResponse:
    """A decoded head; the partitions are decoded one by one, while the buffer holds them."""

    __slots__ = ("_buffer", "_end", "_position", "error_code", "session_id")

    def __init__(self, buffer: memoryview, position: int, end: int) -> None:
        try:
            _, self.error_code, self.session_id = _RESPONSE_HEAD.unpack_from(buffer, position)
        except struct.error:
            raise MalformedRequest("a Fetch response ends in its head") from None
        self._buffer = buffer
        self._position = position + _RESPONSE_HEAD.size
        self._end = end

    def partitions(self) -> Iterator[ReplicaData]:
        """Decode the partitions in turn. Use or copy their records before the buffer is filled again."""
        try:
            yield from self._decode()
        except (struct.error, IndexError):
            raise MalformedRequest("a Fetch response ends in the middle of a field") from None

    def _decode(self) -> Iterator[ReplicaData]:
        buffer, position, end = self._buffer, self._position, self._end
        topic_count, position = _count(buffer, position, end)
        for _ in range(topic_count):
            topic_id = TopicId(bytes(buffer[position : position + 16]))
            position += 16
            partition_count, position = _count(buffer, position, end)
            for _ in range(partition_count):
                data, position = _partition(buffer, position, end, topic_id)
                yield data
            position = skip_tags(buffer, position, end)
        position = skip_tags(buffer, position, end)
        if position != end:
            raise MalformedRequest(f"{end - position} bytes follow a Fetch response")


def _partition(buffer: memoryview, position: int, end: int, topic_id: TopicId) -> tuple[ReplicaData, int]:
    partition, error_code, high_watermark, _, log_start_offset = _RESULT.unpack_from(buffer, position)
    position += _RESULT.size
    aborted_count, position = read_uvarint(buffer, position, end)
    position += max(aborted_count - 1, 0) * _ABORTED_SIZE + 4
    size, position = read_uvarint(buffer, position, end)
    records = None
    if size > 1:
        stop = position + size - 1
        if stop > end:
            raise MalformedRequest(f"records of {size - 1} bytes in a response with {end - position} left")
        records = buffer[position:stop]
        position = stop
    diverging = current_leader = None
    if buffer[position] == 0:
        position += 1
    else:
        diverging, current_leader, position = _tags(buffer, position, end)
    return (
        ReplicaData(
            topic_id,
            partition,
            error_code,
            high_watermark,
            log_start_offset,
            records,
            diverging,
            current_leader,
        ),
        position,
    )


def _tags(
    buffer: memoryview, position: int, end: int
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    diverging = current_leader = None
    count, position = read_uvarint(buffer, position, end)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position, end)
        size, position = read_uvarint(buffer, position, end)
        if position + size > end:
            raise MalformedRequest("a tagged field is longer than the response")
        if tag == 0:
            epoch, end_offset = _DIVERGING.unpack_from(buffer, position)
            diverging = (epoch, end_offset)
        elif tag == 1:
            leader_id, leader_epoch = _LEADER.unpack_from(buffer, position)
            current_leader = (leader_id, leader_epoch)
        position += size
    return diverging, current_leader, position


def _count(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    count, position = read_uvarint(buffer, position, end)
    if not 0 < count <= end - position + 1:
        raise MalformedRequest(f"an array of {count - 1} elements in a response with {end - position} left")
    return count - 1, position
