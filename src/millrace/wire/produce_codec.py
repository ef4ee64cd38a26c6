"""Produce, decoded and encoded by hand: records stay views into the receive buffer, never copies.

Versions 3 to 13. From 9 on the encoding is flexible; from 13 on topics are named by id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from millrace.core.ids import TopicId
from millrace.core.limits import REQUEST_PARTITIONS_MAX
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import NodeEndpoint, encode_endpoints, read_uvarint, skip_tags, uvarint

VERSIONS: Final = (3, 13)
FLEXIBLE_FROM: Final = 9
LEADERS_FROM: Final = 10
TOPIC_IDS_FROM: Final = 13

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT: Final = struct.Struct(">hii")
_INDEX_SIZE: Final = struct.Struct(">ii")
_RESULT_V3: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_CLASSIC_HEAD: Final = struct.Struct(">ii")
_SINGLE_FORMAT: Final = "bihqqq4sib"
"""One partition: count, result, no record errors, no message, no tags, no topic tags; throttle time, no
tags."""
_SINGLE_SIZE: Final = struct.calcsize(f">{_SINGLE_FORMAT}") + 6
_SINGLE_PACKERS: Final[dict[int, Callable[..., bytes]]] = {}
"""Pack the whole frame with one call, by the size of the topic's name or id; there are few sizes."""
_NAMES: Final[dict[str, bytes]] = {}
"""Topic names in their flexible encoding."""
_NAMES_MAX: Final = 10_000
_NO_TAGS: Final = b"\0\0\0"
"""Behind the records: no tags of the partition, of the topic and of the request."""


# Plain tuples, because a request is taken apart as soon as it is decoded and named ones cost ten times as
# much.
PartitionRecords: TypeAlias = tuple[int, memoryview | None]
"""Partition, records."""
TopicRecords: TypeAlias = tuple[str, TopicId | None, list[PartitionRecords]]
"""Name (empty where the request names the topic by id), id (None where it names it by name), partitions."""
ProduceRequest: TypeAlias = tuple[str | None, int, int, list[TopicRecords]]
"""Transactional id, acks, timeout in ms, topics."""


class PartitionResult(NamedTuple):
    """What became of the records for one partition."""

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
    """What became of the records for one topic."""

    topic: str
    topic_id: TopicId | None
    partitions: list[PartitionResult]


def decode_request(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    """The request, with records as views into `buffer`: use or copy them before the buffer is read into
    again."""
    try:
        if version >= FLEXIBLE_FROM:
            return _decode_flexible(buffer, position, end, version)
        return _decode_classic(buffer, position, end)
    except (struct.error, IndexError):
        raise MalformedRequest("the Produce request ends in the middle of a field") from None
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"a name in the Produce request is not UTF-8: {error}") from None


def _decode_flexible(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    # Nearly all lengths and tag counts here are a single byte: those are read in place, the others by a call.
    transactional_id = None
    if buffer[position] == 0:
        position += 1
    else:
        length, position = read_uvarint(buffer, position, end)
        transactional_id, position = _text(buffer, position, length - 1, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    position += 6
    if (topic_count := buffer[position]) < 0x80:
        position += 1
    else:
        topic_count, position = read_uvarint(buffer, position, end)
    left = REQUEST_PARTITIONS_MAX - topic_count
    if not 0 < topic_count <= end - position or left < 0:
        raise _bad_count(topic_count - 1, end - position)
    topics: list[TopicRecords] = []
    for _ in range(topic_count - 1):
        topic_id = None
        name = ""
        if version >= TOPIC_IDS_FROM:
            stop = position + 16
            topic_id = TopicId(bytes(buffer[position:stop]))
        else:
            if (length := buffer[position]) < 0x80:
                position += 1
            else:
                length, position = read_uvarint(buffer, position, end)
            stop = position + length - 1
            if length == 0 or stop > end:
                raise MalformedRequest(f"a topic name of {length - 1} bytes with {end - position} left")
            name = str(buffer[position:stop], "utf-8")
        position = stop
        if (partition_count := buffer[position]) < 0x80:
            position += 1
        else:
            partition_count, position = read_uvarint(buffer, position, end)
        left -= partition_count
        if not 0 < partition_count <= end - position or left < 0:
            raise _bad_count(partition_count - 1, end - position)
        partitions: list[PartitionRecords] = []
        for _ in range(partition_count - 1):
            (index,) = _INT32.unpack_from(buffer, position)
            size, position = read_uvarint(buffer, position + 4, end)
            records = None
            if size > 0:
                stop = position + size - 1
                if stop > end:
                    raise MalformedRequest(
                        f"records of {size - 1} bytes in a request with {end - position} left"
                    )
                records = buffer[position:stop]
                position = stop
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
            partitions.append((index, records))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
        topics.append((name, topic_id, partitions))
    position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position, end)
    _expect_end(position, end)
    return transactional_id, acks, timeout_ms, topics


def shape_size(buffer: memoryview, position: int, end: int, records_size: int, version: int) -> int:
    """How many bytes of a request with one partition come before the size of its records; 0 if it has tags.

    A producer sends these bytes again and again: they say all but how large the records are."""
    if version < FLEXIBLE_FROM or bytes(buffer[end - 3 : end]) != _NO_TAGS:
        return 0
    return end - 3 - records_size - len(uvarint(records_size + 1)) - position


def sole_records(buffer: memoryview, position: int, end: int) -> memoryview | None:
    """The records behind the bytes that `shape_size` counts; None if the rest of the request is not as
    usual."""
    try:
        size = buffer[position]
        position += 1
        if size >= 0x80:
            following = buffer[position]
            position += 1
            size += (following - 1) << 7
            if following >= 0x80:
                following = buffer[position]
                position += 1
                size += (following - 1) << 14
                if following >= 0x80:
                    return None
    except IndexError:
        return None
    stop = position + size - 1
    # No tags of the partition, of the topic and of the request.
    if size == 0 or stop != end - 3 or buffer[stop] or buffer[stop + 1] or buffer[stop + 2]:
        return None
    return buffer[position:stop]


def _decode_classic(buffer: memoryview, position: int, end: int) -> ProduceRequest:
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    transactional_id = None
    if length >= 0:
        transactional_id, position = _text(buffer, position, length, end)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(buffer, position)
    position += 10
    left = REQUEST_PARTITIONS_MAX - topic_count
    if not 0 <= topic_count <= end - position or left < 0:
        raise _bad_count(topic_count, end - position)
    topics: list[TopicRecords] = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(buffer, position)
        name, position = _text(buffer, position + 2, length, end)
        (partition_count,) = _INT32.unpack_from(buffer, position)
        position += 4
        left -= partition_count
        if not 0 <= partition_count <= end - position or left < 0:
            raise _bad_count(partition_count, end - position)
        partitions: list[PartitionRecords] = []
        for _ in range(partition_count):
            index, size = _INDEX_SIZE.unpack_from(buffer, position)
            position += 8
            records = None
            if size >= 0:
                stop = position + size
                if stop > end:
                    raise MalformedRequest(f"records of {size} bytes in a request with {end - position} left")
                records = buffer[position:stop]
                position = stop
            partitions.append((index, records))
        topics.append((name, None, partitions))
    _expect_end(position, end)
    return transactional_id, acks, timeout_ms, topics


def _text(buffer: memoryview, position: int, length: int, end: int) -> tuple[str, int]:
    stop = position + length
    if length < 0 or stop > end:
        raise MalformedRequest(f"a string of {length} bytes in a request with {end - position} left")
    return str(buffer[position:stop], "utf-8"), stop


def _bad_count(count: int, remaining: int) -> MalformedRequest:
    return MalformedRequest(
        f"an array of {count} elements in a request with {remaining} bytes left;"
        f" at most {REQUEST_PARTITIONS_MAX} topics and partitions are taken at once"
    )


def _expect_end(position: int, end: int) -> None:
    if position != end:
        raise MalformedRequest(f"{end - position} bytes follow the Produce request")


def encode_response(
    topics: list[TopicResult],
    version: int,
    throttle_time_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The body of a Produce response. `endpoints` are those of the leaders that it names (version 10 on)."""
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
        parts.append(encode_endpoints(endpoints) if version >= LEADERS_FROM else b"\0")
    return b"".join(parts)


def encode_single_success(
    correlation_id: int,
    version: int,
    topic: str,
    topic_id: TopicId | None,
    partition: int,
    base_offset: int,
    append_time: int,
    log_start_offset: int,
) -> bytes:
    """The whole frame of the commonest answer in a few steps: one partition, no error."""
    if version < FLEXIBLE_FROM:
        only = PartitionResult(partition, 0, base_offset, append_time, log_start_offset)
        body = encode_response([TopicResult(topic, topic_id, [only])], version)
        return _CLASSIC_HEAD.pack(len(body) + 4, correlation_id) + body
    if topic_id is not None:
        name: bytes = topic_id
    else:
        name = _NAMES.get(topic) or _remember_name(topic)
    size = len(name)
    pack = _SINGLE_PACKERS.get(size) or _remember_packer(size)
    # Length, correlation id, no tags; one topic with one partition; neither errors nor tags behind it.
    return pack(
        size + _SINGLE_SIZE,
        correlation_id,
        0,
        2,
        name,
        2,
        partition,
        0,
        base_offset,
        append_time,
        log_start_offset,
        b"\1\0\0\0",
        0,
        0,
    )


def _remember_name(topic: str) -> bytes:
    raw = topic.encode()
    encoded = uvarint(len(raw) + 1) + raw
    if len(_NAMES) >= _NAMES_MAX:
        _NAMES.clear()
    _NAMES[topic] = encoded
    return encoded


def _remember_packer(name_size: int) -> Callable[..., bytes]:
    pack = _SINGLE_PACKERS[name_size] = struct.Struct(f">iibb{name_size}s{_SINGLE_FORMAT}").pack
    return pack


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
        if leader is not None and version >= LEADERS_FROM:
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
