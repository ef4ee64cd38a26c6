"""The fields of many records at once: numpy arrays of positions and numbers, and Arrow columns cut out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millrace.pipeline.records.walk import Bytes, Positions
from millrace.wire.record_spans import MalformedBatch

Flags = NDArray[np.bool_]

_INT32_VARINT_BYTES: Final = 5
_INT64_VARINT_BYTES: Final = 10


@dataclass(slots=True)
class Fields:
    """One element for each record. A null key or value is an empty range with its flag set."""

    offset_delta: Positions
    timestamp_delta: Positions
    key_start: Positions
    key_end: Positions
    key_is_null: Flags
    value_start: Positions
    value_end: Positions
    value_is_null: Flags
    headers_at: Positions
    """Where the first header begins, behind the count of them."""
    header_count: Positions
    end: Positions

    def select(self, chosen: NDArray[Any]) -> Fields:
        return Fields(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(slots=True)
class Headers:
    """One element for each header of all records, in order."""

    key_start: Positions
    key_end: Positions
    value_start: Positions
    value_end: Positions
    value_is_null: Flags


def read_varints(
    data: Bytes, position: Positions, size_max: int = _INT32_VARINT_BYTES
) -> tuple[Positions, Positions]:
    """A zigzag varint at every position, and the positions behind them."""
    byte = data.take(position, mode="clip")
    raw = byte.astype(np.int64)
    after = position + 1
    left = np.flatnonzero(byte > 127)
    if len(left):
        _read_longer(data, raw, after, left, size_max)
    # The shift must not copy the sign: a number of 64 bits fills the topmost one.
    halved = (raw.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return halved ^ -(raw & 1), after


def _read_longer(data: Bytes, raw: Positions, after: Positions, left: Positions, size_max: int) -> None:
    """Read the further bytes of the varints that have more than one."""
    raw[left] &= 127
    for size in range(2, size_max + 1):
        byte = data.take(after[left], mode="clip").astype(np.int64)
        if size == _INT64_VARINT_BYTES and (byte > 1).any():
            raise MalformedBatch("a varint is too long")
        raw[left] |= (byte & 127) << (7 * (size - 1))
        after[left] += 1
        left = left[byte > 127]
        if not len(left):
            return
    raise MalformedBatch("a varint is too long")


def read_fields(data: Bytes, starts: Positions) -> Fields:
    """The fields of the records whose lengths stand at `starts`; MalformedBatch if some do not fit."""
    length, position = read_varints(data, starts)
    end = position + length
    # We skip the attributes, which say nothing.
    timestamp_delta, position = read_varints(data, position + 1, _INT64_VARINT_BYTES)
    offset_delta, position = read_varints(data, position)
    key_start, key_end, key_is_null = _read_range(data, position, "key")
    value_start, value_end, value_is_null = _read_range(data, key_end, "value")
    header_count, headers_at = read_varints(data, value_end)
    if (header_count < 0).any() or (headers_at + 2 * header_count > end).any():
        raise MalformedBatch("a record's fields do not fit its length")
    without = header_count == 0
    if not np.array_equal(headers_at[without], end[without]):
        raise MalformedBatch("a record's fields do not fill its length")
    return Fields(
        offset_delta,
        timestamp_delta,
        key_start,
        key_end,
        key_is_null,
        value_start,
        value_end,
        value_is_null,
        headers_at,
        header_count,
        end,
    )


def _read_range(data: Bytes, position: Positions, name: str) -> tuple[Positions, Positions, Flags]:
    """Start and end of a field that begins with its length, and whether it is null."""
    length, start = read_varints(data, position)
    is_null = length < 0
    if is_null.any():
        if (length < -1).any():
            raise MalformedBatch(f"negative {name} length")
        length = np.maximum(length, 0)
    return start, start + length, is_null


def read_headers(data: Bytes, fields: Fields) -> Headers:
    """All headers of all records: one step for the next header of every record that has one more."""
    counts = fields.header_count
    total = int(counts.sum())
    found = Headers(
        key_start=np.empty(total, np.int64),
        key_end=np.empty(total, np.int64),
        value_start=np.empty(total, np.int64),
        value_end=np.empty(total, np.int64),
        value_is_null=np.empty(total, np.bool_),
    )
    first = np.cumsum(counts) - counts
    left = np.flatnonzero(counts)
    position = fields.headers_at[left]
    step = 0
    while len(left):
        key_start, key_end, no_key = _read_range(data, position, "header key")
        value_start, value_end, no_value = _read_range(data, key_end, "header value")
        if no_key.any() or (value_end > fields.end[left]).any():
            raise MalformedBatch("a record's headers do not fit its length")
        place = first[left] + step
        found.key_start[place], found.key_end[place] = key_start, key_end
        found.value_start[place], found.value_end[place] = value_start, value_end
        found.value_is_null[place] = no_value
        step += 1
        more = counts[left] > step
        if not np.array_equal(value_end[~more], fields.end[left][~more]):
            raise MalformedBatch("a record's headers do not fill its length")
        left, position = left[more], value_end[more]
    return found


def cut_ranges(
    data: pa.Buffer, bounds: list[tuple[Positions, Positions, Flags]], types: list[pa.DataType]
) -> list[pa.Array]:
    """Arrow columns of the bytes between bounds. Ranges of one row lie behind each other, in the given order.

    One array over the whole buffer has a range and the gap behind it in turns; Arrow takes every range out of
    it, which costs one copy of the bytes and nothing for each record in Python.
    """
    rows = len(bounds[0][0])
    width = 2 * len(bounds)
    offsets = np.empty((rows, width), np.int32)
    for column, (start, end, _) in enumerate(bounds):
        offsets[:, 2 * column] = start
        offsets[:, 2 * column + 1] = end
    pieces = rows * width - 1
    places = np.arange(rows, dtype=np.int32) * width
    arrays: list[pa.Array] = []
    for column, (_, _, is_null) in enumerate(bounds):
        whole = pa.Array.from_buffers(types[column], pieces, [None, pa.py_buffer(offsets), data], 0)
        chosen = pa.array(places + 2 * column, mask=is_null if is_null.any() else None)
        arrays.append(pc.take(whole, chosen, boundscheck=False))
    return arrays
