"""The records of `__consumer_offsets` as Kafka writes them: keys begin with a type, values with a version."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from millrace.coordinator.decision import Record
from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.groups.commands import CommittedOffset
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import uvarint
from millrace.wire.messages import group_records
from millrace.wire.messages.group_records import (
    GROUP_RECORDS,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordSchema,
)
from millrace.wire.messages.share_group_records import SHARE_GROUP_RECORDS
from millrace.wire.messages.streams_group_records import STREAMS_GROUP_RECORDS
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_encoder import Encoder, compile_encoder
from millrace.wire.schema_fields import Message

_INT16: Final = struct.Struct(">h")
_ALL_RECORDS: Final = (*GROUP_RECORDS, *SHARE_GROUP_RECORDS, *STREAMS_GROUP_RECORDS)
_BY_NUMBER: Final = {schema.number: schema for schema in _ALL_RECORDS}
_BY_KEY: Final[dict[type, RecordSchema]] = {schema.key: schema for schema in _ALL_RECORDS}
_OFFSET: Final = 1
"""The type of an offset's key."""
_OFFSET_VERSION: Final = 4
"""The version in which offsets are written."""
_WRITTEN_VERSIONS: Final[dict[type, int]] = {group_records.GroupMetadataValue: 3}
"""The versions that Kafka 4.3 writes. All other values have one version."""
_WITH_EXPIRY: Final = 1
"""The one version of an offset that carries its own expiry."""
_VALUE: Final = struct.Struct(">hqibq")
"""An offset without metadata: version, offset, leader epoch, length of the metadata, time of the commit."""
_VALUE_START: Final = struct.Struct(">hqi")
_TIME: Final = struct.Struct(">q")
_METADATA_LENGTH_MAX: Final = 5
"""How many bytes the length of metadata takes, at most."""


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of an offset's record."""
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (
            _INT16.pack(_OFFSET),
            _INT16.pack(len(group)),
            group,
            _INT16.pack(len(name)),
            name,
            partition.to_bytes(4, "big"),
        )
    )


def offset_tags(topic_id: TopicId) -> bytes:
    """The end of an offset's value: one tagged field, number 0, is the topic's id."""
    return b"\0" if topic_id == NO_TOPIC_ID else b"\1\0" + uvarint(len(topic_id)) + topic_id


def offset_value(offset: int, leader_epoch: int, metadata: bytes, commit_ms: int, tags: bytes) -> bytes:
    """The value of an offset's record without an expiry of its own; `tags` are those of its topic's id."""
    if not metadata:
        return _VALUE.pack(_OFFSET_VERSION, offset, leader_epoch, 1, commit_ms) + tags
    head = _VALUE_START.pack(_OFFSET_VERSION, offset, leader_epoch)
    return head + uvarint(len(metadata) + 1) + metadata + _TIME.pack(commit_ms) + tags


def offset_bytes_max(key: bytes, metadata: bytes, tags: bytes) -> int:
    """How many bytes a record of an offset takes at most, beside what every record takes."""
    return len(key) + _VALUE.size + _METADATA_LENGTH_MAX + len(metadata) + len(tags)


class GroupRecordCodec:
    """Encodes what the rules decide, decodes what a log holds, Kafka's own included. The value of an offset
    is a CommittedOffset, all others are the messages that they are written as."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """The bytes of a record's key and value."""
        key, value = record
        if type(key) is OffsetCommitKey:
            key_bytes = offset_key(key.group, key.topic, key.partition)
            return key_bytes, self.encode_offset(value) if isinstance(value, CommittedOffset) else None
        schema = _BY_KEY[type(key)]
        key_bytes = _INT16.pack(schema.number) + _key_encoder(schema.number)(key)
        if value is None:
            return key_bytes, None
        version = _WRITTEN_VERSIONS.get(type(value), 0)
        return key_bytes, _INT16.pack(version) + _value_encoder(schema.number, version)(value)

    def encode_offset(self, committed: CommittedOffset) -> bytes:
        """The value of an offset's record, in the version that has room for what it says."""
        if committed.expire_ms >= 0:
            return _INT16.pack(_WITH_EXPIRY) + _value_encoder(_OFFSET, _WITH_EXPIRY)(stored_offset(committed))
        return offset_value(
            committed.offset,
            committed.leader_epoch,
            committed.metadata.encode(),
            committed.commit_ms,
            offset_tags(committed.topic_id),
        )

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record, or None for an unknown type or version. Raises MalformedRequest for damaged bytes."""
        if len(key) < _INT16.size:
            raise MalformedRequest(f"a key of {len(key)} bytes has no type")
        (number,) = _INT16.unpack_from(key)
        schema = _BY_NUMBER.get(number)
        if schema is None:
            return None
        message = _key_decoder(number)(key, _INT16.size)
        if number == 0:
            # The key of Kafka 0.8 means the same as today's.
            message = OffsetCommitKey(group=message.group, topic=message.topic, partition=message.partition)
        if value is None:
            return Record(message, None)
        if len(value) < _INT16.size:
            raise MalformedRequest(f"a value of {len(value)} bytes has no version")
        (version,) = _INT16.unpack_from(value)
        schema = _BY_NUMBER[1] if number == 0 else schema
        if not 0 <= version <= schema.value_version_max:
            return None
        decoded = _value_decoder(schema.number, version)(value, _INT16.size)
        return Record(message, committed_offset(decoded) if schema.number == _OFFSET else decoded)


def committed_offset(value: OffsetCommitValue) -> CommittedOffset:
    """What the value of an offset's record says."""
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        TopicId(value.topic_id),
    )


def stored_offset(committed: CommittedOffset) -> OffsetCommitValue:
    """The value of the record that says this."""
    return OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
        topic_id=committed.topic_id,
    )


@cache
def _key_encoder(number: int) -> Encoder:
    return compile_encoder(_BY_NUMBER[number].key, 0, flexible=False)


@cache
def _key_decoder(number: int) -> Decoder:
    return compile_decoder(_BY_NUMBER[number].key, 0, flexible=False)


@cache
def _value_encoder(number: int, version: int) -> Encoder:
    cls, flexible = _value_class(number, version)
    return compile_encoder(cls, version, flexible=flexible)


@cache
def _value_decoder(number: int, version: int) -> Decoder:
    cls, flexible = _value_class(number, version)
    return compile_decoder(cls, version, flexible=flexible)


def _value_class(number: int, version: int) -> tuple[type[Message], bool]:
    schema = _BY_NUMBER[number]
    return schema.value, version >= schema.value_flexible_from
