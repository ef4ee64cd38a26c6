"""Where each record of an inflated batch lies, without building objects: the walk of compaction and checks.

The bytes come from clients: every length is checked, and anything odd is a MalformedBatch, never another
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.core.errors import MillraceError
from millrace.wire.batch_header import BatchHeader

RecordSpan = tuple[int, int, int, int, bool, int, int]
"""offset_delta, timestamp_delta, key_start (-1 for a null key), key_end, value_is_null, start, end.

Positions count from the start of the inflated records; `start` is where the record's own length stands.
This is a plain tuple, because there is one for every record, and a named tuple takes eight times as long to
make.
"""

INT64_MAX: Final = 2**63 - 1


class MalformedBatch(MillraceError):
    """A batch that no correct producer writes; `base_offset` is what its header says, where it has one."""

    def __init__(
        self, reason: str, *, base_offset: int | None = None, record_index: int | None = None
    ) -> None:
        place = "" if base_offset is None else f" at offset {base_offset}"
        record = "" if record_index is None else f", record {record_index}"
        super().__init__(f"corrupt batch{place}{record}: {reason}")
        self.reason = reason
        self.base_offset = base_offset
        self.record_index = record_index


def scan_records(records: bytes | bytearray, header: BatchHeader) -> Iterator[RecordSpan]:
    """Walk all records of a batch and check every byte's place; MalformedBatch at the first that is wrong.

    Offset deltas must grow and stay within the header's last one, as they do in compacted batches too.
    """
    # One function on purpose: a call for each varint would more than double the time of this loop.
    position = 0
    index = 0
    total = len(records)
    previous_delta = -1
    last_delta = header.last_offset_delta
    try:
        for index in range(header.records_count):
            start = position
            length = records[position]
            position += 1
            if length > 127:
                if records[position] < 128:
                    length = length & 127 | records[position] << 7
                    position += 1
                else:
                    length, position = _raw_varint(records, start)
            end = position + (length >> 1)
            if length & 1 or end > total:
                raise MalformedBatch(
                    "a record's length does not fit", base_offset=header.base_offset, record_index=index
                )
            position += 1

            timestamp_delta = records[position]
            position += 1
            if timestamp_delta > 127:
                if records[position] < 128:
                    timestamp_delta = timestamp_delta & 127 | records[position] << 7
                    position += 1
                else:
                    timestamp_delta, position = _raw_varint(records, position - 1, 10)
            timestamp_delta = timestamp_delta >> 1 ^ -(timestamp_delta & 1)

            offset_delta = records[position]
            position += 1
            if offset_delta > 127:
                if records[position] < 128:
                    offset_delta = offset_delta & 127 | records[position] << 7
                    position += 1
                else:
                    offset_delta, position = _raw_varint(records, position - 1)
            if offset_delta & 1 or not previous_delta < (offset_delta := offset_delta >> 1) <= last_delta:
                raise MalformedBatch(
                    "offset deltas are not in order", base_offset=header.base_offset, record_index=index
                )
            previous_delta = offset_delta

            key_start = position + 1
            key_length = records[position]
            if key_length > 127:
                key_length, key_start = _raw_varint(records, position)
            if key_length & 1:
                if key_length != 1:
                    raise MalformedBatch(
                        "negative key length", base_offset=header.base_offset, record_index=index
                    )
                position = key_start
                key_start = key_end = -1
            else:
                position = key_end = key_start + (key_length >> 1)

            value_length = records[position]
            position += 1
            if value_length > 127:
                if records[position] < 128:
                    value_length = value_length & 127 | records[position] << 7
                    position += 1
                else:
                    value_length, position = _raw_varint(records, position - 1)
            if value_length & 1:
                if value_length != 1:
                    raise MalformedBatch(
                        "negative value length", base_offset=header.base_offset, record_index=index
                    )
            else:
                position += value_length >> 1

            header_count = records[position]
            position += 1
            if header_count:
                position = _skip_headers(records, position - 1)
            if position != end:
                raise MalformedBatch(
                    "its fields do not fill the record's length",
                    base_offset=header.base_offset,
                    record_index=index,
                )
            yield offset_delta, timestamp_delta, key_start, key_end, value_length == 1, start, end
    except IndexError:
        raise MalformedBatch(
            "the record is cut off", base_offset=header.base_offset, record_index=index
        ) from None
    if position != total:
        raise MalformedBatch(
            f"{total - position} bytes follow the last record", base_offset=header.base_offset
        )


def read_varint(data: bytes | bytearray, position: int, size_max: int = 5) -> tuple[int, int]:
    """A zigzag varint and the position behind it; MalformedBatch, or IndexError at the end of the data."""
    raw, position = _raw_varint(data, position, size_max)
    return raw >> 1 ^ -(raw & 1), position


def append_varint(output: bytearray, value: int) -> None:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 127:
        output.append(raw & 127 | 128)
        raw >>= 7
    output.append(raw)


def _raw_varint(data: bytes | bytearray, position: int, size_max: int = 5) -> tuple[int, int]:
    """The unsigned number before zigzag: 5 bytes hold 32 bits, 10 bytes hold 64."""
    raw = 0
    for shift in range(0, 7 * size_max, 7):
        byte = data[position]
        position += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            if raw >> (32 if size_max == 5 else 64):
                break
            return raw, position
    raise MalformedBatch("a varint is too long")


def _skip_headers(data: bytes | bytearray, position: int) -> int:
    count, position = read_varint(data, position)
    # Every header has at least two bytes.
    if not 0 <= count <= (len(data) - position) >> 1:
        raise MalformedBatch(f"{count} record headers do not fit into the record")
    for _ in range(count):
        key_length, position = read_varint(data, position)
        if key_length < 0:
            raise MalformedBatch("a record header without a key")
        value_length, position = read_varint(data, position + key_length)
        if value_length < -1:
            raise MalformedBatch("negative header value length")
        if value_length > 0:
            position += value_length
    return position
