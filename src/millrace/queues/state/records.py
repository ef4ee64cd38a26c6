"""The records of `__share_group_state` as Kafka writes them, and what the rules see of them.

The key begins with its type: 0 is a snapshot, 1 an update; a snapshot's key without a value is a tombstone.
When a run may be delivered again is no field of Kafka's: it is a tagged field of the run, under a number that
Kafka's own fields will not reach, and Kafka's readers skip it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import ClassVar, Final, NamedTuple

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId, format_topic_id, parse_topic_id
from millrace.queues.share_partition.model import ShareKey, StateBatch, state_of
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotStateBatch,
    ShareSnapshotValue,
    ShareUpdateValue,
)
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_fields import OUR_TAGS_FROM, Field
from millrace.wire.schema_runtime import uvarint

KEYS_KEPT_MAX: Final = 65_536
NOT_BEFORE_TAG: Final = OUR_TAGS_FROM

_SNAPSHOT: Final = 0
_UPDATE: Final = 1
_VERSION: Final = 0
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_SNAPSHOT_START: Final = struct.Struct(">hiiiqqq")
_UPDATE_START: Final = struct.Struct(">hiiq")
_UPDATE_OF_ONE: Final = struct.Struct(">hiiqbqqbhb")
"""An update with one run, and the number of its runs plus 1 before it."""
_BATCH: Final = struct.Struct(">qqbhb")
"""A run, and the number of its tags."""
_NOT_BEFORE: Final = struct.Struct(">q")
_NOT_BEFORE_START: Final = uvarint(NOT_BEFORE_TAG) + uvarint(_NOT_BEFORE.size)
_COUNT_START: Final = b"\1\0\4"
"""One tag of the value, number 0, of four bytes: how many records are done."""
_NO_COUNT: Final = b"\0"
UNKNOWN_COUNT: Final = -1
BATCH_BYTES_MAX: Final = _BATCH.size + len(_NOT_BEFORE_START) + _NOT_BEFORE.size
VALUE_BYTES_MAX: Final = _SNAPSHOT_START.size + len(_COUNT_START) + _INT32.size + 5
"""How many bytes a value takes at most, beside its runs."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_INT32_MAX: Final = 2**31 - 1


class Snapshot(NamedTuple):
    """All there is to know of a share partition at one moment."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...]


class Update(NamedTuple):
    """What has changed since the snapshot of the same epoch, or since the update before."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    """-1 if it stays."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


@lru_cache(maxsize=KEYS_KEPT_MAX)
def coordinator_key(key: ShareKey) -> str:
    """The text by which brokers and clients find the partition that holds this state."""
    return f"{key.group_id}:{format_topic_id(TopicId(key.topic_id))}:{key.partition}"


def parse_coordinator_key(text: str) -> ShareKey:
    """The share partition that a text names; raises ValueError. It is read from the right, because a group's
    id may have colons."""
    group_id, _, rest = text.rpartition(":")
    group_id, _, topic_id = group_id.rpartition(":")
    if not group_id.strip():
        raise ValueError(f"{text!r} is not a group, a topic id and a partition with colons between them")
    partition = int(rest) if _NUMBER.fullmatch(rest) else _INT32_MAX + 1
    if not -_INT32_MAX - 1 <= partition <= _INT32_MAX:
        raise ValueError(f"{rest!r} is no number of a partition")
    return ShareKey(group_id, parse_topic_id(topic_id), partition)


@lru_cache(maxsize=KEYS_KEPT_MAX)
def snapshot_key(key: ShareKey) -> bytes:
    return _key(_SNAPSHOT, key)


@lru_cache(maxsize=KEYS_KEPT_MAX)
def update_key(key: ShareKey) -> bytes:
    return _key(_UPDATE, key)


def _key(number: int, key: ShareKey) -> bytes:
    group = key.group_id.encode()
    return b"".join(
        (_INT16.pack(number), _INT16.pack(len(group)), group, key.topic_id, _INT32.pack(key.partition))
    )


def update_value(update: Update) -> bytes:
    """The value of an update's record."""
    epoch, leader_epoch, start_offset, count, batches = update
    end = _NO_COUNT if count == UNKNOWN_COUNT else _COUNT_START + _INT32.pack(count)
    if len(batches) == 1 and not batches[0].not_before_ms:
        # Most acknowledgements are of one run.
        first, last, state, deliveries, _ = batches[0]
        return (
            _UPDATE_OF_ONE.pack(
                _VERSION, epoch, leader_epoch, start_offset, 2, first, last, state, deliveries, 0
            )
            + end
        )
    return _UPDATE_START.pack(_VERSION, epoch, leader_epoch, start_offset) + _encoded(batches) + end


def snapshot_value(snapshot: Snapshot) -> bytes:
    """The value of a snapshot's record."""
    count = snapshot.delivery_complete_count
    return b"".join(
        (
            _SNAPSHOT_START.pack(
                _VERSION,
                snapshot.snapshot_epoch,
                snapshot.state_epoch,
                snapshot.leader_epoch,
                snapshot.start_offset,
                snapshot.create_ms,
                snapshot.write_ms,
            ),
            _encoded(snapshot.batches),
            _NO_COUNT if count == UNKNOWN_COUNT else _COUNT_START + _INT32.pack(count),
        )
    )


def _encoded(batches: Sequence[StateBatch]) -> bytes:
    parts = [uvarint(len(batches) + 1)]
    for first, last, state, count, not_before_ms in batches:
        if not_before_ms:
            parts.append(_BATCH.pack(first, last, state, count, 1))
            parts.append(_NOT_BEFORE_START)
            parts.append(_NOT_BEFORE.pack(not_before_ms))
        else:
            parts.append(_BATCH.pack(first, last, state, count, 0))
    return b"".join(parts)


class ShareStateCodec:
    """Encodes what the rules decide, decodes what a log holds, Kafka's own included. A record's key is a
    ShareKey, its value a Snapshot, an Update or nothing."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        assert isinstance(key, ShareKey), key
        if isinstance(value, Update):
            return update_key(key), update_value(value)
        assert value is None or isinstance(value, Snapshot), value
        return snapshot_key(key), None if value is None else snapshot_value(value)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record, or None for an unknown type or version. Raises MalformedRequest for damaged bytes."""
        if len(key) < _INT16.size:
            raise MalformedRequest(f"a key of {len(key)} bytes has no type")
        (number,) = _INT16.unpack_from(key)
        if number not in (_SNAPSHOT, _UPDATE):
            return None
        message = _key_decoder()(key, _INT16.size)
        name = ShareKey(message.group_id, message.topic_id, message.partition)
        if value is None:
            # Kafka writes tombstones with the key of a snapshot only.
            return Record(name, None) if number == _SNAPSHOT else None
        if len(value) < _INT16.size:
            raise MalformedRequest(f"a value of {len(value)} bytes has no version")
        if _INT16.unpack_from(value)[0] != _VERSION:
            return None
        if number == _SNAPSHOT:
            return Record(name, _snapshot(_snapshot_decoder()(value, _INT16.size)))
        return Record(name, _update(_update_decoder()(value, _INT16.size)))


@dataclass(slots=True, kw_only=True)
class _Batch(ShareSnapshotStateBatch):
    """A run with our field; snapshots and updates have the same."""

    not_before_ms: int = 0

    FIELDS: ClassVar[tuple[Field, ...]] = (
        *ShareSnapshotStateBatch.FIELDS,
        Field("not_before_ms", "int64", "0+", tag=NOT_BEFORE_TAG),
    )


def _with_our_runs(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    runs = Field("runs", "[]struct", "0+", struct=_Batch)
    return tuple(runs if each.name == "state_batches" else each for each in fields)


@dataclass(slots=True, kw_only=True)
class _SnapshotValue(ShareSnapshotValue):
    runs: list[_Batch] = field(default_factory=list)

    FIELDS: ClassVar[tuple[Field, ...]] = _with_our_runs(ShareSnapshotValue.FIELDS)


@dataclass(slots=True, kw_only=True)
class _UpdateValue(ShareUpdateValue):
    runs: list[_Batch] = field(default_factory=list)

    FIELDS: ClassVar[tuple[Field, ...]] = _with_our_runs(ShareUpdateValue.FIELDS)


def _snapshot(value: _SnapshotValue) -> Snapshot:
    return Snapshot(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        value.create_timestamp,
        value.write_timestamp,
        _runs(value.runs),
    )


def _update(value: _UpdateValue) -> Update:
    return Update(
        value.snapshot_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _runs(value.runs),
    )


def _runs(found: Sequence[_Batch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(
            each.first_offset,
            each.last_offset,
            state_of(each.delivery_state),
            each.delivery_count,
            each.not_before_ms,
        )
        for each in found
    )


@cache
def _key_decoder() -> Decoder:
    # Both keys have the same fields.
    return compile_decoder(ShareSnapshotKey, 0, flexible=False)


@cache
def _snapshot_decoder() -> Decoder:
    return compile_decoder(_SnapshotValue, 0, flexible=True)


@cache
def _update_decoder() -> Decoder:
    return compile_decoder(_UpdateValue, 0, flexible=True)
