"""Raw record batches into Arrow: checks, inflates, leaves out what readers must not see, and cuts columns.

Left out are control records and, for committed reads, records of aborted transactions. Nothing here talks to
brokers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from millrace.pipeline.records.fields import Fields, cut_ranges, read_fields, read_headers
from millrace.pipeline.records.row_schema import COLUMN_TYPES, HEADER_TYPE, HEADERS_TYPE, arrow_schema
from millrace.pipeline.records.walk import Bytes, Positions, record_starts
from millrace.wire.batch_header import (
    CODEC_MAX,
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    OFFSET_AND_LENGTH,
    TIMESTAMP_TYPE_BIT,
    read_header,
)
from millrace.wire.compression import Codec, CorruptCompression, decompress
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import ControlType, read_control_marker, read_records

_GROUP_BYTES_MAX: Final = 64 << 20
"""Inflated batches are decoded together up to this size; Arrow's offsets have 32 bits."""
_BATCH_BYTES_MAX: Final = 1 << 30
"""The most bytes that one batch may inflate to."""
_INT64_MAX: Final = 2**63 - 1


class StoredBatch(NamedTuple):
    """What the decoder needs of a batch: its place in the fetched bytes and its header."""

    start: int
    end: int
    base_offset: int
    last_offset_delta: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    records_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Rows to keep: offsets in [offset_from, offset_to), timestamps in [from, to] of microseconds."""

    offset_from: int = 0
    offset_to: int = _INT64_MAX
    timestamp_from_us: int | None = None
    timestamp_to_us: int | None = None


@dataclass(slots=True, kw_only=True)
class Scan:
    """The batches of a fetch that hold rows, and where to fetch next."""

    batches: list[StoredBatch] = field(default_factory=list)
    next_offset: int
    bytes_read: int = 0
    """Bytes of the whole batches among the fetched ones."""


def scan_batches(
    records: memoryview,
    offset: int,
    end_offset: int,
    aborted: list[tuple[int, int]],
    *,
    check_crc: bool = True,
) -> Scan:
    """Read the headers of all whole batches from `offset` up to `end_offset`.

    `aborted` are (producer id, first offset) of aborted transactions, empty for uncommitted reads.
    Raises MalformedBatch for a wrong checksum or format.
    """
    scan = Scan(next_offset=offset)
    waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    aborting: set[int] = set()
    position, total = 0, len(records)
    while position + HEADER_SIZE <= total and scan.next_offset < end_offset:
        base_offset, length = OFFSET_AND_LENGTH.unpack_from(records, position)
        end = position + LENGTH_END + length
        if records[position + MAGIC_AT] != MAGIC:
            raise MalformedBatch(
                f"format {records[position + MAGIC_AT]} is not supported, only 2", base_offset=base_offset
            )
        if length < HEADER_SIZE - LENGTH_END:
            raise MalformedBatch(f"a batch of {length} bytes", base_offset=base_offset)
        if end > total:
            break
        header = read_header(records, position)
        if check_crc and header.crc != crc32c(records[position + CRC_START : end]):
            raise MalformedBatch("wrong checksum", base_offset=base_offset)
        count = header.records_count
        if count < 0 or header.last_offset_delta < 0:
            raise MalformedBatch(
                f"count {count}, last offset delta {header.last_offset_delta}", base_offset=base_offset
            )
        last_offset = header.last_offset
        while waiting and waiting[-1][1] <= last_offset:
            aborting.add(waiting.pop()[0])
        is_aborting = header.producer_id in aborting
        if header.is_control:
            if is_aborting and _is_abort(records[position:end]):
                aborting.discard(header.producer_id)
        elif count and last_offset >= offset and not (header.is_transactional and is_aborting):
            scan.batches.append(
                StoredBatch(
                    position,
                    end,
                    base_offset,
                    header.last_offset_delta,
                    header.attributes,
                    header.base_timestamp,
                    header.max_timestamp,
                    count,
                )
            )
        # A batch in front of the offset asked for never moves the reader back.
        scan.next_offset = max(scan.next_offset, last_offset + 1)
        position = end
    scan.bytes_read = position
    return scan


def _is_abort(batch: memoryview) -> bool:
    for record in read_records(batch):
        marker = read_control_marker(record.key, record.value)
        if marker is not None and marker.type == ControlType.ABORT:
            return True
    return False


class Decoder:
    """Decodes rows of one partition. Keeps columns that repeat one value, and cuts them to length."""

    def __init__(self, topic: str, partition: int, columns: tuple[str, ...]) -> None:
        self.schema = arrow_schema(columns)
        self._columns = columns
        self._topic = topic
        self._partition = partition
        self._repeated: dict[tuple[str, int], pa.Array] = {}

    def decode(
        self, records: memoryview, batches: list[StoredBatch], rows: RowFilter
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the batches that a scan of `records` found; they share no memory with `records`."""
        while batches:
            group, data, spans = _inflate_group(records, batches)
            batches = batches[len(group) :]
            decoded = self._decode_group(group, data, spans, rows)
            if decoded is not None:
                yield decoded

    def _decode_group(
        self, batches: list[StoredBatch], data: Bytes, spans: list[tuple[int, int]], rows: RowFilter
    ) -> pa.RecordBatch | None:
        # One array for each field of `StoredBatch`, in its order.
        _, _, base_offset, last_offset_delta, attributes, base_timestamp, max_timestamp, counts = np.array(
            batches, np.int64
        ).T
        bounds = np.array(spans, np.int64)
        try:
            starts = record_starts(data, bounds[:, 0], bounds[:, 1], counts)
            fields = read_fields(data, starts)
        except MalformedBatch as error:
            first, last = batches[0].base_offset, batches[-1].base_offset
            place = f"batches at offsets {first} to {last}"
            raise MalformedBatch(f"{self._topic}-{self._partition}, {place}: {error.reason}") from None
        batch_of = np.repeat(np.arange(len(batches)), counts)
        offset = fields.offset_delta + base_offset[batch_of]
        # Readers rely on this check: from a wrong offset they would go on at a wrong position.
        if (fields.offset_delta < 0).any() or (fields.offset_delta > last_offset_delta[batch_of]).any():
            raise MalformedBatch("offset deltas out of range", base_offset=batches[0].base_offset)
        appended = (attributes & TIMESTAMP_TYPE_BIT) != 0
        timestamp_us = (fields.timestamp_delta + base_timestamp[batch_of]) * 1000
        if appended.any():
            timestamp_us = np.where(appended[batch_of], max_timestamp[batch_of] * 1000, timestamp_us)
        kept = _kept(offset, timestamp_us, rows)
        if kept is not None:
            if not kept.any():
                return None
            fields = fields.select(kept)
            offset, timestamp_us, batch_of = offset[kept], timestamp_us[kept], batch_of[kept]
        return self._assemble(data, fields, offset, timestamp_us, appended, batch_of)

    def _assemble(
        self,
        data: Bytes,
        fields: Fields,
        offset: Positions,
        timestamp_us: Positions,
        appended: NDArray[np.bool_],
        batch_of: Positions,
    ) -> pa.RecordBatch:
        count = len(offset)
        buffer = pa.py_buffer(data)
        arrays = self._cut(buffer, fields)
        for name in self._columns:
            if name == "topic":
                arrays[name] = self._repeat(name, self._topic, count)
            elif name == "partition":
                arrays[name] = self._repeat(name, self._partition, count)
            elif name == "offset":
                arrays[name] = pa.array(offset)
            elif name == "timestamp":
                arrays[name] = pa.Array.from_buffers(
                    COLUMN_TYPES[name], count, [None, pa.py_buffer(np.ascontiguousarray(timestamp_us))]
                )
            elif name == "timestampType":
                if appended.any() and not appended.all():
                    arrays[name] = pa.array(appended[batch_of].astype(np.int32))
                else:
                    arrays[name] = self._repeat(name, int(appended.any()), count)
            elif name == "headers":
                arrays[name] = _headers_column(data, buffer, fields)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self.schema)

    def _cut(self, buffer: pa.Buffer, fields: Fields) -> dict[str, pa.Array]:
        ranges = {
            "key": (fields.key_start, fields.key_end, fields.key_is_null),
            "value": (fields.value_start, fields.value_end, fields.value_is_null),
        }
        wanted = [name for name in ranges if name in self._columns]
        if not wanted:
            return {}
        arrays = cut_ranges(buffer, [ranges[name] for name in wanted], [pa.binary()] * len(wanted))
        return dict(zip(wanted, arrays, strict=True))

    def _repeat(self, column: str, value: str | int, count: int) -> pa.Array:
        key = (column, value if isinstance(value, int) else 0)
        column_of_many = self._repeated.get(key)
        if column_of_many is None or len(column_of_many) < count:
            column_of_many = pa.repeat(pa.scalar(value, COLUMN_TYPES[column]), max(count, 1024))
            self._repeated[key] = column_of_many
        return column_of_many.slice(0, count)


def _inflate_group(
    records: memoryview, batches: list[StoredBatch]
) -> tuple[list[StoredBatch], Bytes, list[tuple[int, int]]]:
    """The batches to decode together, the bytes of their records in one piece, and where each one's are."""
    if not any(batch.attributes & COMPRESSION_MASK for batch in batches):
        spans = [(batch.start + HEADER_SIZE, batch.end) for batch in batches]
        return batches, np.frombuffer(records, np.uint8), spans
    parts: list[bytes | bytearray | memoryview] = []
    spans = []
    position = 0
    for batch in batches:
        if position > _GROUP_BYTES_MAX:
            break
        part = _inflate(records[batch.start + HEADER_SIZE : batch.end], batch)
        parts.append(part)
        spans.append((position, position + len(part)))
        position += len(part)
    return batches[: len(parts)], np.frombuffer(b"".join(parts), np.uint8), spans


def _inflate(payload: memoryview, batch: StoredBatch) -> bytes | bytearray | memoryview:
    codec = batch.attributes & COMPRESSION_MASK
    if codec == Codec.NONE:
        return payload
    if codec > CODEC_MAX:
        raise MalformedBatch(f"unknown compression {codec}", base_offset=batch.base_offset)
    try:
        return decompress(Codec(codec), payload, _BATCH_BYTES_MAX)
    except (CorruptCompression, struct.error) as error:
        raise MalformedBatch(str(error), base_offset=batch.base_offset) from None


def _kept(offset: Positions, timestamp_us: Positions, rows: RowFilter) -> NDArray[np.bool_] | None:
    """Which rows to keep; None for all of them."""
    kept: NDArray[np.bool_] | None = None
    if int(offset.min()) < rows.offset_from or int(offset.max()) >= rows.offset_to:
        kept = (offset >= rows.offset_from) & (offset < rows.offset_to)
    if rows.timestamp_from_us is not None:
        late_enough = timestamp_us >= rows.timestamp_from_us
        kept = late_enough if kept is None else kept & late_enough
    if rows.timestamp_to_us is not None:
        early_enough = timestamp_us <= rows.timestamp_to_us
        kept = early_enough if kept is None else kept & early_enough
    return None if kept is None or bool(kept.all()) else kept


def _headers_column(data: Bytes, buffer: pa.Buffer, fields: Fields) -> pa.Array:
    """The column of headers: null for a record without any, as in Spark's own source."""
    headers = read_headers(data, fields)
    counts = fields.header_count
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    if len(headers.key_start):
        never = np.zeros(len(headers.key_start), np.bool_)
        keys, values = cut_ranges(
            buffer,
            [
                (headers.key_start, headers.key_end, never),
                (headers.value_start, headers.value_end, headers.value_is_null),
            ],
            [pa.string(), pa.binary()],
        )
    else:
        keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    without = pa.array(counts == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS_TYPE, mask=without)
