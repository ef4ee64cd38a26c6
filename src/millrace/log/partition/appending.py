"""Appending to a partition's log: checks, offsets, staging, and the one write that makes it so.

A batch is written at once, or staged: then it has its offsets already, and `settle` writes all staged ones
with one call. Nothing staged counts, to readers or in the producers' state, before it is in the file;
whatever else moves the log's end settles first.
"""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.log.batches import checks as batch_checks
from millrace.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    DiskFailed,
    InvalidRecord,
    LogClosed,
    LogDirectoryOffline,
    StorageError,
)
from millrace.log.partition.log_files import LogFiles, StagedBatch
from millrace.log.segments.segment import Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_state import BATCHES_REMEMBERED, SEQUENCE_MAX, subtract_from_sequence
from millrace.log.state.transactions import apply_batch
from millrace.wire.batch_header import (
    ATTRIBUTES_AT,
    CODEC_MAX,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

logger: Final = logging.getLogger(__name__)

_PREFIX: Final = struct.Struct(">qii")
_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_unpack_header: Final = HEADER.unpack_from
_write_prefix: Final = _PREFIX.pack_into
# A named tuple's own constructor costs twice as much.
_new_tuple: Final = tuple.__new__


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """The timestamp given to all records, or -1 if they keep their own."""
    duplicate: bool


STAGED: Final = Appended(-1, -1, -1, True)
"""In the place of an outcome that is not known yet."""


class LogAppends(LogFiles):
    """A log that batches are added to: a producer's, this broker's own, a leader's."""

    __slots__ = ()

    def append_as_leader(
        self,
        batch: memoryview,
        leader_epoch: int,
        now_ms: int,
        refused_bits: int = CONTROL_BIT,
        token: object = None,
    ) -> Appended:
        """Check one producer's batch, give it offsets and write it; on any error nothing is appended.

        With a token the batch may be staged instead, which the answer STAGED tells: it is written together
        with others by `settle`, and the token comes back to the owner with the outcome."""
        size = len(batch)
        if size < HEADER_SIZE:
            raise InvalidRecord(f"{size} bytes are no record batch")
        (
            sent_base_offset,
            length,
            _,
            magic,
            crc,
            attributes,
            delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = _unpack_header(batch)
        config = self.config
        if (
            length + LENGTH_END != size
            or magic != MAGIC
            or attributes & refused_bits
            or attributes & COMPRESSION_MASK > CODEC_MAX
            or sent_base_offset
            or count <= 0
            or delta != count - 1
            or size > config.max_message_bytes
        ):
            raise batch_checks.refusal(batch, config)
        if crc32c(batch[CRC_START:]) != crc:
            raise CorruptBatch("the checksum of the record batch is wrong")
        append_time_ms = -1
        if config.timestamp_log_append:
            append_time_ms = max_timestamp = now_ms
            _stamp(batch, attributes, now_ms)
        elif (
            attributes & TIMESTAMP_TYPE_BIT
            or max_timestamp - now_ms > config.timestamp_after_max_ms
            or now_ms - base_timestamp > config.timestamp_before_max_ms
        ):
            batch_checks.check_timestamps(attributes, base_timestamp, max_timestamp, now_ms, config)

        producers = self._producers
        entry = None
        follows = False
        if producer_id >= 0:
            if producers is None:
                producers = self._load_producers()
            if producer_id in self._staged_producers:
                follows = (producer_epoch, sequence - 1) == self._staged_producers[producer_id]
                if token is None or not follows:
                    # Whatever else it may be is known when its staged batches are written.
                    self.settle()
                    follows = False
            entry = producers.entries.get(producer_id)
            if not follows and (
                entry is None
                or entry.epoch != producer_epoch
                or entry.last_sequence + 1 != sequence
                or entry.current_txn_first_offset >= 0
            ):
                original = batch_checks.check_sequence(
                    producers, producer_id, producer_epoch, sequence, delta, attributes
                )
                if original is not None:
                    return Appended(original.base_offset, original.last_offset, append_time_ms, True)
                entry = None

        segment = self._active
        if token is not None and attributes & TRANSACTIONAL_BIT == 0 and leader_epoch == self._latest_epoch:
            staged = self._staged
            base_offset = self._staged_end_offset if staged else self.log_end_offset
            last_offset = base_offset + delta
            if (
                segment.size_bytes + self._staged_bytes + size <= segment.size_limit
                and last_offset <= segment.offset_limit
                and max_timestamp <= segment.timestamp_limit
            ):
                data = bytearray(batch)
                _write_prefix(data, 0, base_offset, length, leader_epoch)
                if producer_id >= 0:
                    sequence += delta
                    if sequence > SEQUENCE_MAX:
                        sequence -= SEQUENCE_MAX + 1
                    self._staged_producers[producer_id] = (producer_epoch, sequence)
                staged.append(
                    (
                        data,
                        base_offset,
                        last_offset,
                        max_timestamp,
                        producer_id,
                        producer_epoch,
                        sequence,
                        token,
                    )
                )
                self._staged_bytes += size
                self._staged_end_offset = last_offset + 1
                return STAGED
        if self._staged:
            failure = self.settle()
            segment = self._active
            if follows:
                if failure is not None:
                    # What it follows was not written, so neither may it be.
                    raise failure
                assert producers is not None
                entry = producers.entries.get(producer_id)
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        try:
            if (
                segment.size_bytes + size > segment.size_limit
                or last_offset > segment.offset_limit
                or max_timestamp > segment.timestamp_limit
            ):
                segment = self._prepare_append(size, delta, max_timestamp)
                base_offset = self.log_end_offset
                last_offset = base_offset + delta
            if leader_epoch != self._latest_epoch:
                self.start_epoch(leader_epoch)
            _write_prefix(batch, 0, base_offset, length, leader_epoch)
            position = segment.size_bytes
            try:
                segment.file.write_at(position, batch)
            except StorageError as error:
                self._write_failed(segment, error)
                raise
        except StorageError:
            if producers is not None and producer_id >= 0:
                producers.expect(producer_id, epoch=producer_epoch, sequence=sequence, now_ms=now_ms)
            raise
        # Both at once: if the log's end did not follow the file's, the next batch would get the same offset.
        segment.size_bytes = position + size
        self.log_end_offset = last_offset + 1
        segment.note(position, size, base_offset, last_offset, max_timestamp)

        if producer_id >= 0:
            assert producers is not None
            last_sequence = sequence + delta
            if last_sequence > SEQUENCE_MAX:
                last_sequence -= SEQUENCE_MAX + 1
            if entry is None or attributes & TRANSACTIONAL_BIT:
                producers.record(
                    producer_id,
                    epoch=producer_epoch,
                    last_sequence=last_sequence,
                    last_offset=last_offset,
                    offset_delta=delta,
                    timestamp=max_timestamp,
                    is_transactional=bool(attributes & TRANSACTIONAL_BIT),
                    now_ms=now_ms,
                )
            else:
                # The same as `record` for a known producer in its epoch, without the call.
                entry.last_sequence = last_sequence
                entry.last_timestamp = max_timestamp
                entry.last_append_ms = now_ms
                batches = entry.batches
                batches.append((last_sequence, last_offset, delta, max_timestamp))
                if len(batches) > BATCHES_REMEMBERED:
                    del batches[0]
        if not self._is_dirty:
            self._became_dirty()
        if last_offset >= self._flush_at:
            self.flush_is_due = True
        return _new_tuple(Appended, (base_offset, last_offset, append_time_ms, False))

    @override
    def settle(self) -> MillraceError | None:
        """Write all staged batches with one call, and tell their owner; if the write fails, none was
        appended, and the answer says why. Raises nothing: whoever calls it has a request of his own."""
        staged, self._staged = self._staged, []
        if not staged:
            return None
        self._staged_bytes = 0
        self._staged_producers.clear()
        error: MillraceError | None = None
        segment = self._active
        position = segment.size_bytes
        try:
            self._check_writable()
            data = staged[0][0] if len(staged) == 1 else b"".join([batch[0] for batch in staged])
            try:
                segment.file.write_at(position, data)
            except StorageError as failure:
                self._write_failed(segment, failure)
                raise
            # Both at once, as for a single batch.
            segment.size_bytes = position + len(data)
            self.log_end_offset = self._staged_end_offset
            self._note_staged(segment, staged, position)
        except (StorageError, LogClosed, LogDirectoryOffline) as failure:
            error = failure
            self._expect_staged(staged)
        except Exception as bug:
            logger.exception("%s: %d staged batches", self, len(staged))
            self._read_tail_again()
            error = DiskFailed("append to", self.path, repr(bug))
        if self.settled is not None:
            try:
                self.settled(staged, error)
            except Exception:
                logger.exception("%s: the owner of %d staged batches", self, len(staged))
        return error

    def _expect_staged(self, staged: list[StagedBatch]) -> None:
        producers = self._producers
        if producers is None:
            return
        now_ms = self._home.wall_ms()
        for _, base_offset, last_offset, _, producer_id, epoch, last_sequence, _ in staged:
            if producer_id >= 0:
                sequence = subtract_from_sequence(last_sequence, last_offset - base_offset)
                producers.expect(producer_id, epoch=epoch, sequence=sequence, now_ms=now_ms)

    def _read_tail_again(self) -> None:
        """What memory says of the log's end and of its producers may not be what the files say."""
        self._producers = None
        self._is_tail_open = False
        self._active.forbid_appends()

    def _note_staged(self, segment: Segment, staged: list[StagedBatch], position: int) -> None:
        """What an append does after its write, for each of them."""
        now_ms = self._home.wall_ms()
        note = segment.note
        for data, base_offset, last_offset, max_timestamp, producer_id, epoch, sequence, _ in staged:
            size = len(data)
            note(position, size, base_offset, last_offset, max_timestamp)
            position += size
            if producer_id >= 0:
                assert self._producers is not None
                self._producers.record(
                    producer_id,
                    epoch=epoch,
                    last_sequence=sequence,
                    last_offset=last_offset,
                    offset_delta=last_offset - base_offset,
                    timestamp=max_timestamp,
                    is_transactional=False,
                    now_ms=now_ms,
                )
        if not self._is_dirty:
            self._became_dirty()
        if last_offset >= self._flush_at:
            self.flush_is_due = True

    def append_own(self, batch: memoryview, leader_epoch: int) -> Appended:
        """Give offsets to a batch that this broker made itself, a marker or a coordinator's, and write it.

        Its producer's sequence is not looked at: it is not the producer who sends it."""
        if self._staged:
            self.settle()
        header = HEADER.unpack_from(batch)
        base_offset = self.log_end_offset
        last_offset = base_offset + header[6]
        _write_prefix(batch, 0, base_offset, header[1], leader_epoch)
        self._append_assigned(batch, (base_offset, header[1], leader_epoch, *header[3:]))
        if not self._is_dirty:
            self._became_dirty()
        if last_offset >= self._flush_at:
            self.flush_is_due = True
        return Appended(base_offset, last_offset, -1, False)

    def append_replicated(self, records: memoryview) -> None:
        """Write batches that have their offsets and epochs already: a leader's, a coordinator's markers."""
        if self._staged:
            self.settle()
        headers = batch_checks.split_batches(records, at_least=self.log_end_offset)
        written = 0
        try:
            while written < len(headers):
                written += self._append_run(records, headers, written)
        finally:
            # Those before one that fails are here to stay.
            if written and not self._is_dirty:
                self._became_dirty()
            if self.log_end_offset > self._flush_at:
                self.flush_is_due = True

    def _append_run(self, records: memoryview, headers: list[tuple[int, tuple[int, ...]]], first: int) -> int:
        """Write those batches from `first` on that belong into one segment and epoch, in one write; how
        many."""
        start, header = headers[first]
        segment = self._assign(header)
        epoch = header[2]
        end = start + LENGTH_END + header[1]
        room = segment.size_limit - segment.size_bytes
        count = 1
        for position, header in headers[first + 1 :]:
            next_end = position + LENGTH_END + header[1]
            if (
                header[2] != epoch
                or next_end - start > room
                or header[0] + header[6] > segment.offset_limit
                or header[8] > segment.timestamp_limit
            ):
                break
            end = next_end
            count += 1
        base = segment.size_bytes
        self._write(segment, records[start:end])
        segment.size_bytes = base + end - start
        for position, header in headers[first : first + count]:
            batch_end = position + LENGTH_END + header[1]
            self._written(segment, base + position - start, records[position:batch_end], header)
        return count

    def _append_assigned(self, batch: memoryview, header: tuple[int, ...]) -> None:
        segment = self._assign(header)
        position = segment.size_bytes
        self._write(segment, batch)
        segment.size_bytes = position + len(batch)
        self._written(segment, position, batch, header)

    def _assign(self, header: tuple[int, ...]) -> Segment:
        """The segment that a batch with offsets of its own goes to; its epoch is known from now on."""
        base_offset, epoch, max_timestamp = header[0], header[2], header[8]
        size = LENGTH_END + header[1]
        segment = self._active
        last_offset = base_offset + header[6]
        if (
            segment.size_bytes + size > segment.size_limit
            or last_offset > segment.offset_limit
            or max_timestamp > segment.timestamp_limit
        ):
            segment = self._prepare_append(size, last_offset - self.log_end_offset, max_timestamp)
        if self._producers is None:
            self._load_producers()
        if epoch != self._latest_epoch and self.epochs.assign(epoch, base_offset):
            self.epochs_changed()
        return segment

    def _write(self, segment: Segment, data: memoryview) -> None:
        try:
            segment.file.write_at(segment.size_bytes, data)
        except StorageError as error:
            self._write_failed(segment, error)
            raise

    def _written(self, segment: Segment, position: int, batch: memoryview, header: tuple[int, ...]) -> None:
        """Take a batch that is in the file into the log."""
        base_offset, last_offset = header[0], header[0] + header[6]
        if base_offset != self.log_end_offset:
            segment.forget_recent()
            if not self.config.cleanup_compact:
                # The leader's log was compacted once: this gap is no loss, and never to be taken for one.
                self.first_dirty_offset = max(self.first_dirty_offset, last_offset + 1)
        self.log_end_offset = last_offset + 1
        segment.note(position, len(batch), base_offset, last_offset, header[8])
        producer_id = header[9]
        if producer_id >= 0:
            producers = self.producers
            first_offset = producers.open_since(producer_id)
            aborted = apply_batch(producers, header, batch, now_ms=self._home.wall_ms())
            if first_offset >= 0 and producers.open_since(producer_id) < 0:
                producers.transaction_ended(first_offset, last_offset, self.high_watermark)
            if aborted is not None:
                self._note_aborted(segment, aborted)

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        try:
            index = segment.txn_index
        except StorageError as error:
            # The marker is in the log already, and without this entry readers of committed records would get
            # to see what was aborted. The next start makes the entry from the log.
            self._home.fence(str(error))
            return
        # A crash makes the entry anew only for what comes behind the recovery point, so the next flush brings
        # it to the disk, or fails.
        self.sync_later(index.file.path)
        try:
            index.append(aborted)
        except StorageError as error:
            self._home.write_refused(error)

    def _prepare_append(self, size: int, delta: int, max_timestamp: int) -> Segment:
        """Whatever an append may need beyond a write: open the tail, repair a torn write, roll."""
        self._check_writable()
        try:
            return self._make_ready(size, delta, max_timestamp)
        except StorageError as error:
            self._home.write_refused(error)
            raise

    def _make_ready(self, size: int, delta: int, max_timestamp: int) -> Segment:
        config = self.config
        if size > config.segment_bytes:
            raise BatchTooLarge(size, size_bytes_max=config.segment_bytes)
        if not self._is_tail_open:
            self._open_tail()
        segment = self._active
        if self._is_torn:
            segment.file.truncate(segment.size_bytes)
            self._is_torn = False
        jitter_ms = self._home.roll_jitter_ms(config.segment_jitter_ms)
        if segment.size_limit < 0:
            segment.set_limits(config, jitter_ms)
        if segment.size_bytes and (
            segment.size_bytes + size > segment.size_limit
            or self.log_end_offset + delta > segment.offset_limit
            or max_timestamp > segment.timestamp_limit
        ):
            segment = self._roll()
            segment.set_limits(config, jitter_ms)
        if segment.size_bytes == 0:
            # The write may be what creates the file: without its name its flushed content is worth nothing.
            self.sync_later(directory=self.path)
            segment.note_first_batch(max_timestamp, config, jitter_ms)
        return segment

    def _write_failed(self, segment: Segment, error: StorageError) -> None:
        """Nothing of the batch counts. Whatever reached the file is cut off now or before the next write."""
        segment.forbid_appends()
        self._is_torn = True
        self._home.write_refused(error)
        if self._home.offline_reason is not None:
            return
        try:
            segment.file.truncate(segment.size_bytes)
        except StorageError:
            return
        self._is_torn = False


def _stamp(batch: memoryview, attributes: int, now_ms: int) -> None:
    """Give all records the broker's time: a bit and the largest timestamp in the header say so."""
    _INT16.pack_into(batch, ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_BIT)
    _INT64.pack_into(batch, MAX_TIMESTAMP_AT, now_ms)
    _UINT32.pack_into(batch, CRC_AT, crc32c(batch[CRC_START:]))
