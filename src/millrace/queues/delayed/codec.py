"""The records of `__delayed_messages`, version 0. `docs/adr/0011-delayed-messages.md` says why they are so.

| kind | key, behind kind and version | value |
|---|---|---|
| 0 stored | topic id, partition, reserved offset | due, produced, replaced and first offset, flags, message |
| 1 cancelled | topic id, partition, reserved offset | nothing |
| 2 intent | topic id, partition | producer id, epoch, sequence, whether again, entries |
| 3 settled | - | entries |
| 4 done | - | store offsets of intents |

An entry is (due time, store offset) of a stored record. The message is the end of a record as it will stand
in the target's log, from the length of its key on: a delivery copies it and decodes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.queues.delayed.model import SCHEDULED_AT, DelayedRecord
from millrace.wire.record_spans import MalformedBatch, append_varint, read_varint
from millrace.wire.records import Header

VERSION: Final = 0
STORED: Final = 0
CANCELLED: Final = 1
INTENT: Final = 2
SETTLED: Final = 3
DONE: Final = 4

REPEATED: Final = 1
"""A flag of stored records: an earlier one may have the same id."""
MOVED: Final = 2
"""A flag of stored records: it takes the place of an earlier one, which the same batch settles."""
NOT_MOVED: Final = -1

_ID: Final = struct.Struct(">BB16siq")
_TARGET: Final = struct.Struct(">BB16si")
_KIND: Final = struct.Struct(">BB")
_STORED: Final = struct.Struct(">qqqqB")
_PRODUCER: Final = struct.Struct(">qhi?")
_HASH_BYTES: Final = 8

Entry: TypeAlias = tuple[int, int]
"""Due time in ms, store offset. A plain tuple: there is one for every message that is due."""


class MalformedRecord(MillraceError):
    """A record of the store that no broker of this version writes."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a record of the store of delayed messages: {reason}")


class MessageId(NamedTuple):
    """What a delayed message is known by: the offset is the one that its producer was told."""

    topic_id: TopicId
    partition: int
    offset: int


class Target(NamedTuple):
    """A partition that messages are delivered to."""

    topic_id: TopicId
    partition: int


class StoredMessage(NamedTuple):
    """A message as it waits."""

    id: MessageId
    due_ms: int
    produced_ms: int
    replaces: int
    """The reserved offset of the message whose place it takes; -1 for none."""
    first_offset: int
    """Where it was stored first, if it was moved since; else NOT_MOVED."""
    flags: int
    message: bytes
    """Key, value and headers in the encoding of a record."""


class Cancelled(NamedTuple):
    """The word that a message is not to be delivered."""

    id: MessageId


class Intent(NamedTuple):
    """What is about to be appended to a target: with these numbers it may be tried again, and is there
    once."""

    target: Target
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_again: bool
    """Whether an earlier intent named the same entries and could not be carried out as it was."""
    entries: tuple[Entry, ...]


class Settled(NamedTuple):
    """Messages that are not pending any more and were not delivered: cancelled, dropped or moved."""

    entries: tuple[Entry, ...]


class Done(NamedTuple):
    """Intents that were carried out."""

    intents: tuple[int, ...]


StoreRecord: TypeAlias = StoredMessage | Cancelled | Intent | Settled | Done


def encode_added(record: DelayedRecord, *, is_repeated: bool = False) -> tuple[bytes, bytes]:
    """Key and value of what the produce path hands over."""
    if record.is_cancellation:
        return _ID.pack(CANCELLED, VERSION, record.topic_id, record.partition, record.replaces), b""
    key = _ID.pack(STORED, VERSION, record.topic_id, record.partition, record.offset)
    flags = REPEATED if is_repeated or record.is_repeated else 0
    head = _STORED.pack(record.due_ms, record.produced_ms, record.replaces, NOT_MOVED, flags)
    return key, head + _message_of(record)


def encode_moved(stored: StoredMessage, offset: int) -> tuple[bytes, bytes]:
    """Key and value of the same message at a later place; `offset` is where it stands now."""
    key = _ID.pack(STORED, VERSION, *stored.id)
    first_offset = offset if stored.first_offset == NOT_MOVED else stored.first_offset
    # Whom it replaces was told when it was stored first.
    head = _STORED.pack(stored.due_ms, stored.produced_ms, -1, first_offset, MOVED)
    return key, head + stored.message


def encode_intent(intent: Intent) -> tuple[bytes, bytes]:
    key = _TARGET.pack(INTENT, VERSION, *intent.target)
    value = bytearray(
        _PRODUCER.pack(intent.producer_id, intent.producer_epoch, intent.base_sequence, intent.is_again)
    )
    _append_entries(value, intent.entries)
    return key, bytes(value)


def encode_settled(entries: Sequence[Entry]) -> tuple[bytes, bytes]:
    value = bytearray()
    _append_entries(value, entries)
    return _KIND.pack(SETTLED, VERSION), bytes(value)


def encode_done(intents: Sequence[int]) -> tuple[bytes, bytes]:
    value = bytearray()
    append_varint(value, len(intents))
    before = 0
    for offset in intents:
        append_varint(value, offset - before)
        before = offset
    return _KIND.pack(DONE, VERSION), bytes(value)


def decode(key: bytes | None, value: bytes | None) -> StoreRecord | None:
    """What a record says; None for a kind or version of a later release. Raises MalformedRecord."""
    if key is None or value is None or len(key) < _KIND.size:
        raise MalformedRecord("it has no kind")
    kind, version = _KIND.unpack_from(key)
    if version != VERSION:
        return None
    try:
        if kind == STORED:
            _, _, topic_id, partition, offset = _ID.unpack(key)
            due_ms, produced_ms, replaces, first_offset, flags = _STORED.unpack_from(value)
            message_id = MessageId(topic_id, partition, offset)
            message = value[_STORED.size :]
            return StoredMessage(message_id, due_ms, produced_ms, replaces, first_offset, flags, message)
        if kind == CANCELLED:
            _, _, topic_id, partition, offset = _ID.unpack(key)
            return Cancelled(MessageId(topic_id, partition, offset))
        if kind == INTENT:
            _, _, topic_id, partition = _TARGET.unpack(key)
            entries = _read_entries(value, _PRODUCER.size)
            producer_id, epoch, sequence, is_again = _PRODUCER.unpack_from(value)
            return Intent(Target(topic_id, partition), producer_id, epoch, sequence, is_again, entries)
        if kind == SETTLED:
            return Settled(_read_entries(value, 0))
        if kind == DONE:
            return Done(tuple(_read_offsets(value)))
    except (struct.error, IndexError, MalformedBatch) as error:
        raise MalformedRecord(str(error)) from None
    return None


def message_parts(message: bytes) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
    """Key, value and headers of a stored message, for those who show it."""
    try:
        key, position = _read_bytes(message, 0)
        value, position = _read_bytes(message, position)
        count, position = read_varint(message, position)
        headers: list[Header] = []
        for _ in range(count):
            name, position = _read_bytes(message, position)
            content, position = _read_bytes(message, position)
            headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))
    except (IndexError, MalformedBatch) as error:
        raise MalformedRecord(str(error)) from None
    return key, value, tuple(headers)


def id_hash(message_id: MessageId) -> int:
    """64 bits by which a message is remembered for a while."""
    return key_hash(_ID.pack(STORED, VERSION, *message_id))


def key_hash(key: bytes) -> int:
    """The same from the key of its record."""
    return int.from_bytes(blake2b(key[_KIND.size :], digest_size=_HASH_BYTES).digest(), "big")


def store_key(topic_id: TopicId, partition: int) -> str:
    """What decides which partition of the store keeps the messages for a target."""
    return f"{topic_id.hex()}-{partition}"


def _message_of(record: DelayedRecord) -> bytes:
    message = bytearray()
    _append_bytes(message, record.key)
    _append_bytes(message, record.value)
    append_varint(message, len(record.headers) + 1)
    for name, content in record.headers:
        _append_bytes(message, name.encode("utf-8", "surrogateescape"))
        _append_bytes(message, content)
    _append_bytes(message, SCHEDULED_AT.encode())
    _append_bytes(message, str(record.produced_ms).encode())
    return bytes(message)


def _append_bytes(output: bytearray, data: bytes | None) -> None:
    append_varint(output, -1 if data is None else len(data))
    output += data or b""


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise MalformedRecord(f"{length} bytes where {len(data) - position} are left")
    return data[position : position + length], position + length


def _append_entries(output: bytearray, entries: Iterable[Entry]) -> None:
    listed = list(entries)
    append_varint(output, len(listed))
    due_before = offset_before = 0
    for due_ms, offset in listed:
        append_varint(output, due_ms - due_before)
        append_varint(output, offset - offset_before)
        due_before, offset_before = due_ms, offset


def _read_entries(data: bytes, position: int) -> tuple[Entry, ...]:
    count, position = read_varint(data, position)
    entries = []
    due_ms = offset = 0
    for _ in range(count):
        delta, position = read_varint(data, position, 10)
        due_ms += delta
        delta, position = read_varint(data, position, 10)
        offset += delta
        entries.append((due_ms, offset))
    return tuple(entries)


def _read_offsets(data: bytes) -> list[int]:
    count, position = read_varint(data, 0)
    offsets = []
    offset = 0
    for _ in range(count):
        delta, position = read_varint(data, position, 10)
        offset += delta
        offsets.append(offset)
    return offsets
