"""Finds the record batches that a share fetch can hand out by their headers alone, and reads no more of a log
than that: what a small fetch costs must not depend on how much waits behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.log.errors import CorruptLog
from millrace.log.partition.isolation import past_damage
from millrace.log.partition.log_slice import LogSlice
from millrace.log.segments.header_walk import BATCH_LENGTH_MIN
from millrace.wire.batch_header import CONTROL_BIT, HEADER, HEADER_SIZE, LENGTH_END, MAGIC, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

CHUNK_BYTES: Final = 8_192
"""How much is read at once: many small batches, or the header of a large one."""
AHEAD_BYTES: Final = 256 * 1_024
"""So far ahead the page cache is asked whether the next headers are there, and so much is brought there."""
SKIP_OFFSETS_MAX: Final = 1_000
"""Headers of so many offsets are passed by on the way to the next range; beyond, the index is asked."""
ALL_BYTES: Final = 1 << 62

_unpack: Final = HEADER.unpack_from


class FoundBatch(NamedTuple):
    """One batch of a log, from its header, and where it is."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    size_bytes: int
    position: int
    source: LogSlice
    data: bytes | None
    """Its bytes, if they were read together with the header."""
    producer_id: int
    """Of transactional records; -1 for all others."""
    is_control: bool


class Found(NamedTuple):
    batches: Sequence[FoundBatch]
    size_bytes: int
    records_count: int
    """Offsets of the batches that are in the ranges."""
    cold: LogSlice | None = None
    """What a thread has to bring into memory before anything can be found. Then there are no batches."""
    missing: Sequence[tuple[int, int]] = ()
    """Ranges of which nothing is left in the log: compacted away."""


NOTHING: Final = Found((), 0, 0)


def find_batches(
    log: PartitionLog,
    ranges: Sequence[tuple[int, int]],
    *,
    limit_offset: int,
    records_max: int,
    bytes_max: int,
) -> Found:
    """The batches that hold the ranges' offsets, in order, until `records_max` offsets are covered: the last
    batch may hold more. They have at most `bytes_max`, but there is at least one, if there is any.

    Raises what a read of the log raises."""
    try:
        return _find(log, ranges, limit_offset, records_max, bytes_max)
    except CorruptLog:
        return past_damage(log, lambda: _find(log, ranges, limit_offset, records_max, bytes_max))


def _find(
    log: PartitionLog,
    ranges: Sequence[tuple[int, int]],
    limit_offset: int,
    records_max: int,
    bytes_max: int,
) -> Found:
    batches: list[FoundBatch] = []
    missing: list[tuple[int, int]] = []
    size_bytes = count = 0
    walk = _Walk(log, limit_offset)
    for first, last in ranges:
        wanted = first
        if batches and (reached := batches[-1].last_offset) >= wanted:
            # A batch is handed out once, however many ranges are in it.
            count += min(reached, last) - wanted + 1
            wanted = reached + 1
        while wanted <= last and count < records_max:
            try:
                batch = walk.batch_at(wanted)
            except CorruptLog as error:
                if batches and error.next_offset is not None:
                    return Found(batches, size_bytes, count, None, missing)
                raise
            if batch is None:
                break
            if batch.first_offset > last:
                if wanted == first:
                    missing.append((first, last))
                break
            if batches and size_bytes + batch.size_bytes > bytes_max:
                return Found(batches, size_bytes, count, None, missing)
            batches.append(batch)
            size_bytes += batch.size_bytes
            count += min(batch.last_offset, last) - max(batch.first_offset, wanted) + 1
            wanted = batch.last_offset + 1
        if walk.cold is not None or count >= records_max:
            break
    if not batches and walk.cold is not None:
        return Found((), 0, 0, walk.cold, missing)
    return Found(batches, size_bytes, count, None, missing)


class _Walk:
    """The headers of a log from some offset on, one file after the other."""

    __slots__ = ("_batches", "_current", "_limit_offset", "_log", "cold")

    def __init__(self, log: PartitionLog, limit_offset: int) -> None:
        self._log = log
        self._limit_offset = limit_offset
        self._batches: Iterator[FoundBatch] | None = None
        self._current: FoundBatch | None = None
        self.cold: LogSlice | None = None
        """Where it had to stop because nobody knows how long a read would take."""

    def batch_at(self, offset: int) -> FoundBatch | None:
        """The batch that holds an offset, or the first one behind it; None if there is none, or it cannot be
        told yet."""
        current = self._current
        if current is not None and current.last_offset + SKIP_OFFSETS_MAX < offset:
            self._batches = current = None
        is_fresh = False
        while current is None or current.last_offset < offset:
            if self._batches is None:
                # A file that was just opened at the offset has nothing at or behind it.
                if is_fresh or offset >= self._limit_offset:
                    break
                found = self._log.read(offset, ALL_BYTES, self._limit_offset, True)
                self._batches = self._headers(found)
                is_fresh = True
            current = next(self._batches, None)
            if current is None:
                self._batches = None
                if self.cold is not None:
                    break
        self._current = current
        return current

    def _headers(self, found: LogSlice) -> Iterator[FoundBatch]:
        file, position = found.file, found.position
        if file is None:
            return
        end = position + found.size_bytes
        known_until = end if found.is_hot else position
        chunk = b""
        chunk_start = position
        next_offset = -1
        while position < end:
            at = position - chunk_start
            if at + HEADER_SIZE > len(chunk):
                if position + HEADER_SIZE > known_until:
                    ahead = LogSlice(file, position, min(AHEAD_BYTES, end - position), False)
                    if ahead.is_cold():
                        self.cold = ahead
                        return
                    known_until = position + ahead.size_bytes
                chunk = file.read_at(position, min(CHUNK_BYTES, end - position))
                chunk_start = position
                at = 0
                if len(chunk) < HEADER_SIZE:
                    raise CorruptLog(file.path, position, offset=max(next_offset, 0), next_offset=None)
            base_offset, length, _, magic, _, attributes, delta, _, max_timestamp, producer_id, _, _, _ = (
                _unpack(chunk, at)
            )
            last_offset = base_offset + delta
            size = LENGTH_END + length
            if (
                length < BATCH_LENGTH_MIN
                or magic != MAGIC
                or position + size > end
                or not next_offset <= base_offset <= last_offset
            ):
                raise CorruptLog(file.path, position, offset=base_offset, next_offset=None)
            yield FoundBatch(
                base_offset,
                last_offset,
                max_timestamp,
                size,
                position,
                found,
                chunk[at : at + size] if at + size <= len(chunk) else None,
                producer_id if attributes & TRANSACTIONAL_BIT else -1,
                bool(attributes & CONTROL_BIT),
            )
            next_offset = last_offset + 1
            position += size


def without_aborted(log: PartitionLog, batches: Sequence[FoundBatch]) -> list[FoundBatch]:
    """The batches that a reader of committed records may see. The log's indexes of aborted transactions have
    to be known (`PartitionLog.unread_aborted`)."""
    if not any(batch.producer_id >= 0 for batch in batches):
        return list(batches)
    aborted = log.aborted_transactions(batches[0].first_offset, batches[-1].last_offset + 1)
    if not aborted:
        return list(batches)
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first_offset, last_offset, _ in aborted:
        by_producer.setdefault(producer_id, []).append((first_offset, last_offset))
    return [
        batch
        for batch in batches
        if batch.is_control
        or not any(
            first <= batch.first_offset <= last for first, last in by_producer.get(batch.producer_id, ())
        )
    ]


def slices_of(batches: Sequence[FoundBatch]) -> list[bytes | LogSlice]:
    """The bytes of batches, in as few pieces as they can be had in."""
    if all(batch.data is not None for batch in batches):
        return [b"".join([batch.data for batch in batches if batch.data is not None])]
    pieces: list[bytes | LogSlice] = []
    source: LogSlice | None = None
    start = end = 0
    for batch in batches:
        if batch.source is source and batch.position == end:
            end += batch.size_bytes
            continue
        if source is not None:
            pieces.append(_piece(source, start, end))
        source, start, end = batch.source, batch.position, batch.position + batch.size_bytes
    if source is not None:
        pieces.append(_piece(source, start, end))
    return pieces


def _piece(source: LogSlice, start: int, end: int) -> LogSlice:
    return LogSlice(source.file, start, end - start, source.is_hot, upper_offset=source.upper_offset)
