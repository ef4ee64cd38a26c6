"""ShareFetch and ShareAcknowledge (versions 1 and 2), decoded and encoded by hand: records are slices of
files, and the types of acknowledgements stay the bytes that they are, however many there are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.core.limits import REQUEST_PARTITIONS_MAX
from millrace.wire.errors import MalformedRequest
from millrace.wire.fetch_codec import Slice
from millrace.wire.framing import (
    FLEXIBLE_RESPONSE_HEAD,
    LENGTH,
    NodeEndpoint,
    read_uvarint,
    skip_tags,
    uvarint,
)

VERSIONS: Final = (1, 2)
RENEWS_FROM: Final = 2
"""With it come the acquire mode, renewals, and the lock's duration in answers to ShareAcknowledge."""

ACK_BATCHES_MAX: Final = 100_000
"""In one request: ten times what may be acquired of a partition, each offset in a batch of its own."""

_FETCH_HEAD: Final = struct.Struct(">iiiiii")
_FETCH_HEAD_V2: Final = struct.Struct(">iiiiiib?")
_ACK_HEAD_V2: Final = struct.Struct(">i?")
_INT32: Final = struct.Struct(">i")
_RANGE: Final = struct.Struct(">qq")
_ACQUIRED: Final = struct.Struct(">qqhb")
_FETCH_RESPONSE: Final = struct.Struct(">ih")
_EMPTY_FETCH: Final = struct.Struct(">iibihbibbb")
_PARTITION: Final = struct.Struct(">ih")
_INT16: Final = struct.Struct(">h")
_LEADER: Final = struct.Struct(">iib")
_NO_LEADER: Final = _LEADER.pack(0, 0, 0)
_SMALL_UVARINT_END: Final = 0x80


class AckBatch(NamedTuple):
    """What a client says of a range of offsets: one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: bytes


class PartitionAsked(NamedTuple):
    """One partition that a request names, and what it acknowledges there."""

    topic_id: TopicId
    partition: int
    acks: Sequence[AckBatch]


class ShareFetchRequest(NamedTuple):
    """A request of either version. Fields that the version lacks have the defaults of the protocol."""

    group_id: str | None
    member_id: str | None
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    acquire_mode: int
    is_renewal: bool
    partitions: list[PartitionAsked]
    forgotten: list[tuple[TopicId, int]]


class ShareAcknowledgeRequest(NamedTuple):
    """A request of either version."""

    group_id: str | None
    member_id: str | None
    session_epoch: int
    is_renewal: bool
    partitions: list[PartitionAsked]


class PartitionResult(NamedTuple):
    """What an answer to either request says of one partition; only a ShareFetch has more than an error."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    ack_error_code: int = 0
    ack_error_message: str | None = None
    leader: tuple[int, int] | None = None
    """Leader and leader epoch, for a client that asked the wrong broker."""
    records: Sequence[bytes | Slice] = ()
    """Whole batches, in the order of their offsets: files' slices, or what was read already."""
    acquired: Sequence[tuple[int, int, int]] = ()
    """First and last offset, and how often these records were delivered."""


Results = Sequence[tuple[TopicId, Sequence[PartitionResult]]]


# Requests.


def decode_fetch(buffer: memoryview, position: int, end: int, version: int) -> ShareFetchRequest:
    """The request; nothing in it refers to the buffer. Raises MalformedRequest."""
    try:
        group_id, position = _text(buffer, position, end)
        member_id, position = _text(buffer, position, end)
        mode, is_renewal = 0, False
        if version >= RENEWS_FROM:
            head = _FETCH_HEAD_V2.unpack_from(buffer, position)
            epoch, max_wait, min_bytes, max_bytes, max_records, batch_size, mode, is_renewal = head
            position += _FETCH_HEAD_V2.size
        else:
            head = _FETCH_HEAD.unpack_from(buffer, position)
            epoch, max_wait, min_bytes, max_bytes, max_records, batch_size = head
            position += _FETCH_HEAD.size
        partitions, position, left = _topics(buffer, position, end)
        forgotten: list[tuple[TopicId, int]] = []
        if buffer[position] == 1:
            position += 1
        else:
            forgotten, position = _forgotten(buffer, position, end, left)
        _end(buffer, position, end, "ShareFetch")
        return ShareFetchRequest(
            group_id,
            member_id,
            epoch,
            max_wait,
            min_bytes,
            max_bytes,
            max_records,
            batch_size,
            mode,
            is_renewal,
            partitions,
            forgotten,
        )
    except (struct.error, IndexError):
        raise MalformedRequest("the ShareFetch request ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a name in the ShareFetch request is not UTF-8: {error}") from None


def decode_acknowledge(buffer: memoryview, position: int, end: int, version: int) -> ShareAcknowledgeRequest:
    """The request; nothing in it refers to the buffer. Raises MalformedRequest."""
    try:
        group_id, position = _text(buffer, position, end)
        member_id, position = _text(buffer, position, end)
        is_renewal = False
        if version >= RENEWS_FROM:
            epoch, is_renewal = _ACK_HEAD_V2.unpack_from(buffer, position)
            position += _ACK_HEAD_V2.size
        else:
            (epoch,) = _INT32.unpack_from(buffer, position)
            position += 4
        partitions, position, _ = _topics(buffer, position, end)
        _end(buffer, position, end, "ShareAcknowledge")
        return ShareAcknowledgeRequest(group_id, member_id, epoch, is_renewal, partitions)
    except (struct.error, IndexError):
        raise MalformedRequest("the ShareAcknowledge request ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a name in the ShareAcknowledge request is not UTF-8: {error}") from None


def _end(buffer: memoryview, position: int, end: int, name: str) -> None:
    position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
    if position != end:
        raise MalformedRequest(f"{end - position} bytes follow the {name} request")


def _topics(buffer: memoryview, position: int, end: int) -> tuple[list[PartitionAsked], int, int]:
    """The partitions, the position behind them, and how many more elements the request may have."""
    topics_count, position = _count(buffer, position, end)
    left = REQUEST_PARTITIONS_MAX - topics_count
    acks_left = ACK_BATCHES_MAX
    asked: list[PartitionAsked] = []
    for _ in range(topics_count):
        topic_id, position = _topic_id(buffer, position, end)
        count, position = _count(buffer, position, end)
        left -= count
        if left < 0:
            raise _too_many_partitions()
        for _ in range(count):
            (index,) = _INT32.unpack_from(buffer, position)
            position += 4
            acks: Sequence[AckBatch] = ()
            if buffer[position] == 1:
                position += 1
            else:
                acks, position = _acks(buffer, position, end, acks_left)
                acks_left -= len(acks)
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
            asked.append(PartitionAsked(topic_id, index, acks))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
    return asked, position, left


def _acks(buffer: memoryview, position: int, end: int, left: int) -> tuple[list[AckBatch], int]:
    count, position = _count(buffer, position, end)
    if count > left:
        raise MalformedRequest(f"more than {ACK_BATCHES_MAX} acknowledgement batches in one request")
    acks = []
    for _ in range(count):
        first_offset, last_offset = _RANGE.unpack_from(buffer, position)
        types_count, position = _count(buffer, position + 16, end)
        types = bytes(buffer[position : position + types_count])
        position += types_count
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
        acks.append(AckBatch(first_offset, last_offset, types))
    return acks, position


def _forgotten(
    buffer: memoryview, position: int, end: int, left: int
) -> tuple[list[tuple[TopicId, int]], int]:
    topics_count, position = _count(buffer, position, end)
    left -= topics_count
    forgotten: list[tuple[TopicId, int]] = []
    for _ in range(topics_count):
        topic_id, position = _topic_id(buffer, position, end)
        count, position = _count(buffer, position, end)
        left -= count
        if left < 0:
            raise _too_many_partitions()
        forgotten += [(topic_id, index) for index in struct.unpack_from(f">{count}i", buffer, position)]
        position = skip_tags(buffer, position + 4 * count, end)
    return forgotten, position


def _topic_id(buffer: memoryview, position: int, end: int) -> tuple[TopicId, int]:
    stop = position + 16
    if stop > end:
        raise MalformedRequest("the request ends in the middle of a topic id")
    return TopicId(bytes(buffer[position:stop])), stop


def _count(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    if (count := buffer[position]) < _SMALL_UVARINT_END:
        position += 1
    else:
        count, position = read_uvarint(buffer, position, end)
    count -= 1
    if count < 0 or count > end - position:
        raise MalformedRequest(f"an array of {count} elements in a request with {end - position} bytes left")
    return count, position


def _text(buffer: memoryview, position: int, end: int) -> tuple[str | None, int]:
    length, position = read_uvarint(buffer, position, end)
    if length == 0:
        return None, position
    stop = position + length - 1
    if stop > end:
        raise MalformedRequest(f"a string of {length - 1} bytes in a request with {end - position} left")
    return str(buffer[position:stop], "utf-8"), stop


def _too_many_partitions() -> MalformedRequest:
    return MalformedRequest(f"more than {REQUEST_PARTITIONS_MAX} topics and partitions in one request")


# Responses.


def fetch_frame(
    correlation_id: int,
    results: Results,
    *,
    lock_ms: int,
    error_code: int = 0,
    error_message: str | None = None,
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[bytes | Slice]:
    """The whole frame of an answer to a ShareFetch in pieces, in the order in which they leave. The first one
    is bytes."""
    parts = [
        _FETCH_RESPONSE.pack(0, error_code),
        _nullable(error_message),
        _INT32.pack(lock_ms),
        uvarint(len(results) + 1),
    ]
    chunks: list[bytes | Slice] = []
    size = 0
    for topic_id, partitions in results:
        parts += (topic_id, uvarint(len(partitions) + 1))
        for data in partitions:
            parts.append(_PARTITION.pack(data.partition, data.error_code))
            parts.append(_nullable(data.error_message))
            parts.append(_INT16.pack(data.ack_error_code))
            parts.append(_nullable(data.ack_error_message))
            parts.append(_NO_LEADER if data.leader is None else _LEADER.pack(*data.leader, 0))
            records = data.records
            if records:
                records_size = sum(
                    [len(each) if isinstance(each, bytes) else each.size_bytes for each in records]
                )
                parts.append(uvarint(records_size + 1))
                chunk = b"".join(parts)
                chunks.append(chunk)
                chunks += records
                size += len(chunk) + records_size
                parts.clear()
            else:
                parts.append(b"\1")
            acquired = data.acquired
            parts.append(uvarint(len(acquired) + 1))
            for first_offset, last_offset, delivery_count in acquired:
                parts.append(_ACQUIRED.pack(first_offset, last_offset, delivery_count, 0))
            parts.append(b"\0")
        parts.append(b"\0")
    parts += (_endpoints(endpoints), b"\0")
    chunk = b"".join(parts)
    chunks.append(chunk)
    size += len(chunk)
    first = chunks[0]
    assert isinstance(first, bytes), first
    chunks[0] = FLEXIBLE_RESPONSE_HEAD.pack(size + 5, correlation_id, 0) + first
    return chunks


def empty_fetch_frame(correlation_id: int, lock_ms: int) -> bytes:
    """The whole frame of an answer to a ShareFetch that has nothing to tell. Members that have nothing to do
    get little else."""
    return _EMPTY_FETCH.pack(_EMPTY_FETCH.size - 4, correlation_id, 0, 0, 0, 0, lock_ms, 1, 1, 0)


def acknowledge_frame(
    correlation_id: int,
    version: int,
    results: Results,
    *,
    lock_ms: int,
    error_code: int = 0,
    error_message: str | None = None,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The whole frame of an answer to a ShareAcknowledge."""
    parts = [_FETCH_RESPONSE.pack(0, error_code), _nullable(error_message)]
    if version >= RENEWS_FROM:
        parts.append(_INT32.pack(lock_ms))
    parts.append(uvarint(len(results) + 1))
    for topic_id, partitions in results:
        parts += (topic_id, uvarint(len(partitions) + 1))
        for data in partitions:
            parts.append(_PARTITION.pack(data.partition, data.error_code))
            parts.append(_nullable(data.error_message))
            parts.append(_NO_LEADER if data.leader is None else _LEADER.pack(*data.leader, 0))
            parts.append(b"\0")
        parts.append(b"\0")
    parts += (_endpoints(endpoints), b"\0")
    body = b"".join(parts)
    return FLEXIBLE_RESPONSE_HEAD.pack(len(body) + 5, correlation_id, 0) + body


def _nullable(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def _endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    if not endpoints:
        return b"\1"
    parts = [uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        parts += (LENGTH.pack(node_id), _nullable(host), LENGTH.pack(port), _nullable(rack), b"\0")
    return b"".join(parts)
