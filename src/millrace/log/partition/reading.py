"""Reads of a log before its newest batches, which `PartitionLog.read` finds without a look at a file."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from millrace.log.errors import CorruptLog, FileMissing
from millrace.log.partition.isolation import isolate_in, past_damage, put_in_quarantine
from millrace.log.partition.log_slice import EMPTY_SLICE, LogSlice
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import Located, Segment
from millrace.log.segments.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


def read_older(log: PartitionLog, offset: int, max_bytes: int, limit_offset: int, min_one: bool) -> LogSlice:
    """As `PartitionLog.read`, with the help of the indexes. Damage that it meets goes into quarantine."""
    try:
        return _read(log, offset, max_bytes, limit_offset, min_one)
    except (CorruptLog, FileMissing) as error:
        if not isolate_in(log, error):
            raise
    return past_damage(log, lambda: _read(log, offset, max_bytes, limit_offset, min_one))


def _read(log: PartitionLog, offset: int, max_bytes: int, limit_offset: int, min_one: bool) -> LogSlice:
    segments, bases = log.segment_list.all, log.segment_list.bases
    number = log.segment_list.number_at(offset)
    while number < len(segments):
        segment = segments[number]
        is_last = number + 1 == len(segments)
        found = segment.locate(offset) if segment.size_bytes else None
        if segment.damage:
            _refuse_damaged(segment, offset)
        if found is None:
            # Compaction may leave a segment that ends before the next one begins; nothing else does.
            number += 1
            if not is_last and offset < bases[number] > log.compacted_end:
                _isolate_missing_end(log, segment, offset, bases[number])
            continue
        start = found.position
        upper = log.log_end_offset if is_last else bases[number + 1]
        if found.base_offset > offset and found.end == segment.size_bytes:
            _check_last(segment, found, upper)
        if found.base_offset >= limit_offset:
            return EMPTY_SLICE
        end = segment.size_bytes if limit_offset >= upper else segment.end_before(limit_offset)
        for damaged in segment.damage:
            if damaged.position > start:
                end = min(end, damaged.position)
                break
        end = segment.boundary(start, end, max_bytes)
        if end <= start:
            if not min_one:
                return EMPTY_SLICE
            end = found.end
        return LogSlice(
            segment.file.handle(), start, end - start, False, upper_offset=-1 if is_last else upper
        )
    return EMPTY_SLICE


def _check_last(segment: Segment, found: Located, upper_offset: int) -> None:
    """Raise unless a segment's last batch, found in place of another one, ends before the next segment."""
    header = next(segment.headers(found.position))[1]
    if header.last_offset >= upper_offset:
        raise CorruptLog(segment.file.path, found.position, offset=header.base_offset, next_offset=None)


def _isolate_missing_end(log: PartitionLog, segment: Segment, offset: int, upper_offset: int) -> None:
    """Put in quarantine what stood between the last batch of a segment and the next segment, and is lost."""
    end_offset = past_damage(log, segment.end_offset)
    if end_offset >= upper_offset:
        return
    missing = DamagedRange(segment.size_bytes, 0, end_offset, upper_offset)
    put_in_quarantine(log.home.volume, segment, [missing])
    log.home.damage_found(log)
    _refuse_damaged(segment, offset)


def _refuse_damaged(segment: Segment, offset: int) -> None:
    for damaged in segment.damage:
        if damaged.first_offset <= offset < damaged.next_offset:
            raise CorruptLog(
                segment.file.path, damaged.position, offset=offset, next_offset=damaged.next_offset
            )


def range_end(log: PartitionLog, found: LogSlice) -> int:
    """An offset behind a slice's last record, and not far behind it, found without reading the slice."""
    end = found.position + found.size_bytes
    if found.upper_offset < 0:
        segment, upper = log.segment_list.active, log.log_end_offset
        number = bisect_left(segment.recent_positions, end)
        if number < len(segment.recent_positions):
            return segment.recent_offsets[number]
        if segment.recent_positions:
            return upper
    else:
        upper = found.upper_offset
        segment = log.segment_list.all[max(bisect_left(log.segment_list.bases, upper) - 1, 0)]
    index = segment.offset_index
    following = index.count_below(1, end)
    if following < index.count:
        upper = min(upper, segment.base_offset + index.entry(following)[0] + 1)
    return upper


def aborted_transactions(log: PartitionLog, offset: int, end_offset: int) -> list[AbortedTransaction]:
    """The transactions that a reader of committed records has to skip between the two offsets."""
    found: list[AbortedTransaction] = []
    bounds = log.state.aborted_bounds
    # This call makes the bounds those of the present segments.
    bounds.unread(log.segment_list.all)
    for segment in bounds.touching(log.segment_list.number_at(offset), end_offset):
        aborted, is_complete = segment.txn_index.aborted_between(offset, end_offset)
        found += aborted
        if is_complete:
            break
    return found
