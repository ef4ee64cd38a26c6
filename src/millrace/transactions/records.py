"""The records of `__transaction_state` as Kafka writes them: one type; key and value begin with a number."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from millrace.coordinator.decision import Record
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.transaction_records import TransactionLogKey, TransactionLogValue
from millrace.wire.schema_decoder import Decoder, compile_decoder
from millrace.wire.schema_encoder import Encoder, compile_encoder

_INT16: Final = struct.Struct(">h")
_KEY_TYPE: Final = 0
_VALUE_VERSION: Final = 1
"""The version that Kafka 4.3 writes with transaction version 2."""


class TransactionRecordCodec:
    """Encodes what the rules decide, decodes what a log holds, Kafka's own included."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        key_bytes = _INT16.pack(_KEY_TYPE) + _key_encoder()(key)
        if value is None:
            return key_bytes, None
        return key_bytes, _INT16.pack(_VALUE_VERSION) + _value_encoder()(value)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record, or None for an unknown type or version. Raises MalformedRequest for damaged bytes."""
        if len(key) < _INT16.size:
            raise MalformedRequest(f"a key of {len(key)} bytes has no type")
        if _INT16.unpack_from(key)[0] != _KEY_TYPE:
            return None
        message = _key_decoder()(key, _INT16.size)
        if value is None:
            return Record(message, None)
        if len(value) < _INT16.size:
            raise MalformedRequest(f"a value of {len(value)} bytes has no version")
        (version,) = _INT16.unpack_from(value)
        if not 0 <= version <= _VALUE_VERSION:
            return None
        return Record(message, _value_decoder(version)(value, _INT16.size))


@cache
def _key_encoder() -> Encoder:
    return compile_encoder(TransactionLogKey, 0, flexible=False)


@cache
def _key_decoder() -> Decoder:
    return compile_decoder(TransactionLogKey, 0, flexible=False)


@cache
def _value_encoder() -> Encoder:
    return compile_encoder(TransactionLogValue, _VALUE_VERSION, flexible=True)


@cache
def _value_decoder(version: int) -> Decoder:
    return compile_decoder(TransactionLogValue, version, flexible=version >= 1)
