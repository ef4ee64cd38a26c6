"""Rows as Arrow columns into the records of Kafka batches, without a Python object for any row.

A record is the join of a few byte strings: a prefix of varints, the key, the value's length, the value, the
headers. Arrow joins whole columns of them into one buffer; numpy makes the columns of varints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client.transactional import EncodedBatch
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.wire.compression import Codec, compress

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Varints = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""One row of bytes for each number, padded to the longest, and how many of them count."""

RECORD_OVERHEAD_MAX: Final = 36
"""All varints and the attributes of one record, at their longest."""
_NO_BYTES: Final = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Rows to be written, as columns of equal length: bytes, or None where the column does not exist."""

    key: pa.BinaryArray | None
    value: pa.BinaryArray
    headers: pa.ListArray | None
    timestamps: Int64s
    """In milliseconds, without nulls."""

    def __len__(self) -> int:
        return len(self.value)

    def take(self, order: Int64s) -> Columns:
        rows = pa.array(order)
        return Columns(
            key=None if self.key is None else self.key.take(rows),
            value=self.value.take(rows),
            headers=None if self.headers is None else self.headers.take(rows),
            timestamps=self.timestamps[order],
        )


class BinaryView(NamedTuple):
    """The buffers of a binary array as numpy sees them; a null has size 0 and is not valid."""

    data: Bytes
    starts: Int64s
    sizes: Int64s
    valid: npt.NDArray[np.bool_] | None
    """None where all are valid."""


def view_binary(array: pa.BinaryArray) -> BinaryView:
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0:
        return BinaryView(_NO_BYTES, np.zeros(0, np.int64), np.zeros(0, np.int64), None)
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    starts = offsets[:-1].astype(np.int64)
    sizes = offsets[1:].astype(np.int64) - starts
    data = _NO_BYTES if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if array.null_count == 0:
        return BinaryView(data, starts, sizes, None)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return BinaryView(data, starts, np.where(valid, sizes, 0), valid)


def encode(
    columns: Columns,
    destinations: npt.NDArray[np.int64],
    partitions: Sequence[TopicPartition],
    *,
    batch_bytes_max: int,
    codec: Codec = Codec.NONE,
) -> list[EncodedBatch]:
    """Encode rows into batches of at most `batch_bytes_max` (one record may be larger), in their order.

    Row i goes to `partitions[destinations[i]]`.
    """
    if len(columns) == 0:
        return []
    if np.any(destinations[1:] < destinations[:-1]):
        order = np.argsort(destinations, kind="stable").astype(np.int64)
        columns, destinations = columns.take(order), destinations[order]
    headers = None if columns.headers is None else _Headers(columns.headers)
    key = None if columns.key is None else view_binary(columns.key)
    value = view_binary(columns.value)
    sizes = value.sizes + RECORD_OVERHEAD_MAX
    if key is not None:
        sizes = sizes + key.sizes
    if headers is not None:
        sizes = sizes + headers.sizes
    bounds = _batch_bounds(destinations, np.cumsum(sizes), batch_bytes_max)
    data, offsets = _records(columns, key, value, headers, np.array(bounds, np.int64))
    batches: list[EncodedBatch] = []
    for start, end in zip(bounds, [*bounds[1:], len(columns)], strict=True):
        payload: bytes | memoryview = data[int(offsets[start]) : int(offsets[end])]
        if codec is not Codec.NONE:
            payload = compress(codec, payload)
        times = columns.timestamps[start:end]
        batches.append(
            EncodedBatch(
                partition=partitions[int(destinations[start])],
                record_count=end - start,
                base_timestamp=int(times[0]),
                max_timestamp=int(times.max()),
                codec=codec,
                payload=payload,
            )
        )
    return batches


def _batch_bounds(destinations: Int64s, size_sums: Int64s, limit_bytes: int) -> list[int]:
    """Where batches begin: at each new destination, and before a record that would be too much."""
    changes = np.flatnonzero(destinations[1:] != destinations[:-1]) + 1
    run_starts = [0, *changes.tolist()]
    bounds: list[int] = []
    for start, end in zip(run_starts, [*run_starts[1:], len(destinations)], strict=True):
        at = start
        while at < end:
            bounds.append(at)
            before = int(size_sums[at - 1]) if at else 0
            fitting = int(np.searchsorted(size_sums[at:end], before + limit_bytes, side="right"))
            at += max(1, fitting)
    return bounds


def _records(
    columns: Columns, key: BinaryView | None, value: BinaryView, headers: _Headers | None, bounds: Int64s
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """All records one behind the other, and where each begins; deltas count from the bounds."""
    count = len(columns)
    starts = np.repeat(bounds, np.diff(np.append(bounds, count)))
    timestamp = _varints(columns.timestamps - columns.timestamps[starts])
    offset = _varints(np.arange(count, dtype=np.int64) - starts)
    key_size = _constant(b"\x01", count) if key is None else _varints(_lengths(key))
    value_size = _varints(_lengths(value))
    header_count = None if headers is None else _varints(headers.counts)
    body = 1 + timestamp[1] + offset[1] + key_size[1] + value_size[1] + value.sizes
    if key is not None:
        body += key.sizes
    if headers is None or header_count is None:
        body += 1
    else:
        body += header_count[1] + headers.sizes
    prefix = _ragged([_varints(body), _constant(b"\0", count), timestamp, offset, key_size])
    parts: list[Any] = [prefix]
    if columns.key is not None:
        parts.append(columns.key)
    parts += [_ragged([value_size]), columns.value]
    if headers is None or header_count is None:
        parts.append(pa.scalar(b"\0", pa.binary()))
    else:
        parts += [_ragged([header_count]), headers.encoded]
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=""
    )
    _, offsets_buffer, data_buffer = joined.buffers()
    return memoryview(data_buffer), np.frombuffer(offsets_buffer, np.int32)


class _Headers:
    """The headers of all rows: how many, how many bytes, and the bytes without the count in front."""

    __slots__ = ("counts", "encoded", "sizes")

    def __init__(self, lists: pa.ListArray) -> None:
        lengths = pc.fill_null(lists.value_lengths(), 0)
        self.counts: Int64s = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        keys, values = lists.flatten().flatten()
        if keys.null_count:
            raise PipelineError("a header has no key: each needs one; its value may be null")
        keys, values = keys.cast(pa.binary()), values.cast(pa.binary())
        joined = pc.binary_join_element_wise(
            _ragged([_varints(_lengths(view_binary(keys)))]),
            keys,
            _ragged([_varints(_lengths(view_binary(values)))]),
            values,
            pa.scalar(b"", pa.binary()),
            null_handling="replace",
            null_replacement="",
        )
        # Headers of one row lie side by side, so the bytes of a row are a longer stretch of the same buffer.
        _, offsets_buffer, data_buffer = joined.buffers()
        firsts = np.concatenate(([0], np.cumsum(self.counts)))
        offsets = (
            np.frombuffer(offsets_buffer, np.int32)[firsts]
            if len(joined)
            else np.zeros(len(firsts), np.int32)
        )
        self.sizes: Int64s = np.diff(offsets).astype(np.int64)
        self.encoded = pa.BinaryArray.from_buffers(
            pa.binary(), len(lists), [None, pa.py_buffer(offsets), data_buffer or pa.py_buffer(b"")]
        )


def _lengths(view: BinaryView) -> Int64s:
    """Sizes as records state them: -1 for a null."""
    return view.sizes if view.valid is None else np.where(view.valid, view.sizes, -1)


def _constant(content: bytes, count: int) -> Varints:
    row = np.frombuffer(content, np.uint8)
    return np.broadcast_to(row, (count, len(row))), np.full(count, len(row), np.int64)


def _varints(numbers: Int64s) -> Varints:
    """The numbers as zigzag varints."""
    folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    largest = int(folded.max()) if len(folded) else 0
    width_max = max(1, -(-largest.bit_length() // 7))
    widths = np.ones(len(numbers), np.int64)
    content = np.empty((len(numbers), width_max), np.uint8)
    for place in range(width_max):
        rest = folded >> np.uint64(7 * place)
        if place:
            widths += rest > 0
        more = (rest > 127).astype(np.uint8) << 7
        content[:, place] = (rest & np.uint64(127)).astype(np.uint8) | more
    return content, widths


def _ragged(fields: Sequence[Varints]) -> pa.BinaryArray:
    """One binary value for each row: its fields side by side, without their padding."""
    sizes = sum((widths for _, widths in fields), np.zeros(len(fields[0][1]), np.int64))
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    content = np.concatenate([content for content, _ in fields], axis=1)
    if int(offsets[-1]) != content.size:
        kept = np.concatenate(
            [np.arange(content.shape[1]) < widths[:, None] for content, widths in fields], axis=1
        )
        content = content[kept]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    )
