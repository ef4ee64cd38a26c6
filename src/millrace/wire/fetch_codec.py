"""Fetch, decoded and encoded by hand: a response is a list of chunks, and records are file slices, not bytes.

Versions 4 to 18. From 12 on the encoding is flexible; from 13 on topics are named by id; from 15 on the
replica id is a tagged field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from millrace.core.ids import TopicId
from millrace.core.limits import REQUEST_PARTITIONS_MAX
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import (
    FLEXIBLE_RESPONSE_HEAD,
    RESPONSE_HEAD,
    NodeEndpoint,
    encode_endpoints,
    read_uvarint,
    skip_tags,
    uvarint,
)

VERSIONS: Final = (4, 18)
SESSIONS_FROM: Final = 7
FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
ENDPOINTS_FROM: Final = 16

MAX_BYTES_DEFAULT: Final = 0x7FFF_FFFF
READ_COMMITTED: Final = 1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_HEAD_V4: Final = struct.Struct(">iiiib")
_HEAD_V7: Final = struct.Struct(">iiiibii")
_HEAD_V15: Final = struct.Struct(">iiibii")
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_REPLICA_STATE: Final = struct.Struct(">iq")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_RESULT: Final = struct.Struct(">ihqqq")
_SINGLE_HEAD: Final = struct.Struct(">iibihib")
"""Length, correlation id, no tags; throttle time, no error, session id, one topic."""
_SINGLE_RESULT: Final = struct.Struct(">bihqqqbi")
"""One partition: its result, no aborted transactions, the replica to prefer."""
_SINGLE_REST: Final = _SINGLE_HEAD.size - 4 + _SINGLE_RESULT.size + 3
BEHIND_SOLE_RECORDS: Final = b"\0\0\0"
_ABORTED: Final = struct.Struct(">qq")
_LEADER: Final = struct.Struct(">ii")
_DIVERGING: Final = struct.Struct(">iq")


class FetchPartition(NamedTuple):
    """One partition that a request asks for, and from which offset on."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchTopic(NamedTuple):
    """Partitions of one topic that a request asks for."""

    topic: str
    """The name; empty where the request names the topic by id."""
    topic_id: TopicId | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions of one topic that a session shall no longer hold."""

    topic: str
    topic_id: TopicId | None
    partitions: tuple[int, ...]


class FetchRequest(NamedTuple):
    """A request of any version. Fields that the version lacks have the defaults of the protocol."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    rack_id: str


class RequestShape(NamedTuple):
    """The bytes of a request for one partition, all but the session's epoch and the fetch offset: a consumer
    at the end of its partition sends them again and again."""

    size: int
    epoch_at: int
    offset_at: int
    head: bytes
    middle: bytes
    rest: bytes


class Slice(Protocol):
    """Bytes that stay where they are until they are sent."""

    size_bytes: int

    def is_cold(self) -> bool:
        """Whether reading them could wait for the disk."""

    def read(self) -> bytes:
        """A copy of them."""


Frame = tuple[bytes, Slice, bytes] | list[bytes | Slice]
"""An answer in pieces, in the order in which they leave: a tuple for the records of one partition, which is
the commonest answer by far, and a list for all others."""


class PartitionData(NamedTuple):
    """What an answer says of one partition."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Slice | None = None
    """None for no records: encoded as an empty field, which is what clients expect."""
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions; None for read_uncommitted."""
    preferred_read_replica: int = -1
    current_leader: tuple[int, int] | None = None
    diverging_epoch: tuple[int, int] | None = None


class TopicData(NamedTuple):
    """What an answer says of one topic."""

    topic: str
    topic_id: TopicId | None
    partitions: list[PartitionData]


def decode_request(buffer: memoryview, position: int, end: int, version: int) -> FetchRequest:
    """The request; nothing in it refers to the buffer. Raises MalformedRequest."""
    try:
        replica_id = replica_epoch = session_epoch = -1
        session_id = 0
        if version >= REPLICA_STATE_FROM:
            max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V15.unpack_from(
                buffer, position
            )
            position += 21
        elif version >= SESSIONS_FROM:
            head = _HEAD_V7.unpack_from(buffer, position)
            replica_id, max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch = head
            position += 25
        else:
            replica_id, max_wait, min_bytes, max_bytes, isolation = _HEAD_V4.unpack_from(buffer, position)
            position += 17

        topics, position, left = _topics(buffer, position, end, version)
        forgotten: list[ForgottenTopic] = []
        rack_id = ""
        if version >= FLEXIBLE_FROM:
            # Nearly always three zero-like bytes: nothing forgotten, no rack, no tags.
            if buffer[position] == 1:
                position += 1
            else:
                forgotten, position = _forgotten_topics(buffer, position, end, version, left)
            if buffer[position] == 1:
                position += 1
            else:
                rack_id, position = _text(buffer, position, end, flexible=True)
            if buffer[position] == 0:
                position += 1
            else:
                replica_id, replica_epoch, position = _request_tags(
                    buffer, position, end, version, replica_id
                )
        elif version >= SESSIONS_FROM:
            forgotten, position = _forgotten_topics(buffer, position, end, version, left)
            if version >= 11:
                rack_id, position = _text(buffer, position, end, flexible=False)
        if position != end:
            raise MalformedRequest(f"{end - position} bytes follow the Fetch request")
        return FetchRequest(
            replica_id,
            replica_epoch,
            max_wait,
            min_bytes,
            max_bytes,
            isolation,
            session_id,
            session_epoch,
            topics,
            forgotten,
            rack_id,
        )
    except (struct.error, IndexError):
        raise MalformedRequest("the Fetch request ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a name in the Fetch request is not UTF-8: {error}") from None


def request_shape(
    buffer: memoryview, position: int, end: int, version: int, request: FetchRequest
) -> RequestShape | None:
    """The shape of a request that was decoded from these bytes; None if it is not for one partition."""
    topics = request.topics
    if version < FLEXIBLE_FROM or len(topics) != 1 or len(topics[0].partitions) != 1 or request.forgotten:
        return None
    topic = topics[0]
    data = bytes(buffer[position:end])
    epoch_at = 17 if version >= REPLICA_STATE_FROM else 21
    # One topic, its name, one partition. A client may write a length in more bytes than it needs: such a
    # request has no shape.
    named = b"\2" + _encoded_name(topic.topic, topic.topic_id) + b"\2"
    topic_at = epoch_at + 4
    if not data.startswith(named, topic_at):
        return None
    offset_at = topic_at + len(named) + 8
    return RequestShape(
        len(data), epoch_at, offset_at, data[:epoch_at], data[topic_at:offset_at], data[offset_at + 8 :]
    )


def repeated(shape: RequestShape, buffer: memoryview, position: int, end: int) -> tuple[int, int] | None:
    """The session's epoch and the fetch offset of a request of this shape; None if it has another."""
    size, epoch_at, offset_at, head, middle, rest = shape
    if end - position != size:
        return None
    data = bytes(buffer[position:end])
    if data[:epoch_at] != head or data[epoch_at + 4 : offset_at] != middle or data[offset_at + 8 :] != rest:
        return None
    return _INT32.unpack_from(data, epoch_at)[0], _INT64.unpack_from(data, offset_at)[0]


def _topics(buffer: memoryview, position: int, end: int, version: int) -> tuple[list[FetchTopic], int, int]:
    """The topics, the position behind them, and how many more elements the request may have."""
    flexible = version >= FLEXIBLE_FROM
    count, position = _count(buffer, position, end, flexible)
    left = REQUEST_PARTITIONS_MAX - count
    topics: list[FetchTopic] = []
    for _ in range(count):
        name, topic_id, position = _topic(buffer, position, end, version)
        partition_count, position = _count(buffer, position, end, flexible)
        left -= partition_count
        if left < 0:
            raise _too_many()
        if flexible:
            partitions, position = _partitions_flexible(buffer, position, end, partition_count)
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
        else:
            partitions, position = _partitions_classic(buffer, position, partition_count, version)
        topics.append(FetchTopic(name, topic_id, partitions))
    return topics, position, left


def _forgotten_topics(
    buffer: memoryview, position: int, end: int, version: int, left: int
) -> tuple[list[ForgottenTopic], int]:
    flexible = version >= FLEXIBLE_FROM
    count, position = _count(buffer, position, end, flexible)
    left -= count
    forgotten = []
    for _ in range(count):
        name, topic_id, position = _topic(buffer, position, end, version)
        index_count, position = _count(buffer, position, end, flexible)
        left -= index_count
        if left < 0:
            raise _too_many()
        indexes = struct.unpack_from(f">{index_count}i", buffer, position)
        position += 4 * index_count
        if flexible:
            position = skip_tags(buffer, position, end)
        forgotten.append(ForgottenTopic(name, topic_id, indexes))
    return forgotten, position


def _partitions_flexible(
    buffer: memoryview, position: int, end: int, count: int
) -> tuple[list[FetchPartition], int]:
    partitions = []
    unpack = _PARTITION_V12.unpack_from
    for _ in range(count):
        index, leader_epoch, offset, last_epoch, start_offset, max_bytes = unpack(buffer, position)
        position += 32
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
        partitions.append(FetchPartition(index, leader_epoch, offset, last_epoch, start_offset, max_bytes))
    return partitions, position


def _partitions_classic(
    buffer: memoryview, position: int, count: int, version: int
) -> tuple[list[FetchPartition], int]:
    partitions = []
    leader_epoch = start_offset = -1
    for _ in range(count):
        if version >= 9:
            index, leader_epoch, offset, start_offset, max_bytes = _PARTITION_V9.unpack_from(buffer, position)
            position += 28
        elif version >= 5:
            index, offset, start_offset, max_bytes = _PARTITION_V5.unpack_from(buffer, position)
            position += 24
        else:
            index, offset, max_bytes = _PARTITION_V4.unpack_from(buffer, position)
            position += 16
        partitions.append(FetchPartition(index, leader_epoch, offset, -1, start_offset, max_bytes))
    return partitions, position


def _topic(buffer: memoryview, position: int, end: int, version: int) -> tuple[str, TopicId | None, int]:
    if version >= TOPIC_IDS_FROM:
        stop = position + 16
        if stop > end:
            raise MalformedRequest("the Fetch request ends in the middle of a topic id")
        return "", TopicId(bytes(buffer[position:stop])), stop
    name, position = _text(buffer, position, end, version >= FLEXIBLE_FROM)
    return name, None, position


def _count(buffer: memoryview, position: int, end: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        if (count := buffer[position]) < 0x80:
            position += 1
        else:
            count, position = read_uvarint(buffer, position, end)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(buffer, position)
        position += 4
    if count < 0 or count > end - position:
        raise MalformedRequest(f"an array of {count} elements in a request with {end - position} bytes left")
    return count, position


def _too_many() -> MalformedRequest:
    return MalformedRequest(f"more than {REQUEST_PARTITIONS_MAX} topics and partitions in one Fetch request")


def _text(buffer: memoryview, position: int, end: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        length, position = read_uvarint(buffer, position, end)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(buffer, position)
        position += 2
    stop = position + length
    if length < 0 or stop > end:
        raise MalformedRequest(f"a string of {length} bytes in a request with {end - position} left")
    return str(buffer[position:stop], "utf-8"), stop


def _request_tags(
    buffer: memoryview, position: int, end: int, version: int, replica_id: int
) -> tuple[int, int, int]:
    """Replica id and epoch from the request's tagged fields (the cluster id does not matter here)."""
    replica_epoch = -1
    count, position = read_uvarint(buffer, position, end)
    for _ in range(count):
        tag, position = read_uvarint(buffer, position, end)
        size, position = read_uvarint(buffer, position, end)
        stop = position + size
        if stop > end:
            raise MalformedRequest("a tagged field is longer than the Fetch request")
        if tag == 1 and version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buffer, position)
        position = stop
    return replica_id, replica_epoch, position


def encode_error(error_code: int, session_id: int, version: int) -> bytes:
    """A response that carries a request-level error and no topics."""
    if version < SESSIONS_FROM:
        return _INT32.pack(0) + _INT32.pack(0)
    head = _RESPONSE_HEAD.pack(0, error_code, session_id)
    return head + (b"\1\0" if version >= FLEXIBLE_FROM else b"\0\0\0\0")


def encode_frame(
    correlation_id: int,
    topics: list[TopicData],
    session_id: int,
    version: int,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Frame:
    """The whole frame of an answer, with its length and its header."""
    if version >= FLEXIBLE_FROM and len(topics) == 1 and len(topics[0].partitions) == 1:
        topic = topics[0]
        data = topic.partitions[0]
        if (
            data.records is not None
            and data.error_code == 0
            and not data.aborted
            and data.current_leader is None
            and data.diverging_epoch is None
        ):
            before = before_sole_records(
                correlation_id,
                session_id,
                (topic.topic, topic.topic_id if version >= TOPIC_IDS_FROM else None),
                (data.partition, data.high_watermark, data.last_stable_offset, data.log_start_offset),
                data.records.size_bytes,
                tells_aborted=data.aborted is not None,
                preferred_read_replica=data.preferred_read_replica,
            )
            return before, data.records, BEHIND_SOLE_RECORDS
    chunks = encode_response(topics, session_id, version, endpoints)
    size = body_size(chunks)
    if version >= FLEXIBLE_FROM:
        head = FLEXIBLE_RESPONSE_HEAD.pack(size + 5, correlation_id, 0)
    else:
        head = RESPONSE_HEAD.pack(size + 4, correlation_id)
    first = chunks[0]
    assert isinstance(first, bytes), first
    chunks[0] = head + first
    return chunks


def before_sole_records(
    correlation_id: int,
    session_id: int,
    topic: tuple[str, TopicId | None],
    result: tuple[int, int, int, int],
    size: int,
    *,
    tells_aborted: bool,
    preferred_read_replica: int = -1,
) -> bytes:
    """The frame of a flexible version up to `size` bytes of records of one partition, without aborted ones.

    `result` is partition, high watermark, last stable offset and log start offset."""
    partition, high_watermark, last_stable_offset, log_start_offset = result
    name = _encoded_name(*topic)
    length = uvarint(size + 1)
    return (
        _SINGLE_HEAD.pack(
            len(name) + len(length) + size + _SINGLE_REST, correlation_id, 0, 0, 0, session_id, 2
        )
        + name
        + _SINGLE_RESULT.pack(
            2,
            partition,
            0,
            high_watermark,
            last_stable_offset,
            log_start_offset,
            1 if tells_aborted else 0,
            preferred_read_replica,
        )
        + length
    )


def sole_records_frame(
    correlation_id: int,
    session_id: int,
    topic: tuple[str, TopicId | None],
    result: tuple[int, int, int, int],
    records: bytes,
    *,
    tells_aborted: bool,
) -> bytes:
    """The frame of a flexible version with these records of one partition: see `before_sole_records`."""
    size = len(records)
    before = before_sole_records(correlation_id, session_id, topic, result, size, tells_aborted=tells_aborted)
    return before + records + BEHIND_SOLE_RECORDS


def _encoded_name(topic: str, topic_id: TopicId | None) -> bytes:
    if topic_id is not None:
        return topic_id
    raw = topic.encode()
    return uvarint(len(raw) + 1) + raw


def encode_response(
    topics: list[TopicData], session_id: int, version: int, endpoints: Sequence[NodeEndpoint] = ()
) -> list[bytes | Slice]:
    """The body as chunks: bytes and, between them, the slices of records in the order in which they are
    sent."""
    flexible = version >= FLEXIBLE_FROM
    head = _INT32.pack(0) if version < SESSIONS_FROM else _RESPONSE_HEAD.pack(0, 0, session_id)
    parts = [head, uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))]
    chunks: list[bytes | Slice] = []
    for topic in topics:
        if version >= TOPIC_IDS_FROM:
            assert topic.topic_id is not None, topic
            parts.append(topic.topic_id)
        else:
            raw = topic.topic.encode()
            parts.append((uvarint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw)
        count = len(topic.partitions)
        parts.append(uvarint(count + 1) if flexible else _INT32.pack(count))
        for data in topic.partitions:
            parts.append(_encode_partition(data, version))
            if data.records is not None:
                chunks.append(b"".join(parts))
                chunks.append(data.records)
                parts.clear()
            if flexible:
                parts.append(_partition_tags(data))
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(encode_endpoints(endpoints) if version >= ENDPOINTS_FROM else b"\0")
    if parts:
        chunks.append(b"".join(parts))
    return chunks


def _encode_partition(data: PartitionData, version: int) -> bytes:
    """Everything of a partition up to and including the length of its records."""
    flexible = version >= FLEXIBLE_FROM
    size = 0 if data.records is None else data.records.size_bytes
    fixed = _RESULT.pack(
        data.partition, data.error_code, data.high_watermark, data.last_stable_offset, data.log_start_offset
    )
    if version == 4:
        fixed = fixed[:22]
    if flexible:
        aborted = _aborted_flexible(data.aborted)
        return fixed + aborted + _INT32.pack(data.preferred_read_replica) + uvarint(size + 1)
    aborted = _aborted_classic(data.aborted)
    if version >= 11:
        aborted += _INT32.pack(data.preferred_read_replica)
    return fixed + aborted + _INT32.pack(size)


def _aborted_flexible(aborted: Sequence[tuple[int, int]] | None) -> bytes:
    if aborted is None:
        return b"\0"
    return uvarint(len(aborted) + 1) + b"".join(_ABORTED.pack(*entry) + b"\0" for entry in aborted)


def _aborted_classic(aborted: Sequence[tuple[int, int]] | None) -> bytes:
    if aborted is None:
        return b"\xff\xff\xff\xff"
    return _INT32.pack(len(aborted)) + b"".join(_ABORTED.pack(*entry) for entry in aborted)


def _partition_tags(data: PartitionData) -> bytes:
    if data.current_leader is None and data.diverging_epoch is None:
        return b"\0"
    tags = []
    if data.diverging_epoch is not None:
        tags.append(b"\0\x0d" + _DIVERGING.pack(*data.diverging_epoch) + b"\0")
    if data.current_leader is not None:
        tags.append(b"\1\x09" + _LEADER.pack(*data.current_leader) + b"\0")
    return uvarint(len(tags)) + b"".join(tags)


def body_size(chunks: list[bytes | Slice]) -> int:
    """How many bytes the chunks of a response will take on the wire."""
    return sum(len(chunk) if isinstance(chunk, bytes) else chunk.size_bytes for chunk in chunks)
