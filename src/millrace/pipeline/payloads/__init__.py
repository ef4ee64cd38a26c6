"""Payloads of records as columns: JSON, Avro, Protobuf; what does not parse is set aside."""

from __future__ import annotations

from millrace.pipeline.payloads.columns import Decoded, decode, encode
from millrace.pipeline.payloads.dead_letters import (
    dead_letters,
    with_dead_letters,
    write_stream_with_dead_letters,
)
from millrace.pipeline.payloads.schemas import FORMATS, read_payload

__all__ = [
    "FORMATS",
    "Decoded",
    "dead_letters",
    "decode",
    "encode",
    "read_payload",
    "with_dead_letters",
    "write_stream_with_dead_letters",
]
