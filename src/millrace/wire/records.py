"""Records of v2 batches as objects, and batches built from them. The append path must never come here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from millrace.core.ids import NO_EPOCH, NO_PRODUCER_ID
from millrace.wire.batch_header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    UINT32,
    BatchHeader,
    read_header,
)
from millrace.wire.compression import Codec, CorruptCompression, compress, decompress
from millrace.wire.record_spans import (
    INT64_MAX,
    MalformedBatch,
    RecordSpan,
    append_varint,
    read_varint,
    scan_records,
)

__all__ = [
    "ControlMarker",
    "ControlType",
    "Header",
    "MalformedBatch",
    "Record",
    "RecordSpan",
    "append_record",
    "assemble_batch",
    "build_batch",
    "build_marker",
    "build_plain_batch",
    "check_batch",
    "inflate_records",
    "read_control_marker",
    "read_record",
    "read_records",
    "scan_records",
    "split_batches",
]

Buffer = bytes | bytearray | memoryview

Header = tuple[str, bytes | None]
"""Keys that are not UTF-8 survive as surrogate escapes."""

INFLATED_BYTES_MAX: Final = 1 << 30
"""The bound for readers of our own disk, who know no topic's settings."""

_CODECS: Final = tuple(Codec)
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_INT64_MIN: Final = -(2**63)


class Record(NamedTuple):
    """One record with its absolute offset and timestamp; null and empty are different for keys and values."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class ControlType:
    """The types of control records that a log may hold."""

    ABORT: Final = 0
    COMMIT: Final = 1


class ControlMarker(NamedTuple):
    """The end of a transaction, as its control record states it."""

    type: int
    coordinator_epoch: int


def check_batch(batch: Buffer) -> BatchHeader:
    """The header of exactly one whole batch of magic 2 with right checksum and counts, or MalformedBatch."""
    if len(batch) < HEADER_SIZE:
        raise MalformedBatch(f"{len(batch)} bytes are too few for a header")
    header = read_header(batch)
    if header.magic != MAGIC:
        raise MalformedBatch(f"magic {header.magic} instead of {MAGIC}", base_offset=header.base_offset)
    if header.batch_length + LENGTH_END != len(batch):
        raise MalformedBatch(
            f"its header says {header.size_bytes} bytes, {len(batch)} are there",
            base_offset=header.base_offset,
        )
    if header.crc != crc32c(memoryview(batch)[CRC_START:]):
        raise MalformedBatch("wrong checksum", base_offset=header.base_offset)
    if header.records_count < 0 or header.last_offset_delta < 0:
        raise MalformedBatch(
            f"a negative count: {header.records_count} records, last offset delta {header.last_offset_delta}",
            base_offset=header.base_offset,
        )
    if header.base_offset < 0 or header.base_offset > INT64_MAX - header.last_offset_delta:
        raise MalformedBatch("offsets out of range", base_offset=header.base_offset)
    return header


def split_batches(data: memoryview) -> list[memoryview]:
    """The batches of a records field by their lengths alone; MalformedBatch unless they fill it exactly."""
    batches = []
    position = 0
    while position < len(data):
        if position + HEADER_SIZE > len(data):
            raise MalformedBatch(f"{len(data) - position} bytes follow the last batch")
        size = read_header(data, position).size_bytes
        if not HEADER_SIZE <= size <= len(data) - position:
            raise MalformedBatch(f"a batch of {size} bytes where {len(data) - position} remain")
        batches.append(data[position : position + size])
        position += size
    return batches


def inflate_records(
    batch: Buffer, header: BatchHeader, limit_bytes: int = INFLATED_BYTES_MAX
) -> bytes | bytearray:
    """The records part of a checked batch, decompressed; MalformedBatch or DecompressedTooLarge."""
    codec_id = header.attributes & COMPRESSION_MASK
    if codec_id >= len(_CODECS):
        raise MalformedBatch(f"no compression type has the number {codec_id}", base_offset=header.base_offset)
    # A batch that compaction emptied keeps its header only, whatever codec it had.
    if header.records_count == 0 and len(batch) == HEADER_SIZE:
        return b""
    try:
        return decompress(_CODECS[codec_id], memoryview(batch)[HEADER_SIZE:], limit_bytes)
    except CorruptCompression as error:
        raise MalformedBatch(str(error), base_offset=header.base_offset) from None


def read_records(batch: Buffer, limit_bytes: int = INFLATED_BYTES_MAX) -> list[Record]:
    """All records of one batch; MalformedBatch or DecompressedTooLarge for anything that is not right."""
    header = check_batch(batch)
    data = bytes(inflate_records(batch, header, limit_bytes))
    append_time = header.max_timestamp if header.is_log_append_time else None
    return [_read_record(data, span, header, append_time) for span in scan_records(data, header)]


def read_record(data: bytes, span: RecordSpan, header: BatchHeader) -> Record:
    """One record among the inflated ones of a batch, where `scan_records` has found it."""
    return _read_record(data, span, header, header.max_timestamp if header.is_log_append_time else None)


def append_record(output: bytearray, offset_delta: int, timestamp_delta: int, record: Record) -> None:
    """Encode one record behind `output`; only its key, value and headers are taken from `record`."""
    body = bytearray(1)
    append_varint(body, timestamp_delta)
    append_varint(body, offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_bytes(body, key.encode("utf-8", "surrogateescape"))
        _append_bytes(body, value)
    append_varint(output, len(body))
    output += body


def assemble_batch(
    header: BatchHeader, records: Buffer, codec: Codec = Codec.NONE, level: int | None = None
) -> bytes:
    """A batch from encoded records; the header's length, checksum and codec bits are computed here."""
    payload = compress(codec, records, level)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    batch = bytearray(
        HEADER.pack(
            *header._replace(
                batch_length=HEADER_SIZE - LENGTH_END + len(payload),
                magic=MAGIC,
                crc=0,
                attributes=attributes,
            )
        )
    )
    batch += payload
    UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = NO_EPOCH,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """One batch of records in offset order; gaps between offsets are kept, as compaction leaves them."""
    if base_offset is None:
        base_offset = records[0].offset if records else 0
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    attributes = 0
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    if append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_BIT
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    encoded = bytearray()
    for record in records:
        append_record(encoded, record.offset - base_offset, record.timestamp - base_timestamp, record)
    newest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=newest if append_time_ms is None else append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(records),
    )
    return assemble_batch(header, encoded, codec, level)


def build_plain_batch(records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int) -> bytearray:
    """A batch of keys and values at one time, uncompressed and without headers, as coordinators write them.

    The same bytes as `build_batch` makes, in a fraction of the time: each commit of offsets makes one."""
    try:
        parts = _plain_records(records, _VARINTS.__getitem__)
    except IndexError:
        # Something is longer than nearly all internal records are.
        parts = _plain_records(records, _encoded_varint)
    batch = bytearray().join(parts)
    size = len(batch)
    count = len(records)
    HEADER.pack_into(
        batch,
        0,
        0,
        size - LENGTH_END,
        NO_EPOCH,
        MAGIC,
        0,
        0,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        NO_PRODUCER_ID,
        -1,
        NO_SEQUENCE,
        count,
    )
    UINT32.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _plain_records(
    records: Sequence[tuple[bytes, bytes | None]], varint: Callable[[int], bytes]
) -> list[bytes]:
    """Room for a header, then each record behind its length."""
    parts = [bytes(HEADER_SIZE)]
    for offset_delta, (key, value) in enumerate(records):
        # Attributes and the timestamp's delta are zero; there are no headers.
        if value is None:
            body = b"\0\0%b%b%b\1\0" % (varint(offset_delta), varint(len(key)), key)
        else:
            body = b"\0\0%b%b%b%b%b\0" % (
                varint(offset_delta),
                varint(len(key)),
                key,
                varint(len(value)),
                value,
            )
        parts.append(varint(len(body)))
        parts.append(body)
    return parts


def _encoded_varint(value: int) -> bytes:
    output = bytearray()
    append_varint(output, value)
    return bytes(output)


_VARINTS: Final = tuple(_encoded_varint(value) for value in range(512))
"""Lengths and offsets of internal records are nearly always small."""


def build_marker(
    marker: ControlMarker,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = NO_EPOCH,
) -> bytes:
    """The control batch that ends a transaction."""
    record = Record(
        offset,
        timestamp,
        _MARKER_KEY.pack(0, marker.type),
        _MARKER_VALUE.pack(0, marker.coordinator_epoch),
    )
    return build_batch(
        [record],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_control_marker(key: bytes | None, value: bytes | None) -> ControlMarker | None:
    """What a control record says, None if it is not the end of a transaction; MalformedBatch if damaged."""
    if key is None or len(key) < _MARKER_KEY.size:
        raise MalformedBatch("a control record without a type")
    _, control_type = _MARKER_KEY.unpack_from(key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise MalformedBatch("a transaction marker without a coordinator epoch")
    return ControlMarker(control_type, _MARKER_VALUE.unpack_from(value)[1])


def _append_bytes(output: bytearray, data: bytes | None) -> None:
    if data is None:
        output.append(1)
    else:
        append_varint(output, len(data))
        output += data


def _read_record(data: bytes, span: RecordSpan, header: BatchHeader, append_time: int | None) -> Record:
    offset_delta, timestamp_delta, key_start, key_end, value_is_null, start, _ = span
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    if not _INT64_MIN <= timestamp <= INT64_MAX:
        raise MalformedBatch("timestamp out of range", base_offset=header.base_offset)
    key = None if key_start < 0 else data[key_start:key_end]
    value_at = key_end
    if key_start < 0:
        # The value stands behind length, attributes, the two deltas and the one byte of a null key's length.
        _, position = read_varint(data, start)
        _, position = read_varint(data, position + 1, 10)
        _, position = read_varint(data, position)
        value_at = position + 1
    length, position = read_varint(data, value_at)
    value = None if value_is_null else data[position : position + length]
    if not value_is_null:
        position += length
    return Record(header.base_offset + offset_delta, timestamp, key, value, _read_headers(data, position))


def _read_headers(data: bytes, position: int) -> tuple[Header, ...]:
    """The headers of a record whose lengths `scan_records` has checked."""
    count, position = read_varint(data, position)
    headers: list[Header] = []
    for _ in range(count):
        length, position = read_varint(data, position)
        key = data[position : position + length].decode("utf-8", "surrogateescape")
        length, position = read_varint(data, position + length)
        if length < 0:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + length]))
            position += length
    return tuple(headers)
