"""One partition's log on one disk: append, read, flush, and what else the partition's owner may ask of it.

Appends (`appending.py`) and reads are synchronous and run on the loop; fsync and removal go to the executor.
Nothing here knows leaders or replicas: the owner sets the high watermark, and this module never serves or
deletes beyond it unasked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from millrace.log.errors import CorruptLog, FileMissing, OffsetOutOfRange
from millrace.log.partition import retention, segment_swap, time_lookup, truncation
from millrace.log.partition.aborted_bounds import AbortedBounds
from millrace.log.partition.appending import LogAppends
from millrace.log.partition.isolation import isolate_in, past_damage, put_in_quarantine
from millrace.log.partition.log_slice import EMPTY_SLICE, LogSlice
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import Located, Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.wire.batch_header import HEADER

if TYPE_CHECKING:
    from millrace.log.partition.segment_swap import CleanableSegment
    from millrace.log.partition.time_lookup import TimestampedOffset


class PartitionLog(LogAppends):
    """What the owner of a partition may ask of its log."""

    __slots__ = ()

    # Reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, min_one: bool) -> LogSlice:
        """Whole batches from the one that holds `offset` on, in one file.

        None that begins at `limit_offset` or later. At most `max_bytes`, but with `min_one` at least one
        batch. Nothing is copied.
        """
        log_end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(
                offset, log_start_offset=self.log_start_offset, log_end_offset=log_end_offset
            )
        if offset >= limit_offset or offset == log_end_offset:
            return EMPTY_SLICE
        segment = self._active
        recent = segment.recent_offsets
        if not recent or offset < recent[0]:
            try:
                return self._read_older(offset, max_bytes, limit_offset, min_one)
            except (CorruptLog, FileMissing) as error:
                if not isolate_in(self, error):
                    raise
            return past_damage(self, lambda: self._read_older(offset, max_bytes, limit_offset, min_one))
        # The tail: start and end are known without looking at the file.
        positions = segment.recent_positions
        number = bisect_right(recent, offset) - 1
        start = positions[number]
        end = segment.size_bytes
        if limit_offset < log_end_offset:
            limit = bisect_left(recent, limit_offset)
            if limit < len(positions):
                end = positions[limit]
        if end - start > max_bytes:
            last = bisect_right(positions, start + max_bytes) - 1
            if last > number:
                end = positions[last]
            elif not min_one:
                return EMPTY_SLICE
            elif number + 1 < len(positions):
                end = positions[number + 1]
        return LogSlice(segment.file.handle(), start, end - start, True)

    def _read_older(self, offset: int, max_bytes: int, limit_offset: int, min_one: bool) -> LogSlice:
        number = max(bisect_right(self._bases, offset) - 1, 0)
        while number < len(self._segments):
            segment = self._segments[number]
            is_last = number + 1 == len(self._segments)
            found = segment.locate(offset) if segment.size_bytes else None
            if segment.damage:
                self._check_damage(segment, offset)
            if found is None:
                # Compaction may leave a segment that ends before the next one begins; nothing else does.
                number += 1
                if not is_last and offset < self._bases[number] > self.compacted_end:
                    self._end_is_missing(segment, offset, self._bases[number])
                continue
            start = found.position
            upper = self.log_end_offset if is_last else self._segments[number + 1].base_offset
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
            return LogSlice(segment.file.handle(), start, end - start, False, -1 if is_last else upper)
        return EMPTY_SLICE

    def _end_is_missing(self, segment: Segment, offset: int, upper_offset: int) -> None:
        """Whatever stood between the last batch of a segment and the next segment is lost."""
        end_offset = past_damage(self, segment.end_offset)
        if end_offset >= upper_offset:
            return
        missing = DamagedRange(segment.size_bytes, 0, end_offset, upper_offset)
        put_in_quarantine(self._home.volume, segment, [missing])
        self._home.damage_found(self)
        self._check_damage(segment, offset)

    def _check_damage(self, segment: Segment, offset: int) -> None:
        for damaged in segment.damage:
            if damaged.first_offset <= offset < damaged.next_offset:
                raise CorruptLog(
                    segment.file.path, damaged.position, offset=offset, next_offset=damaged.next_offset
                )

    def range_end(self, found: LogSlice) -> int:
        """An offset that no record of a slice reaches: not far behind its last one, found without reading
        it."""
        end = found.position + found.size_bytes
        if found.upper_offset < 0:
            segment, upper = self._active, self.log_end_offset
            number = bisect_left(segment.recent_positions, end)
            if number < len(segment.recent_positions):
                return segment.recent_offsets[number]
            if segment.recent_positions:
                return upper
        else:
            upper = found.upper_offset
            segment = self._segments[max(bisect_left(self._bases, upper) - 1, 0)]
        index = segment.offset_index
        following = index.count_below(1, end)
        if following < index.count:
            upper = min(upper, segment.base_offset + index.entry(following)[0] + 1)
        return upper

    def is_near_end(self, found: LogSlice, distance_bytes: int) -> bool:
        """Whether at most so many bytes come after a slice. A segment's end counts as far from the log's."""
        left = self._active.size_bytes - found.position - found.size_bytes
        return found.upper_offset < 0 and left <= distance_bytes

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those that a reader of committed data has to skip between the two offsets."""
        found: list[AbortedTransaction] = []
        # Also makes the bounds those of the present segments.
        self.unread_aborted()
        number = max(bisect_right(self._bases, offset) - 1, 0)
        for segment in self.aborted_bounds.touching(number, end_offset):
            aborted, is_complete = segment.txn_index.aborted_between(offset, end_offset)
            found += aborted
            if is_complete:
                break
        return found

    def unread_aborted(self) -> list[Segment]:
        """The segments whose aborted transactions a look has to read from the disk: `learn_aborted` does that
        in a thread."""
        return self.aborted_bounds.unread(self._segments)

    @property
    def aborted_bounds(self) -> AbortedBounds:
        if self._aborted_bounds is None:
            self._aborted_bounds = AbortedBounds()
        return self._aborted_bounds

    def aborted_replaced(self) -> None:
        """Indexes of aborted transactions are others than before."""
        self._aborted_bounds = None

    @property
    def segment_list(self) -> list[Segment]:
        """Another list whenever a segment comes or goes."""
        return self._segments

    async def find_offset_by_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record that is not older."""
        return await time_lookup.find_offset_by_timestamp(self, timestamp_ms)

    async def find_max_timestamp(self) -> TimestampedOffset | None:
        """The youngest record."""
        return await time_lookup.find_max_timestamp(self)

    # The end that readers of committed data see

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended; never above the high watermark, which the owner sets."""
        high_watermark = self.high_watermark
        producers = self._producers
        if producers is None:
            producers = self._load_producers()
        if producers.first_unstable_offset < 0 and not producers.ended:
            return high_watermark
        return producers.stable_before(high_watermark)

    # Changing the log's ends

    async def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on; a batch that holds it goes as a whole."""
        if self._staged:
            self.settle()
        truncation.truncate_to(self, offset)
        await self._make_cut_last()

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything; the next batch gets `offset`."""
        if self._staged:
            self.settle()
        truncation.truncate_fully_and_start_at(self, offset)
        await self._make_cut_last()

    async def start_inside(self, records: memoryview) -> None:
        """Let an empty log begin with batches of which the first holds the log's start in its middle. Its
        file begins with the whole batch, as after deleting the records before the start."""
        if self._staged:
            self.settle()
        start_offset = self.log_start_offset
        truncation.truncate_fully_and_start_at(self, HEADER.unpack_from(records)[0])
        self.append_replicated(records)
        # Nobody sees the records before the start, here either.
        self.high_watermark = start_offset
        retention.advance_log_start(self, start_offset)
        await self._make_cut_last()
        await self._home.save_log_start_offsets()

    async def _make_cut_last(self) -> None:
        try:
            await self.flush()
        finally:
            # Also if that failed for a while: what takes the place of flushed records is not flushed.
            await self._home.lower_recovery_point(self)

    async def delete_records_before(self, offset: int) -> int:
        """Move the log's start up to `offset`, which the high watermark bounds; returns the start."""
        retention.advance_log_start(self, offset)
        await self._home.save_log_start_offsets()
        return self.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by time, by size and by the log's start; returns the number of segments."""
        return retention.delete_old_segments(self, now_ms)

    def expire_producers(self, now_ms: int) -> int:
        if self._producers is None:
            return 0
        return self._producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def cleanable(self) -> list[CleanableSegment]:
        """The sealed segments below the high watermark, for compaction."""
        return segment_swap.cleanable(self)

    async def replace_segments(self, old: list[int], new: list[int]) -> bool:
        """Put `.cleaned` files (by base offset) in the place of segments; False if those are gone."""
        return await segment_swap.replace_segments(self, old, new)


def _check_last(segment: Segment, found: Located, upper_offset: int) -> None:
    """The last batch of a segment, found where another one was looked for, must end before the next one."""
    header = next(segment.headers(found.position))[1]
    if header[0] + header[6] >= upper_offset:
        raise CorruptLog(segment.file.path, found.position, offset=header[0], next_offset=None)
