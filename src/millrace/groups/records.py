"""The records of `__consumer_offsets` as Kafka writes them: keys begin with a type, values with a version."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from millrace.coordinator.decision import Record
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages import group_records
from millrace.wire.messages.group_records import (
    GROUP_RECORDS,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordSchema,
)
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_encoder import Encoder, compile_encoder
from millrace.wire.schema_fields import Message

_INT16: Final = struct.Struct(">h")
_BY_NUMBER: Final = {schema.number: schema for schema in GROUP_RECORDS}
_BY_KEY: Final[dict[type, RecordSchema]] = {schema.key: schema for schema in GROUP_RECORDS}
OFFSET_KEY: Final = _INT16.pack(1)
"""What the key of an offset begins with: its type."""
OFFSET_VALUE: Final = 4
"""The version in which offsets are written."""
_WRITTEN_VERSIONS: Final[dict[type, int]] = {
    OffsetCommitValue: OFFSET_VALUE,
    group_records.GroupMetadataValue: 3,
}
"""What Kafka 4.3 writes. All others have one version."""
_WITH_EXPIRY: Final = 1
"""The one version of an offset that carries its own expiry."""


class GroupRecordCodec:
    """Encodes what the rules decide, decodes what a log holds, Kafka's own included."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        schema = _BY_KEY[type(key)]
        key_bytes = _INT16.pack(schema.number) + _key_encoder(schema.number)(key)
        if value is None:
            return key_bytes, None
        version = _WRITTEN_VERSIONS.get(type(value), 0)
        if isinstance(value, OffsetCommitValue) and value.expire_timestamp >= 0:
            version = _WITH_EXPIRY
        return key_bytes, _INT16.pack(version) + _value_encoder(schema.number, version)(value)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """None for a type or a version that is not known here; MalformedRequest for damaged bytes."""
        if len(key) < _INT16.size:
            raise MalformedRequest(f"a key of {len(key)} bytes")
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
            raise MalformedRequest(f"a value of {len(value)} bytes")
        (version,) = _INT16.unpack_from(value)
        schema = _BY_NUMBER[1] if number == 0 else schema
        if not 0 <= version <= schema.value_version_max:
            return None
        return Record(message, _value_decoder(schema.number, version)(value, _INT16.size))


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
