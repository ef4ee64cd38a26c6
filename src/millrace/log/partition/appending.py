"""Appending to a log, except for the path of most batches, which is `PartitionLog.append_as_leader`.

Here are its rare steps, and the appends of batches that no producer sends: this broker's own, and those that
a leader has numbered.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from millrace.log.batches.checks import check_sequence
from millrace.log.errors import StorageError
from millrace.log.segments.segment import Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_state import RememberedBatch
from millrace.log.state.transactions import apply_batch
from millrace.wire.batch_header import (
    ATTRIBUTES_AT,
    CRC_AT,
    CRC_START,
    HEADER,
    LENGTH_END,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_BIT,
)

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
write_prefix: Final = struct.Struct(">qii").pack_into
"""The start of a batch: base offset, length, leader epoch. The checksum covers none of them."""


class Appended(NamedTuple):
    """Where a batch is in the log."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """The timestamp given to all records, or -1 if they keep their own."""
    duplicate: bool


STAGED: Final = Appended(-1, -1, -1, True)
"""Stands in the place of an outcome that is not known yet."""


def stamp(batch: memoryview, attributes: int, now_ms: int) -> None:
    """Give all records the broker's time: a bit and the largest timestamp in the header say so."""
    _INT16.pack_into(batch, ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_BIT)
    _INT64.pack_into(batch, MAX_TIMESTAMP_AT, now_ms)
    _UINT32.pack_into(batch, CRC_AT, crc32c(batch[CRC_START:]))


def prepare(
    log: PartitionLog, header: tuple[int, ...], leader_epoch: int, max_timestamp: int, now_ms: int
) -> Segment:
    """Do what a producer's batch needs beyond a write: another segment, another epoch. Returns the segment
    that takes it."""
    _, length, _, _, _, _, delta, _, _, _, _, _, _ = header
    segment = log.segment_list.active
    try:
        if not segment.has_room(LENGTH_END + length, log.log_end_offset + delta, max_timestamp):
            segment = log.tail.prepare(LENGTH_END + length, delta, max_timestamp)
        if leader_epoch != log.state.latest_epoch:
            log.state.start_epoch(leader_epoch)
    except StorageError:
        _expect_again(log, header, now_ms)
        raise
    return segment


def write_failed(
    log: PartitionLog, segment: Segment, error: StorageError, header: tuple[int, ...], now_ms: int
) -> None:
    """Undo a failed write: nothing of the producer's batch counts."""
    log.tail.write_failed(segment, error)
    _expect_again(log, header, now_ms)


def _expect_again(log: PartitionLog, header: tuple[int, ...], now_ms: int) -> None:
    """Note that a batch could not be stored: its producer has to send it again before others."""
    producers = log.state.loaded_producers
    _, _, _, _, _, _, _, _, _, producer_id, producer_epoch, sequence, _ = header
    if producers is not None and producer_id >= 0:
        producers.expect(producer_id, epoch=producer_epoch, sequence=sequence, now_ms=now_ms)


def append_own(log: PartitionLog, batch: memoryview, leader_epoch: int) -> Appended:
    """Give offsets to a batch that this broker has made, and write it."""
    log.write_staged()
    header = HEADER.unpack_from(batch)
    _, length, _, _, _, _, delta, _, _, _, _, _, _ = header
    base_offset = log.log_end_offset
    last_offset = base_offset + delta
    write_prefix(batch, 0, base_offset, length, leader_epoch)
    numbered = (base_offset, length, leader_epoch, *header[3:])
    segment = _segment_for(log, numbered)
    position = segment.size_bytes
    log.tail.write(segment, batch)
    segment.size_bytes = position + len(batch)
    _enter(log, segment, position, batch, numbered)
    log.flushing.wrote(last_offset)
    return Appended(base_offset, last_offset, -1, False)


def append_thinned(log: PartitionLog, batch: memoryview, leader_epoch: int, now_ms: int) -> Appended:
    """Append a producer's batch of which some records were taken out, perhaps all. It was checked as it was
    sent (`checks.check_sent`), and gets the offsets that it would have had as a whole."""
    header = HEADER.unpack_from(batch)
    _, length, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, _ = header
    append_time_ms = -1
    if log.config.timestamp_log_append:
        append_time_ms = max_timestamp = now_ms
        stamp(batch, attributes, now_ms)
    original = find_original(log, header)
    if original is not None:
        return Appended(original.base_offset, original.last_offset, append_time_ms, True)
    segment = prepare(log, header, leader_epoch, max_timestamp, now_ms)
    base_offset = log.log_end_offset
    last_offset = base_offset + delta
    write_prefix(batch, 0, base_offset, length, leader_epoch)
    position = segment.size_bytes
    try:
        segment.file.write_at(position, batch)
    except StorageError as error:
        write_failed(log, segment, error, header, now_ms)
        raise
    segment.size_bytes = position + len(batch)
    log.log_end_offset = last_offset + 1
    segment.note(position, len(batch), base_offset, last_offset, max_timestamp)
    if producer_id >= 0:
        log.state.producers.record(header, last_offset, max_timestamp, now_ms)
    if last_offset >= log.flushing.notice_at:
        log.flushing.wrote(last_offset)
    return Appended(base_offset, last_offset, append_time_ms, False)


def find_original(log: PartitionLog, header: tuple[int, ...]) -> RememberedBatch | None:
    """Where an idempotent producer's batch is, if it was appended before; raises if it cannot be next."""
    log.write_staged()
    _, _, _, _, _, _, _, _, _, producer_id, _, _, _ = header
    return None if producer_id < 0 else check_sequence(log.state.producers, header)


def append_run(
    log: PartitionLog, records: memoryview, batches: list[tuple[int, int, tuple[int, ...]]]
) -> int:
    """Write, with one call, the first of a leader's batches: those that belong into one segment and epoch.
    Returns how many."""
    start, end, header = batches[0]
    segment = _segment_for(log, header)
    room = segment.size_limit - segment.size_bytes
    _, _, run_epoch, _, _, _, _, _, _, _, _, _, _ = header
    count = 1
    for _, next_end, header in batches[1:]:
        base_offset, _, epoch, _, _, _, delta, _, max_timestamp, _, _, _, _ = header
        if (
            epoch != run_epoch
            or next_end - start > room
            or base_offset + delta > segment.offset_limit
            or max_timestamp > segment.timestamp_limit
        ):
            break
        end = next_end
        count += 1
    base = segment.size_bytes
    try:
        segment.file.write_at(base, records[start:end])
    except StorageError as error:
        log.tail.write_failed(segment, error)
        raise
    segment.size_bytes = base + end - start
    for position, end, header in batches[:count]:
        _enter(log, segment, base + position - start, records[position:end], header)
    return count


def _segment_for(log: PartitionLog, header: tuple[int, ...]) -> Segment:
    """The segment that a numbered batch goes to. From now on the log knows the batch's epoch."""
    base_offset, length, epoch, _, _, _, delta, _, max_timestamp, _, _, _, _ = header
    last_offset = base_offset + delta
    segment = log.segment_list.active
    if not segment.has_room(LENGTH_END + length, last_offset, max_timestamp):
        segment = log.tail.prepare(LENGTH_END + length, last_offset - log.log_end_offset, max_timestamp)
    state = log.state
    if state.loaded_producers is None:
        state.load_producers()
    if epoch != state.latest_epoch and state.epochs.assign(epoch, base_offset):
        state.epochs_changed()
    return segment


def _enter(
    log: PartitionLog, segment: Segment, position: int, batch: memoryview, header: tuple[int, ...]
) -> None:
    """Take a batch that is in the file into the log."""
    base_offset, _, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = header
    last_offset = base_offset + delta
    if base_offset != log.log_end_offset:
        segment.forget_recent()
        if not log.config.cleanup_compact:
            # The leader's log was compacted once: this gap is no loss, and must never be taken for one.
            log.first_dirty_offset = max(log.first_dirty_offset, last_offset + 1)
    log.log_end_offset = last_offset + 1
    segment.note(position, len(batch), base_offset, last_offset, max_timestamp)
    if producer_id >= 0:
        producers = log.state.producers
        first_offset = producers.open_since(producer_id)
        aborted = apply_batch(producers, header, batch, log.home.wall_ms())
        if first_offset >= 0 and producers.open_since(producer_id) < 0:
            producers.transaction_ended(first_offset, last_offset, log.high_watermark)
        if aborted is not None:
            _enter_aborted(log, segment, aborted)


def _enter_aborted(log: PartitionLog, segment: Segment, aborted: AbortedTransaction) -> None:
    try:
        index = segment.txn_index
    except StorageError as error:
        # The marker is in the log already, and without this entry readers of committed records would get
        # to see what was aborted. The next start makes the entry from the log.
        log.home.fence(str(error))
        return
    # A crash makes the entry anew only for what comes behind the recovery point, so the next flush brings
    # it to the disk, or fails.
    log.sync_later(index.file.path)
    try:
        index.append(aborted)
    except StorageError as error:
        log.home.write_refused(error)
