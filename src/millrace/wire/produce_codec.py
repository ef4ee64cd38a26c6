"""Produce, decoded and encoded by hand: records stay views into the receive buffer, never copies.

Versions 3 to 13. From 9 on the encoding is flexible; from 13 on topics are named by id.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millrace.core.ids import TopicId
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import read_uvarint, skip_tags, uvarint

VERSIONS: Final = (3, 13)
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT: Final = struct.Struct(">hii")
_INDEX_SIZE: Final = struct.Struct(">ii")
_RESULT_V3: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_CLASSIC_HEAD: Final = struct.Struct(">ii")
_FLEXIBLE_HEAD: Final = struct.Struct(">iibb")
_SINGLE: Final = struct.Struct(">bihqqq4sib")
"""One partition: count, result, no record errors, no message, no tags, no topic tags; throttle time, no tags."""
_SINGLE_SIZE: Final = _SINGLE.size + 6


class PartitionRecords(NamedTuple):
    partition: int
    records: memoryview | None


class TopicRecords(NamedTuple):
    topic: str
    """The name; empty where the request names the topic by id."""
    topic_id: TopicId | None
    partitions: list[PartitionRecords]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicRecords]


class PartitionResult(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None
    """Leader id and leader epoch, with errors that are about leadership (version 10 on)."""


class TopicResult(NamedTuple):
    topic: str
    topic_id: TopicId | None
    partitions: list[PartitionResult]


def decode_request(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    """The request, with records as views into `buffer`: use or copy them before the buffer is read into again."""
    try:
        if version >= FLEXIBLE_FROM:
            return _decode_flexible(buffer, position, end, version)
        return _decode_classic(buffer, position, end)
    except (struct.error, IndexError):
        raise MalformedRequest("the Produce request ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a name in the Produce request is not UTF-8: {error}") from None


def _decode_flexible(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    length, position = read_uvarint(buffer, position, end)
    transactional_id = None
    if length > 0:
        transactional_id, position = _text(buffer, position, length - 1, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    topic_count, position = read_uvarint(buffer, position + 6, end)
    topics: list[TopicRecords] = []
    for _ in range(_checked_count(topic_count - 1, end - position)):
        topic_id = None
        name = ""
        if version >= TOPIC_IDS_FROM:
            topic_id = TopicId(bytes(buffer[position : position + 16]))
            position += 16
        else:
            length, position = read_uvarint(buffer, position, end)
            name, position = _text(buffer, position, length - 1, end)
        partition_count, position = read_uvarint(buffer, position, end)
        partitions: list[PartitionRecords] = []
        for _ in range(_checked_count(partition_count - 1, end - position)):
            (index,) = _INT32.unpack_from(buffer, position)
            size, position = read_uvarint(buffer, position + 4, end)
            records = None
            if size > 0:
                stop = position + size - 1
                if stop > end:
                    raise MalformedRequest(f"records of {size - 1} bytes in a request with {end - position} left")
                records = buffer[position:stop]
                position = stop
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
            partitions.append(PartitionRecords(index, records))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
        topics.append(TopicRecords(name, topic_id, partitions))
    position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
    _expect_end(position, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_classic(buffer: memoryview, position: int, end: int) -> ProduceRequest:
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    transactional_id = None
    if length >= 0:
        transactional_id, position = _text(buffer, position, length, end)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(buffer, position)
    position += 10
    topics: list[TopicRecords] = []
    for _ in range(_checked_count(topic_count, end - position)):
        (length,) = _INT16.unpack_from(buffer, position)
        name, position = _text(buffer, position + 2, length, end)
        (partition_count,) = _INT32.unpack_from(buffer, position)
        position += 4
        partitions: list[PartitionRecords] = []
        for _ in range(_checked_count(partition_count, end - position)):
            index, size = _INDEX_SIZE.unpack_from(buffer, position)
            position += 8
            records = None
            if size >= 0:
                stop = position + size
                if stop > end:
                    raise MalformedRequest(f"records of {size} bytes in a request with {end - position} left")
                records = buffer[position:stop]
                position = stop
            partitions.append(PartitionRecords(index, records))
        topics.append(TopicRecords(name, None, partitions))
    _expect_end(position, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _text(buffer: memoryview, position: int, length: int, end: int) -> tuple[str, int]:
    stop = position + length
    if length < 0 or stop > end:
        raise MalformedRequest(f"a string of {length} bytes in a request with {end - position} left")
    return str(buffer[position:stop], "utf-8"), stop


def _checked_count(count: int, remaining: int) -> int:
    if count < 0 or count > remaining:
        raise MalformedRequest(f"an array of {count} elements in a request with {remaining} bytes left")
    return count


def _expect_end(position: int, end: int) -> None:
    if position != end:
        raise MalformedRequest(f"{end - position} bytes follow the Produce request")


def encode_response(topics: list[TopicResult], version: int, throttle_time_ms: int = 0) -> bytes:
    """The body of a Produce response."""
    flexible = version >= FLEXIBLE_FROM
    parts = [uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))]
    for topic in topics:
        if version >= TOPIC_IDS_FROM:
            assert topic.topic_id is not None, topic
            parts.append(topic.topic_id)
        else:
            parts.append(_string(topic.topic, flexible=flexible))
        count = len(topic.partitions)
        parts.append(uvarint(count + 1) if flexible else _INT32.pack(count))
        parts.extend(_encode_partition(result, version) for result in topic.partitions)
        if flexible:
            parts.append(b"\0")
    parts.append(_INT32.pack(throttle_time_ms))
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)


def encode_single_success(correlation_id: int, topic: TopicResult, version: int) -> bytes:
    """The whole frame of the commonest answer, one partition without an error, in a few steps."""
    partition, _, base_offset, append_time, log_start_offset, _, _, _ = topic.partitions[0]
    if version < FLEXIBLE_FROM:
        body = encode_response([topic], version)
        return _CLASSIC_HEAD.pack(len(body) + 4, correlation_id) + body
    if version >= TOPIC_IDS_FROM:
        assert topic.topic_id is not None, topic
        name: bytes = topic.topic_id
    else:
        raw = topic.topic.encode()
        name = uvarint(len(raw) + 1) + raw
    return (
        # Length, correlation id, no tags; one topic.
        _FLEXIBLE_HEAD.pack(len(name) + _SINGLE_SIZE, correlation_id, 0, 2)
        + name
        + _SINGLE.pack(2, partition, 0, base_offset, append_time, log_start_offset, b"\1\0\0\0", 0, 0)
    )


def _encode_partition(result: PartitionResult, version: int) -> bytes:
    index, error_code, base_offset, append_time, log_start_offset, record_errors, message, leader = result
    if version < 5:
        return _RESULT_V3.pack(index, error_code, base_offset, append_time)
    fixed = _RESULT_V5.pack(index, error_code, base_offset, append_time, log_start_offset)
    if version < 8:
        return fixed
    flexible = version >= FLEXIBLE_FROM
    if not record_errors and message is None and leader is None:
        return fixed + (b"\1\0\0" if flexible else b"\0\0\0\0\xff\xff")
    parts = [fixed, uvarint(len(record_errors) + 1) if flexible else _INT32.pack(len(record_errors))]
    for batch_index, text in record_errors:
        parts.append(_INT32.pack(batch_index) + _string(text, flexible=flexible))
        if flexible:
            parts.append(b"\0")
    parts.append(_string(message, flexible=flexible))
    if flexible:
        if leader is not None and version >= 10:
            # One tagged field, number 0 of 9 bytes: leader id, leader epoch and its own empty block of tags.
            parts.append(b"\1\0\x09" + struct.pack(">ii", *leader) + b"\0")
        else:
            parts.append(b"\0")
    return b"".join(parts)


def _string(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    raw = text.encode()
    return (uvarint(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw
