"""OffsetCommit as consumers send it all day, read and answered by hand, without a tree of objects.

A request is cut where its parts repeat: the head says who commits (group, generation, member), and is the
same from one commit to the next; a topic's name and a partition's number lead to what is known of them. For
what is unusual or damaged the answer is None, and the schema's decoder takes over.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

FLEXIBLE_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10
_EPOCHS_FROM: Final = 6
_INSTANCES_FROM: Final = 7
_RETENTION_UNTIL: Final = 4
_THROTTLE_FROM: Final = 3
_NO_THROTTLE: Final = b"\0\0\0\0"
_UUID_SIZE: Final = 16
_NO_INSTANCE: Final = (b"\0", b"\xff\xff")
_LONG: Final = 0x80
"""From here on a length takes more than one byte: such requests are rare, and left to the other decoder."""

_INT32: Final = struct.Struct(">i")
_PARTITION_V2: Final = struct.Struct(">iqh")
_PARTITION_V6: Final = struct.Struct(">iqih")
_PARTITION_V8: Final = struct.Struct(">iqib")
"""Partition, offset, leader epoch (from version 6 on), length of the metadata."""
_SOLE_V6: Final = struct.Struct(">qih")
_SOLE_V8: Final = struct.Struct(">qiB3s")
"""The end of a request with one partition, from its offset on, if there is no metadata; `read_sole`."""
_NO_TAGS: Final = b"\0\0\0"
"""No tags of the partition, of the topic and of the request."""
_read_count: Final = _INT32.unpack_from
_read_v2: Final = _PARTITION_V2.unpack_from
_read_v6: Final = _PARTITION_V6.unpack_from
_read_v8: Final = _PARTITION_V8.unpack_from

Offset: TypeAlias = tuple[bytes, int, int, int, bytes]
"""The topic as the request names it, partition, offset, leader epoch, metadata."""


Commit: TypeAlias = tuple[bytes, list[Offset], list[bytes]]
"""The head: group, generation, member and instance as they were sent; the offsets; and what the body of the
answer has around its error codes, of which there is one for each offset."""


def read_commit(buffer: memoryview, position: int, end: int, version: int) -> Commit | None:
    """The parts of a request, or None if it has anything that ordinary ones have not."""
    try:
        if version >= FLEXIBLE_FROM:
            return _read_flexible(buffer, position, end, version)
        return _read_classic(buffer, position, end, version)
    except (struct.error, IndexError):
        return None


Sole: TypeAlias = tuple[bytes, int, int]
"""What comes before the offset of a request's only partition, if it has only one; offset, leader epoch."""


def read_sole(buffer: memoryview, position: int, end: int, version: int) -> Sole | None:
    """The request, cut in the right place if it has one partition and no metadata. The caller knows that if
    it saw the first part before, in a request that `is_sole`."""
    if version >= FLEXIBLE_FROM:
        offset_at = end - _SOLE_V8.size
        if offset_at < position:
            return None
        offset, leader_epoch, length, tags = _SOLE_V8.unpack_from(buffer, offset_at)
        if tags != _NO_TAGS or length > 1:
            return None
    elif version >= _EPOCHS_FROM:
        offset_at = end - _SOLE_V6.size
        if offset_at < position:
            return None
        offset, leader_epoch, length = _SOLE_V6.unpack_from(buffer, offset_at)
        if length > 0 or length < -1:
            return None
    else:
        return None
    return bytes(buffer[position:offset_at]), offset, leader_epoch


def is_sole(commit: Commit) -> bool:
    """Whether it is a commit of one partition without metadata: then `read_sole` cuts it right."""
    _, offsets, answer = commit
    return len(offsets) == 1 and not offsets[0][4] and answer[1] in (b"", _NO_TAGS)


Head: TypeAlias = tuple[str, int, str, str | None]
"""Group, generation or member epoch, member, instance."""


def read_head(head: bytes, version: int) -> Head | None:
    """What the head of a commit says; None if it sets a retention time, or has names that are no text."""
    # A flexible length is one byte and counts itself; a classic one has its value in the second of two bytes.
    name_at, counted = (1, 1) if version >= FLEXIBLE_FROM else (2, 0)
    group_end = name_at + head[name_at - 1] - counted
    member_at = group_end + 4 + name_at
    rest_at = member_at + head[member_at - 1] - counted
    rest = head[rest_at:]
    try:
        group_id = head[name_at:group_end].decode()
        member_id = head[member_at:rest_at].decode()
        instance_id = None
        if version >= _INSTANCES_FROM and rest not in _NO_INSTANCE:
            instance_id = rest[name_at:].decode()
    except UnicodeDecodeError:
        return None
    if version <= _RETENTION_UNTIL and rest[0] < _LONG:
        return None
    (generation,) = _read_count(head, group_end)
    return group_id, generation, member_id, instance_id


def topic_name(topic: bytes, version: int) -> str | None:
    """The name of a topic as a commit before version 10 has it; None if it is no text."""
    try:
        return topic[1 if version >= FLEXIBLE_FROM else 2 :].decode()
    except UnicodeDecodeError:
        return None


def _read_flexible(buffer: memoryview, position: int, end: int, version: int) -> Commit | None:
    start = position
    group_size = buffer[position]
    # Behind the group's name, its length included, comes the generation.
    position += group_size + 4
    member_size = buffer[position]
    position += member_size
    instance_size = buffer[position]
    position += instance_size or 1
    topic_count = buffer[position]
    if not (0 < group_size < _LONG and 0 < member_size < _LONG and instance_size < _LONG):
        return None
    head = bytes(buffer[start:position])
    copied = position
    position += 1
    offsets: list[Offset] = []
    answer: list[bytes] = []
    before = _NO_THROTTLE
    for _ in range(topic_count - 1):
        size = _UUID_SIZE if version >= TOPIC_IDS_FROM else buffer[position]
        topic = bytes(buffer[position : position + size])
        position += size
        partition_count = buffer[position]
        position += 1
        if not 0 < size < _LONG or not 0 < partition_count < _LONG or position > end:
            return None
        for _ in range(partition_count - 1):
            partition, offset, leader_epoch, length = _read_v8(buffer, position)
            answer.append(before + bytes(buffer[copied : position + 4]))
            position += 17
            metadata = b""
            if length > 1:
                metadata = bytes(buffer[position : position + length - 1])
                position += length - 1
            elif length < 0:
                return None
            if buffer[position]:
                return None
            # No tags behind the partition, in the request and in the answer.
            before = b"\0"
            position += 1
            copied = position
            offsets.append((topic, partition, offset, leader_epoch, metadata))
        if buffer[position]:
            return None
        position += 1
    if not 0 < topic_count < _LONG or buffer[position] or position + 1 != end:
        return None
    answer.append(before + bytes(buffer[copied:end]))
    return (head, offsets, answer) if offsets else None


def _read_classic(buffer: memoryview, position: int, end: int, version: int) -> Commit | None:
    start = position
    # Names of 256 bytes and more have a first byte that is not zero.
    is_long = buffer[position]
    position += buffer[position + 1] + 6
    is_long |= buffer[position]
    position += buffer[position + 1] + 2
    if version <= _RETENTION_UNTIL:
        position += 8
    elif version >= _INSTANCES_FROM:
        if buffer[position] == 0xFF and buffer[position + 1] == 0xFF:
            # No instance.
            position += 2
        else:
            is_long |= buffer[position]
            position += buffer[position + 1] + 2
    if is_long:
        return None
    head = bytes(buffer[start:position])
    (topic_count,) = _read_count(buffer, position)
    copied = position
    position += 4
    if not 0 < topic_count <= end - position:
        return None
    offsets: list[Offset] = []
    answer: list[bytes] = []
    before = _NO_THROTTLE if version >= _THROTTLE_FROM else b""
    for _ in range(topic_count):
        if buffer[position]:
            return None
        size = buffer[position + 1] + 2
        topic = bytes(buffer[position : position + size])
        position += size
        (partition_count,) = _read_count(buffer, position)
        position += 4
        if not 0 <= partition_count <= end - position:
            return None
        for _ in range(partition_count):
            if version >= _EPOCHS_FROM:
                partition, offset, leader_epoch, length = _read_v6(buffer, position)
                size = 18
            else:
                partition, offset, length = _read_v2(buffer, position)
                leader_epoch, size = -1, 14
            answer.append(before + bytes(buffer[copied : position + 4]))
            position += size
            metadata = b""
            if length > 0:
                metadata = bytes(buffer[position : position + length])
                position += length
            elif length < -1:
                return None
            before = b""
            copied = position
            offsets.append((topic, partition, offset, leader_epoch, metadata))
    if position != end:
        return None
    answer.append(before + bytes(buffer[copied:end]))
    return (head, offsets, answer) if offsets else None
