"""Turns the rows of one Spark task into batches: finds topic, partition and time of each row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client.partitioner import Turns
from millrace.client.transactional import EncodedBatch
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.records.encoder import (
    RECORD_OVERHEAD_MAX,
    BinaryView,
    Columns,
    encode,
    view_binary,
)
from millrace.pipeline.sink.key_hashes import partitions_of_keys
from millrace.pipeline.sink.options import SinkOptions

Int64s = npt.NDArray[np.int64]

_RUN_SHARE: Final = 0.8
"""Rows without a key go to the next partition before a batch is quite full, so that no small rest is left."""


def pieces(batches: Iterable[pa.RecordBatch], size_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of about `size_bytes`: small batches joined, large ones cut."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if batch.nbytes >= size_bytes:
            if held:
                yield _joined(held)
                held, held_bytes = [], 0
            rows = math.ceil(batch.num_rows / math.ceil(batch.nbytes / size_bytes))
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= size_bytes:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


class RowRouter:
    """Knows where each row goes. Rows of one partition keep their order."""

    def __init__(
        self, options: SinkOptions, partition_count: Callable[[str], int], *, first_turn: int
    ) -> None:
        self._options = options
        self._ask_partition_count = partition_count
        self._counts: dict[str, int] = {}
        self._turns: dict[str, Turns] = {}
        self._first_turn = first_turn

    def encode(self, piece: pa.RecordBatch) -> list[EncodedBatch]:
        names = piece.schema.names
        columns = Columns(
            key=_as_binary(piece.column("key")) if "key" in names else None,
            value=_as_binary(piece.column("value")),
            headers=piece.column("headers") if "headers" in names else None,
            timestamps=_timestamps(piece.column("timestamp") if "timestamp" in names else None, len(piece)),
        )
        wanted = piece.column("partition") if "partition" in names else None
        destinations, partitions = self._destinations(piece, columns, wanted)
        return encode(
            columns,
            destinations,
            partitions,
            batch_bytes_max=self._options.batch_bytes_max,
            codec=self._options.codec,
        )

    def _destinations(
        self, piece: pa.RecordBatch, columns: Columns, wanted: pa.Array | None
    ) -> tuple[Int64s, list[TopicPartition]]:
        codes, topics = self._topics(piece)
        key = None if columns.key is None else view_binary(columns.key)
        value = view_binary(columns.value)
        destinations = np.zeros(len(columns), np.int64)
        partitions: list[TopicPartition] = []
        for code, topic in enumerate(topics):
            rows = np.arange(len(columns)) if codes is None else np.flatnonzero(codes == code)
            count = self._count(topic)
            destinations[rows] = len(partitions) + self._partitions(topic, count, rows, key, value, wanted)
            partitions += [TopicPartition(topic, number) for number in range(count)]
        return destinations, partitions

    def _topics(self, piece: pa.RecordBatch) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
        """The topic of each row as an index into a list; None where there is but one."""
        if self._options.topic is not None:
            return None, [self._options.topic]
        column = piece.column("topic")
        if column.null_count:
            raise PipelineError("a row has no topic: its column 'topic' is null, and no option names one")
        encoded = column.dictionary_encode()
        topics: list[str] = encoded.dictionary.to_pylist()
        return (None if len(topics) == 1 else encoded.indices.to_numpy(zero_copy_only=False)), topics

    def _partitions(
        self,
        topic: str,
        count: int,
        rows: Int64s,
        key: BinaryView | None,
        value: BinaryView,
        wanted: pa.Array | None,
    ) -> Int64s:
        """The partition of each of `rows`: as wanted, else by key, else by turns."""
        chosen = np.full(len(rows), -1, np.int64)
        if wanted is not None:
            chosen = _wanted_partitions(wanted, rows, topic, count)
        if key is not None:
            is_keyed = (chosen < 0) if key.valid is None else (chosen < 0) & key.valid[rows]
            if is_keyed.all():
                return partitions_of_keys(key.data, key.starts[rows], key.sizes[rows], count).astype(np.int64)
            keyed = rows[is_keyed]
            chosen[is_keyed] = partitions_of_keys(key.data, key.starts[keyed], key.sizes[keyed], count)
        is_left = chosen < 0
        if is_left.any():
            chosen[is_left] = self._by_turns(topic, count, value.sizes[rows[is_left]])
        return chosen

    def _by_turns(self, topic: str, count: int, sizes: Int64s) -> Int64s:
        turns = self._turns.setdefault(topic, Turns(self._first_turn))
        limit = max(1, int(self._options.batch_bytes_max * _RUN_SHARE))
        runs = (np.cumsum(sizes + RECORD_OVERHEAD_MAX) - 1) // limit
        runs -= runs[0]
        numbers = [turns.take(count) for _ in range(int(runs[-1]) + 1)]
        return np.array(numbers, np.int64)[runs]

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            self._counts[topic] = self._ask_partition_count(topic)
        return self._counts[topic]


def _wanted_partitions(wanted: pa.Array, rows: Int64s, topic: str, count: int) -> Int64s:
    numbers: Int64s = pc.fill_null(wanted.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)[rows]
    is_given = wanted.is_valid().to_numpy(zero_copy_only=False)[rows]
    wrong = numbers[is_given & ((numbers < 0) | (numbers >= count))]
    if len(wrong):
        raise PipelineError(
            f"a row wants partition {wrong[0]} of topic {topic!r}, which has partitions 0 to {count - 1}"
        )
    return numbers.copy()


def _timestamps(column: pa.Array | None, count: int) -> Int64s:
    """Milliseconds; now, where a row has none."""
    now_ms = time.time_ns() // 1_000_000
    if column is None:
        return np.full(count, now_ms, np.int64)
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        found: Int64s = pc.fill_null(micros, now_ms * 1000).to_numpy(zero_copy_only=False) // 1000
    else:
        found = pc.fill_null(column, now_ms).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(found) and int(found.min()) < 0:
        raise PipelineError("a row's timestamp lies before 1970, which records cannot express")
    return found


def _as_binary(column: pa.Array) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
