"""Finds the first record that is not older than a timestamp.

Threads read the files and inflate batches, of segments that are detached from the log. What they learn about
a segment comes back with the result, and the loop enters it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from millrace.core.lanes import Waits
from millrace.log.errors import CorruptLog, StorageError
from millrace.log.segments.detached_segment import DetachedSegment, detached
from millrace.log.segments.segment import Segment
from millrace.wire.batch_header import BatchHeader
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import Record, read_records

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

T = TypeVar("T")

_SEGMENTS_AT_ONCE: Final = 16
"""A thread looks at so many segments before it reports to the loop."""
_ATTEMPTS_MAX: Final = 3


class TimestampedOffset(NamedTuple):
    """A record that was found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


class _Youngest(NamedTuple):
    """The largest timestamp of a segment, and the last offset of the batch that has it."""

    timestamp: int
    offset: int


class _Found(NamedTuple):
    record: TimestampedOffset | None
    learned: list[_Youngest]
    """The youngest batch of each segment that was looked at, in their order."""


async def find_offset_by_timestamp(log: PartitionLog, timestamp_ms: int) -> TimestampedOffset | None:
    """The first record at or after the timestamp, from the log's start on."""

    async def find() -> TimestampedOffset | None:
        candidates = [
            each for each in log.segments if each.size_bytes and not 0 <= each.max_timestamp < timestamp_ms
        ]
        for first in range(0, len(candidates), _SEGMENTS_AT_ONCE):
            piece = candidates[first : first + _SEGMENTS_AT_ONCE]
            found = await _off_loop(log, _find_in, piece, log.log_start_offset, timestamp_ms)
            _enter(piece, found.learned)
            if found.record is not None:
                return found.record
        return None

    return await _find_again_if_changed(log, find)


async def find_max_timestamp(log: PartitionLog) -> TimestampedOffset | None:
    """The record with the largest timestamp, the first one if several have it."""

    async def find() -> TimestampedOffset | None:
        filled = [segment for segment in log.segments if segment.size_bytes]
        if not filled:
            return None
        ages: dict[Segment, int] = {each: each.max_timestamp for each in filled if each.max_timestamp >= 0}
        unknown = [each for each in filled if each not in ages]
        for first in range(0, len(unknown), _SEGMENTS_AT_ONCE):
            piece = unknown[first : first + _SEGMENTS_AT_ONCE]
            learned = await _off_loop(log, _learn, piece)
            _enter(piece, learned)
            ages.update((each, youngest.timestamp) for each, youngest in zip(piece, learned, strict=True))
        youngest_ms = max(ages.values())
        chosen = next(each for each in filled if ages[each] == youngest_ms)
        return await _off_loop(log, _youngest_in, [chosen], log.log_start_offset)

    return await _find_again_if_changed(log, find)


async def _off_loop(
    log: PartitionLog, work: Callable[..., T], segments: Sequence[Segment], *arguments: int
) -> T:
    volume = log.home.volume
    twins = tuple(detached(segment, volume) for segment in segments)
    return await asyncio.get_running_loop().run_in_executor(
        volume.lane(Waits.READ, log.path), _and_close, work, twins, *arguments
    )


def _and_close(work: Callable[..., T], segments: Sequence[DetachedSegment], *arguments: int) -> T:
    try:
        return work(segments, *arguments)
    finally:
        for segment in segments:
            segment.close()


async def _find_again_if_changed(
    log: PartitionLog, find: Callable[[], Awaitable[TimestampedOffset | None]]
) -> TimestampedOffset | None:
    """Search again if retention, compaction or a cut changed the files while a thread read them: then what it
    found, or failed at, says nothing."""
    attempts_left = _ATTEMPTS_MAX
    while True:
        attempts_left -= 1
        before = [(segment, segment.size_bytes) for segment in log.segments]
        try:
            found = await find()
        except (StorageError, CorruptLog):
            if not attempts_left or not _has_changed(log, before):
                raise
        except struct.error as error:
            # The index was cut while a thread searched it.
            if not attempts_left:
                raise StorageError("search", log.path, "its files change all the time") from error
        else:
            if not attempts_left or not _has_changed(log, before):
                return found


def _has_changed(log: PartitionLog, before: Sequence[tuple[Segment, int]]) -> bool:
    present = log.segments
    return any(segment not in present or segment.size_bytes < size for segment, size in before)


def _enter(segments: Sequence[Segment], learned: Sequence[_Youngest]) -> None:
    """Keep, on the loop, what a thread learned about segments, so that nobody reads it again."""
    for segment, youngest in zip(segments, learned, strict=False):
        if segment.max_timestamp < 0 <= youngest.offset:
            segment.max_timestamp, segment.max_timestamp_offset = youngest


# The functions from here on run in threads.


def _youngest(segment: DetachedSegment) -> _Youngest:
    timestamp = segment.largest_timestamp()
    # Without timestamps this is the file's age, which no record has.
    return _Youngest(timestamp, segment.max_timestamp_offset if segment.max_timestamp >= 0 else -1)


def _learn(segments: Sequence[DetachedSegment]) -> list[_Youngest]:
    return [_youngest(segment) for segment in segments]


def _find_in(segments: Sequence[DetachedSegment], log_start_offset: int, timestamp_ms: int) -> _Found:
    learned: list[_Youngest] = []
    for segment in segments:
        learned.append(_youngest(segment))
        if learned[-1].timestamp < timestamp_ms:
            continue
        start = max(segment.time_index.offset_before(timestamp_ms - 1), log_start_offset)
        first = segment.start_before(start)
        for position, header in segment.headers(first):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                    return _Found(
                        TimestampedOffset(record.timestamp, record.offset, header.leader_epoch), learned
                    )
    return _Found(None, learned)


def _youngest_in(segments: Sequence[DetachedSegment], log_start_offset: int) -> TimestampedOffset | None:
    (segment,) = segments
    segment.largest_timestamp()
    best: tuple[int, BatchHeader] | None = None
    start = segment.start_before(segment.max_timestamp_offset)
    for first in (start, 0):
        for position, header in segment.headers(first):
            if header.last_offset >= log_start_offset and (
                best is None or header.max_timestamp > best[1].max_timestamp
            ):
                best = position, header
        if best is not None and best[1].max_timestamp >= segment.max_timestamp:
            break
    if best is None:
        return None
    position, header = best
    found: Record | None = None
    for record in _records(segment, position, header):
        if record.offset >= log_start_offset and (found is None or record.timestamp > found.timestamp):
            found = record
    return None if found is None else TimestampedOffset(found.timestamp, found.offset, header.leader_epoch)


def _records(segment: DetachedSegment, position: int, header: BatchHeader) -> list[Record]:
    try:
        return read_records(segment.file.read_at(position, header.size_bytes))
    except MalformedBatch as error:
        raise CorruptLog(segment.file.path, position, offset=header.base_offset, next_offset=None) from error
