"""One partition's log on one disk: append, read, flush, and whatever else its owner may ask of it.

Appends and reads are synchronous and run on the loop; fsync and removal go to the executor. Nothing here
knows leaders or replicas: the owner sets the high watermark, and the log never serves or deletes beyond it
unasked.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH, TopicId, TopicPartition
from millrace.core.override import override
from millrace.log.batches import checks
from millrace.log.batches.validation import is_preparation_needed
from millrace.log.config import INT64_MAX, LogConfig
from millrace.log.errors import (
    CorruptBatch,
    InvalidRecord,
    LogClosed,
    LogDirectoryOffline,
    OffsetOutOfRange,
    StorageError,
)
from millrace.log.partition import appending, reading, retention, segment_swap, time_lookup, truncation
from millrace.log.partition.appending import STAGED, Appended, stamp, write_prefix
from millrace.log.partition.flushing import Flushing
from millrace.log.partition.log_home import LogHome
from millrace.log.partition.log_slice import EMPTY_SLICE, LogSlice
from millrace.log.partition.log_state import LogState
from millrace.log.partition.segment_list import SegmentList
from millrace.log.partition.staging import StagedCallback, Staging
from millrace.log.partition.tail import Tail
from millrace.log.segments.group_commit import GroupCommit, Round
from millrace.log.segments.segment import Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state import producer_snapshots
from millrace.log.state.epochs import LeaderEpochs
from millrace.log.state.producer_state import SEQUENCE_MAX, ProducerEntry, ProducerStates
from millrace.wire.batch_header import (
    CODEC_MAX,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    read_header,
)

if TYPE_CHECKING:
    from millrace.log.partition.segment_swap import CleanableSegment
    from millrace.log.partition.time_lookup import TimestampedOffset

_unpack_header: Final = HEADER.unpack_from
# A named tuple's own constructor costs twice as much.
_new_tuple: Final = tuple.__new__


class PartitionLog:
    """The batches of one partition in one directory, and what was computed from them. Single writer: the
    loop's thread.

    Its parts do the work. `segment_list` says which files there are, `tail` writes to the newest of them,
    `staging` holds batches that are to be written together, `state` knows producers, epochs and aborted
    transactions, and `flushing` brings it all to the disk. They are for the modules of this package."""

    __slots__ = (
        "__weakref__",
        "commits_on_flush",
        "config",
        "cut_offset",
        "first_dirty_offset",
        "flush_is_due",
        "flushed_offset",
        "flushing",
        "high_watermark",
        "home",
        "is_closed",
        "is_moving",
        "log_end_offset",
        "log_start_offset",
        "path",
        "prepares_batches",
        "segment_list",
        "staged_written",
        "staging",
        "state",
        "tail",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        home: LogHome,
        path: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_end_offset: int,
    ) -> None:
        self.home = home
        self.path = path
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.is_closed = False
        self.log_start_offset = segments[0].base_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_end_offset
        self.flushed_offset = log_end_offset
        self.first_dirty_offset = 0
        """Where the next compaction begins; the cleaner sets it, and a checkpoint saves it."""
        self.is_moving = False
        """Whether a copy is being made in another directory: segments must not be rewritten meanwhile."""
        self.cut_offset = INT64_MAX
        """The lowest offset that the log was cut to. Whoever copies the log reads and resets it."""
        self.flush_is_due = False
        """Set by appends once `flush.messages` are not on disk; whoever appends asks for the flush."""
        self.commits_on_flush = False
        """With flush.messages=1 nothing may be acknowledged or shown before it is on disk."""
        self.prepares_batches = False
        """Whether batches must pass `validation.prepare` before they are appended."""
        self.staged_written: StagedCallback | None = None
        """Set by the owner; called with staged batches once they are written, or with the reason why not."""
        self.segment_list = SegmentList(segments)
        self.staging = Staging(self)
        self.state = LogState(self)
        self.tail = Tail(self)
        self.flushing = Flushing(self)
        self.set_config(config)

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic_partition} {self.log_start_offset}-{self.log_end_offset}>"

    def set_config(self, config: LogConfig) -> None:
        """Use these settings from the next append on."""
        self.config = config
        self.commits_on_flush = config.flush_messages == 1
        self.prepares_batches = is_preparation_needed(config)
        self.flushing.count_from(self.flushed_offset)
        for segment in self.segment_list.all:
            segment.index_interval_bytes = config.index_interval_bytes
        self.forbid_appends()

    # Appending

    def append_as_leader(
        self,
        batch: memoryview,
        leader_epoch: int,
        now_ms: int,
        refused_bits: int = CONTROL_BIT,
        token: object = None,
    ) -> Appended:
        """Check one producer's batch, give it offsets and write it; on any error nothing is appended. With a
        token it may be staged: the answer is STAGED, and `staged_written` gets the token with the outcome."""
        # One function on purpose: each further call costs 4 % of an append. Rare steps are elsewhere.
        size = len(batch)
        if size < HEADER_SIZE:
            raise InvalidRecord(f"{size} bytes are no record batch")
        header = _unpack_header(batch)
        (sent_offset, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp,
         producer_id, producer_epoch, sequence, count) = header  # fmt: skip
        config = self.config
        if length + LENGTH_END != size or magic != MAGIC or sent_offset or count <= 0 or delta != count - 1:
            raise checks.refusal(batch, config)
        if attributes & refused_bits or attributes & COMPRESSION_MASK > CODEC_MAX:
            raise checks.refusal(batch, config)
        if size > config.max_message_bytes:
            raise checks.refusal(batch, config)
        if crc32c(batch[CRC_START:]) != crc:
            raise CorruptBatch("the checksum of the record batch is wrong")
        append_time_ms = -1
        if config.timestamp_log_append:
            append_time_ms = max_timestamp = now_ms
            stamp(batch, attributes, now_ms)
        elif (
            attributes & TIMESTAMP_TYPE_BIT
            or max_timestamp - now_ms > config.timestamp_after_max_ms
            or now_ms - base_timestamp > config.timestamp_before_max_ms
        ):
            checks.check_timestamps(attributes, base_timestamp, max_timestamp, now_ms, config)

        # Is this batch what its producer has to send next, or what it sent before?
        state, staging = self.state, self.staging
        entry: ProducerEntry | None = None
        if producer_id >= 0 and not (producer_id in staging.producers and staging.precedes(header, token)):
            producers = state.loaded_producers or state.load_producers()
            entry = producers.entries.get(producer_id)
            if (
                entry is None
                or entry.epoch != producer_epoch
                or entry.last_sequence + 1 != sequence
                or entry.current_txn_first_offset >= 0
            ):
                original = checks.check_sequence(producers, header)
                if original is not None:
                    return Appended(original.base_offset, original.last_offset, append_time_ms, True)
                entry = None

        # Stage the batch, or write it behind the last one.
        if (token is not None or staging.batches) and staging.stage(
            batch, header, leader_epoch, max_timestamp, token
        ):
            return STAGED
        segment = self.segment_list.active
        base_offset = self.log_end_offset
        if (
            segment.size_bytes + size > segment.size_limit
            or base_offset + delta > segment.offset_limit
            or max_timestamp > segment.timestamp_limit
            or leader_epoch != state.latest_epoch
        ):
            segment = appending.prepare(self, header, leader_epoch, max_timestamp, now_ms)
            base_offset = self.log_end_offset
        write_prefix(batch, 0, base_offset, length, leader_epoch)
        position = segment.size_bytes
        try:
            segment.file.write_at(position, batch)
        except StorageError as error:
            appending.write_failed(self, segment, error, header, now_ms)
            raise

        # The batch is in the file. Both ends move at once, or the next batch would get the same offsets.
        last_offset = base_offset + delta
        segment.size_bytes = position + size
        self.log_end_offset = last_offset + 1
        segment.note(position, size, base_offset, last_offset, max_timestamp)
        if entry is not None and not attributes & TRANSACTIONAL_BIT:
            entry.advance((sequence + delta) & SEQUENCE_MAX, last_offset, delta, max_timestamp, now_ms)
        elif producer_id >= 0:
            state.producers.record(header, last_offset, max_timestamp, now_ms)
        if last_offset >= self.flushing.notice_at:
            self.flushing.wrote(last_offset)
        return _new_tuple(Appended, (base_offset, last_offset, append_time_ms, False))

    def write_staged(self) -> MillraceError | None:
        """Write all staged batches with one call, and tell their owner; if the write fails, none was
        appended, and the answer says why. Raises nothing, because the caller has a request of its own."""
        return self.staging.write() if self.staging.batches else None

    def append_own(self, batch: memoryview, leader_epoch: int) -> Appended:
        """Give offsets to a batch that this broker has made, a marker or a coordinator's, and write it.

        Nobody checks its producer's sequence, because the producer did not send it."""
        return appending.append_own(self, batch, leader_epoch)

    def append_replicated(self, records: memoryview) -> None:
        """Write batches that have their offsets and epochs already: a leader's, a coordinator's markers."""
        if self.staging.batches:
            self.staging.write()
        batches = checks.split_batches(records, at_least=self.log_end_offset)
        written = 0
        try:
            while written < len(batches):
                written += appending.append_run(self, records, batches[written:] if written else batches)
        finally:
            last_offset = self.log_end_offset - 1
            if written and last_offset >= self.flushing.notice_at:
                # Those before one that fails are here to stay.
                self.flushing.wrote(last_offset)

    def forbid_appends(self) -> None:
        """Send the next append to the slow path, where it finds out what has changed: the settings, or that
        the log's home was fenced."""
        self.segment_list.active.forbid_appends()

    def check_writable(self) -> None:
        if self.is_closed:
            raise LogClosed(f"{self.topic_partition} is closed")
        if self.home.offline_reason is not None:
            raise LogDirectoryOffline(self.home.path, self.home.offline_reason)

    def require_writable_tail(self) -> None:
        self.check_writable()
        self.tail.require_open()

    # Reading

    def read(self, offset: int, max_bytes: int, limit_offset: int, min_one: bool) -> LogSlice:
        """Whole batches from the one that holds `offset` on, in one file.

        All of them begin before `limit_offset`. They have at most `max_bytes`, but with `min_one` there is at
        least one batch. Nothing is copied.
        """
        log_end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            raise OffsetOutOfRange(
                offset, log_start_offset=self.log_start_offset, log_end_offset=log_end_offset
            )
        if offset >= limit_offset or offset == log_end_offset:
            return EMPTY_SLICE
        segment = self.segment_list.active
        recent = segment.recent_offsets
        if not recent or offset < recent[0]:
            return reading.read_older(self, offset, max_bytes, limit_offset, min_one)
        # In the tail, start and end are known without looking at the file.
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

    def range_end(self, found: LogSlice) -> int:
        """An offset behind a slice's last record, and not far behind it, found without reading the slice."""
        return reading.range_end(self, found)

    def is_near_end(self, found: LogSlice, distance_bytes: int) -> bool:
        """Whether at most so many bytes come after a slice. A segment's end counts as far from the log's."""
        left = self.segment_list.active.size_bytes - found.position - found.size_bytes
        return found.upper_offset < 0 and left <= distance_bytes

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions that a reader of committed records has to skip between the two offsets."""
        return reading.aborted_transactions(self, offset, end_offset)

    def unread_aborted(self) -> list[Segment]:
        """The segments whose aborted transactions must be read from the disk first: `learn_aborted` does that
        in a thread."""
        return self.state.aborted_bounds.unread(self.segment_list.all)

    def aborted_replaced(self) -> None:
        """Tell the log that its indexes of aborted transactions were replaced."""
        self.state.forget_aborted_bounds()

    async def find_offset_by_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record that is not older than the timestamp."""
        return await time_lookup.find_offset_by_timestamp(self, timestamp_ms)

    async def find_max_timestamp(self) -> TimestampedOffset | None:
        """The youngest record."""
        return await time_lookup.find_max_timestamp(self)

    @property
    def last_stable_offset(self) -> int:
        """Below this offset every transaction has ended; it never exceeds the owner's high watermark."""
        high_watermark = self.high_watermark
        producers = self.state.loaded_producers
        if producers is None:
            producers = self.state.load_producers()
        if producers.first_unstable_offset < 0 and not producers.ended:
            return high_watermark
        return producers.stable_before(high_watermark)

    # Producers and leader epochs

    @property
    def producers(self) -> ProducerStates:
        return self.state.producers

    def expire_producers(self, now_ms: int) -> int:
        """Forget the producers that were idle for too long; returns how many."""
        producers = self.state.loaded_producers
        return 0 if producers is None else producers.expire(now_ms, self.config.producer_id_expiration_ms)

    @property
    def epochs(self) -> LeaderEpochs:
        return self.state.epochs

    @property
    def latest_epoch(self) -> int:
        return self.state.epochs.latest

    def start_epoch(self, epoch: int) -> None:
        """Write batches under this leader epoch from here on."""
        self.state.start_epoch(epoch)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to the one asked for, and where it ends; (-1, -1) if unknown."""
        return self.state.epochs.end_offset_of(epoch, self.log_end_offset)

    def last_record_epoch(self) -> int:
        """The leader epoch of the last record, or -1 if the log is empty or does not know."""
        if self.log_end_offset == self.log_start_offset:
            return NO_EPOCH
        return self.state.epochs.epoch_at(self.log_end_offset - 1)

    def adopt(self, producers: ProducerStates | None, epochs: LeaderEpochs | None) -> None:
        """Take over state that recovery computed while it read the log."""
        self.state.adopt(producers, epochs)

    # Segments

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one is active."""
        return tuple(self.segment_list.all)

    @property
    def size_bytes(self) -> int:
        return self.segment_list.size_bytes

    @property
    def compacted_end(self) -> int:
        """Up to here offsets may be missing by compaction; behind it every gap is a loss."""
        return INT64_MAX if self.config.cleanup_compact else self.first_dirty_offset

    def set_segments(self, segments: list[Segment]) -> None:
        """Let the log consist of these segments, with the last one active. For this package alone."""
        self.segment_list.replace(segments)

    def roll(self) -> Segment:
        """Begin a new segment at the end of the log. If that fails, nothing has changed."""
        return self.tail.roll()

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by time, by size and by the log's start; returns the number of segments."""
        return retention.delete_old_segments(self, now_ms)

    def cleanable(self) -> list[CleanableSegment]:
        """The sealed segments below the high watermark, for compaction."""
        return segment_swap.cleanable(self)

    async def replace_segments(self, old: list[int], new: list[int]) -> bool:
        """Put `.cleaned` files (by base offset) in the place of segments; False if those are gone."""
        return await segment_swap.replace_segments(self, old, new)

    # Changing the log's ends

    async def truncate_to(self, offset: int) -> None:
        """Forget everything from `offset` on; a batch that holds it goes as a whole."""
        self.write_staged()
        truncation.truncate_to(self, offset)
        await self._make_cut_last()

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything; the next batch gets `offset`."""
        self.write_staged()
        truncation.truncate_fully_and_start_at(self, offset)
        await self._make_cut_last()

    async def start_inside(self, records: memoryview) -> None:
        """Let an empty log begin with batches of which the first holds the log's start in its middle. Its
        file begins with the whole batch, as after deleting the records before the start."""
        self.write_staged()
        start_offset = self.log_start_offset
        truncation.truncate_fully_and_start_at(self, read_header(records).base_offset)
        self.append_replicated(records)
        # Nobody may see the records before the start, here no more than elsewhere.
        self.high_watermark = start_offset
        retention.advance_log_start(self, start_offset)
        await self._make_cut_last()
        await self.home.save_log_start_offsets()

    async def _make_cut_last(self) -> None:
        """Return when the disk knows that the log was cut."""
        try:
            await self.flush()
        finally:
            # Also if the flush failed for a while: what takes the place of flushed records is not flushed.
            await self.home.lower_recovery_point(self)

    async def delete_records_before(self, offset: int) -> int:
        """Move the log's start up to `offset`, which the high watermark bounds; returns the start."""
        retention.advance_log_start(self, offset)
        await self.home.save_log_start_offsets()
        return self.log_start_offset

    def end_moved_back(self, offset: int) -> None:
        """Forget whatever was computed from the records that a truncation took."""
        self.log_end_offset = offset
        self.cut_offset = min(self.cut_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        # What takes the place of the lost records was never compacted.
        self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.flushing.end_moved_back()
        self.state.forget_producers()
        self.state.forget_aborted_bounds()
        self.tail.cut()

    # Flushing

    def wait_flushed(self, offset: int) -> asyncio.Future[None] | None:
        """A future for when everything below `offset` is on disk; None if it is already."""
        return None if offset <= self.flushed_offset else self.flushing.wait(offset)

    async def flush(self) -> None:
        """Return when all that was appended before the call is on disk, and so is every small file and name
        that was handed to `sync_later` before it."""
        await self.flushing.flush()

    def join_flush(self) -> tuple[GroupCommit, Round] | None:
        """As `flush`, for a caller that brings many logs to the disk at once; None if there is nothing to
        flush or a flush is under way."""
        return self.flushing.join()

    async def hold_flushes(self) -> None:
        """Begin no flush until `release_flushes`; whoever waits for one waits longer."""
        await self.flushing.hold()

    def release_flushes(self) -> None:
        self.flushing.release()

    def sync_later(self, file: str | None = None, *, directory: str | None = None) -> None:
        """Include a small file or a directory's names in the next flush."""
        self.flushing.sync_later(file, directory)

    def expect_readers(self) -> None:
        """Leave the page cache to the system: whatever is written may be read again."""
        self.flushing.expect_readers()

    def expect_no_readers(self) -> None:
        """Keep only the log's end in the page cache: nobody reads here until this replica leads."""
        self.flushing.expect_no_readers()

    # The end

    async def close(self) -> None:
        """Flush, leave a snapshot and let go of the files; the log can be trusted at the next start."""
        if self.is_closed:
            return
        self.write_staged()
        if self.home.offline_reason is None:
            self.finish_files()
            await self.flush()
        self._shut(LogClosed(f"{self.topic_partition} was closed"))

    def finish_files(self) -> None:
        """Bring all files into the state of an orderly end, as far as this process changed them."""
        if not self.tail.is_open:
            return
        self.state.save_epochs()
        self.tail.mend()
        self.segment_list.active.finish_indexes()
        producers = self.state.loaded_producers
        if producers is not None and (producers.entries or len(self.segment_list.all) > 1):
            volume = self.home.volume
            self.sync_later(
                producer_snapshots.save_snapshot(volume, self.path, self.log_end_offset, producers)
            )
            producer_snapshots.remove_snapshots(volume, self.path, keep=self.segment_list.bases)

    def discard(self) -> None:
        """Let go without writing anything: the log is deleted, or the process acts as if it had crashed."""
        self._shut(LogClosed(f"{self.topic_partition} was deleted"))

    def _shut(self, error: LogClosed) -> None:
        self.is_closed = True
        # Staged batches fail now: nothing is written to a closed log.
        self.write_staged()
        self.forbid_appends()
        self.flushing.abandon(error)
        for segment in self.segment_list.all:
            segment.forget_indexes()

    def succeed(self, original: PartitionLog) -> None:
        """Take the place of a log of which this one is a copy, byte for byte, in another directory."""
        self.log_start_offset = original.log_start_offset
        self.high_watermark = original.high_watermark
        self.first_dirty_offset = original.first_dirty_offset
        # If a power loss takes the new name back, the original counts.
        self.flushed_offset = original.flushed_offset
        self.state.succeed(original.state)
        self.flushing.succeed()

    def retire(self, heir: PartitionLog) -> None:
        """Close this log, whose place the heir has taken; those who wait for a flush wait for the heir's."""
        self.is_closed = True
        self.forbid_appends()
        self.flushing.hand_over(heir.flushing)
