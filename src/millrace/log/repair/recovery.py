"""Finds out, after a crash, what of a log's files can be believed.

From the recovery point on every batch's checksum is computed. Behind the last good batch lies the torn tail
of a write that was never finished: it is cut. Damage that has good batches behind it is something else: it
is put in quarantine, and nothing behind it is touched. The end of a segment that is missing before another
segment is such damage, too: a power loss may take a file's content and leave that of the next one. Indexes,
epochs and producers are then made from the good batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog
from millrace.log.partition.isolation import past_damage_in
from millrace.log.partition.layout import find_segments
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segments.scanning import NO_BOUND, BatchReader
from millrace.log.segments.segment import DELETED_SUFFIX, TXN_INDEX_SUFFIX, Segment
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.epochs import (
    LeaderEpochs,
    epochs_from_batches,
    is_contradicted,
    load_epochs,
    save_epochs,
)
from millrace.log.state.producer_snapshots import load_producers, remove_snapshots
from millrace.log.state.producer_state import ProducerStates
from millrace.wire.batch_header import HEADER_SIZE, LENGTH_END, read_header

logger: Final = logging.getLogger(__name__)

_REPORT_BYTES: Final = 4 * 1024 * 1024
"""So much is checked between two reports: the loop has others to listen to."""


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A log whose files are sound, and what recovery computed from them and did to them."""

    segments: list[Segment]
    log_end_offset: int
    epochs: LeaderEpochs
    producers: ProducerStates
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    damage: list[tuple[str, DamagedRange]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Scan:
    """What was found in one segment."""

    start: int
    good_end: int
    next_offset: int
    good_batches: int = 0
    damage: list[DamagedRange] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _ScannedLog:
    """What was found from the recovery point on."""

    first: int
    """The number of the first segment that was scanned."""
    start_offset: int
    next_offset: int
    scans: list[_Scan] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Each leader epoch that batches have, and the offset of the first of them."""


def recover_log(
    volume: Volume,
    directory: str,
    *,
    recovery_point: int,
    log_start_offset: int,
    high_watermark: int,
    compacted_end: int,
    index_interval_bytes: int,
    now_ms: int,
    on_bytes: Callable[[int], None] = lambda size_bytes: None,
) -> RecoveredLog:
    """Bring the files of one partition into a sound state.

    Up to `compacted_end` a gap before a segment may be compaction's work; behind it, something is missing
    there. Runs in the executor; nobody else uses the files yet.
    """
    segments = _find_segments(volume, directory, log_start_offset, index_interval_bytes)
    scanned = _scan(segments, recovery_point, on_bytes)
    if scanned.next_offset < recovery_point and (scanned.first or scanned.scans[0].start):
        # Flushed records reach that far, so log or checkpoint is wrong: the whole log is checked.
        logger.error(
            "%s ends at %d, before its recovery point %d, and is checked from its start",
            directory,
            scanned.next_offset,
            recovery_point,
        )
        for segment in segments:
            segment.forget_indexes()
        segments = _find_segments(volume, directory, log_start_offset, index_interval_bytes)
        scanned = _scan(segments, 0, on_bytes)
    recovered = _cut_and_isolate(
        volume, segments, scanned, log_start_offset=log_start_offset, compacted_end=compacted_end
    )
    recovered.epochs = _recover_epochs(volume, directory, recovered, scanned.epochs)
    recovered.producers = _recover_producers(
        volume,
        directory,
        recovered.segments,
        log_start_offset=log_start_offset,
        scan_offset=min(scanned.start_offset, recovered.log_end_offset),
        log_end_offset=recovered.log_end_offset,
        high_watermark=high_watermark,
        now_ms=now_ms,
    )
    _sync(volume, directory, recovered, recovered.segments[scanned.first :])
    return recovered


def _find_segments(
    volume: Volume, directory: str, log_start_offset: int, index_interval_bytes: int
) -> list[Segment]:
    segments = find_segments(volume, directory, first_offset=log_start_offset)
    for segment in segments:
        segment.index_interval_bytes = index_interval_bytes
    return segments


def _scan(segments: list[Segment], recovery_point: int, on_bytes: Callable[[int], None]) -> _ScannedLog:
    """Check every batch from the recovery point on."""
    first = max(
        (number for number, segment in enumerate(segments) if segment.base_offset <= recovery_point),
        default=0,
    )
    position, start_offset = 0, segments[first].base_offset
    if recovery_point > start_offset:
        position, start_offset = _trusted_start(segments[first], recovery_point)
    scanned = _ScannedLog(first=first, start_offset=start_offset, next_offset=start_offset)
    for number in range(first, len(segments)):
        segment = segments[number]
        upper = segments[number + 1].base_offset if number + 1 < len(segments) else None
        next_offset = max(scanned.next_offset, segment.base_offset)
        scan = _scan_segment(
            segment, position, scanned.epochs, on_bytes, next_offset=next_offset, upper_offset=upper
        )
        scanned.scans.append(scan)
        scanned.next_offset = scan.next_offset
        position = 0
    return scanned


def _recover_epochs(
    volume: Volume, directory: str, recovered: RecoveredLog, seen: list[tuple[int, int]]
) -> LeaderEpochs:
    """The epochs of the checkpoint and of the batches behind it, or of all batches if those contradict it."""
    segments, end_offset = recovered.segments, recovered.log_end_offset
    epochs = load_epochs(volume, directory)
    known_starts = () if epochs is None else epochs.starts
    if epochs is not None:
        check = partial(is_contradicted, epochs, segments, end_offset=end_offset)
        epochs = None if past_damage_in(volume, segments, check, end_offset=end_offset) else epochs
    if epochs is None:
        epochs = past_damage_in(
            volume, segments, lambda: epochs_from_batches(segments), end_offset=end_offset
        )
    else:
        for epoch, offset in seen:
            if epoch > epochs.latest:
                epochs.assign(epoch, offset)
        epochs.truncate_from_end(end_offset)
    if epochs.starts != known_starts:
        save_epochs(volume, directory, epochs, durable=True)
    return epochs


def _sync(volume: Volume, directory: str, recovered: RecoveredLog, scanned: list[Segment]) -> None:
    """Bring to the disk what recovery has changed."""
    if not (recovered.scanned_bytes or recovered.truncated_bytes or recovered.damage):
        # All of the log was flushed before the crash; with thousands of idle partitions every fsync counts.
        for segment in scanned:
            segment.forget_indexes()
        return
    for segment in scanned:
        segment.finish_indexes()
        for handle in segment.handles_to_sync(with_indexes=True):
            handle.sync()
        segment.forget_indexes()
    volume.sync_directory(directory)


def _trusted_start(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """A batch at or before the recovery point, if the index is right about it; else the segment's start."""
    try:
        position = segment.start_before(recovery_point)
    except CorruptLog:
        # The index is wrong, or could not be made again because the last batches are torn.
        return 0, segment.base_offset
    if position == 0:
        return 0, segment.base_offset
    header = read_header(segment.file.read_at(position, HEADER_SIZE))
    entries = segment.offset_index.entries()
    is_sorted = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    if not is_sorted or not segment.base_offset <= header.base_offset <= recovery_point:
        return 0, segment.base_offset
    return position, header.base_offset


def _scan_segment(
    segment: Segment,
    position: int,
    seen_epochs: list[tuple[int, int]],
    on_bytes: Callable[[int], None],
    *,
    next_offset: int,
    upper_offset: int | None,
) -> _Scan:
    """Check every batch from `position` on, and make the index entries for them."""
    _reset_indexes(segment, position, next_offset=next_offset)
    scan = _Scan(start=position, good_end=position, next_offset=next_offset)
    reader = BatchReader(
        segment.file.handle().read_at,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        upper_offset=NO_BOUND if upper_offset is None else upper_offset,
    )
    last_epoch = -1
    unreported = 0
    while position < segment.size_bytes:
        fields = reader.sound_batch(position, next_offset=scan.next_offset, last_epoch=last_epoch)
        if fields is None:
            damaged = reader.damage_at(position, next_offset=scan.next_offset)
            if position + damaged.size_bytes == segment.size_bytes:
                # Nothing good follows.
                break
            scan.damage.append(damaged)
            position += damaged.size_bytes
            continue
        base_offset, length, epoch, _, _, _, delta, _, max_timestamp, _, _, _, _ = fields
        size = LENGTH_END + length
        segment.note(position, size, base_offset, base_offset + delta, max_timestamp)
        if epoch > last_epoch:
            last_epoch = epoch
            seen_epochs.append((epoch, base_offset))
        position += size
        scan.good_end = position
        scan.good_batches += 1
        scan.next_offset = base_offset + delta + 1
        unreported += size
        if unreported >= _REPORT_BYTES:
            on_bytes(unreported)
            unreported = 0
    on_bytes(unreported)
    segment.recent_offsets.clear()
    segment.recent_positions.clear()
    return scan


def _reset_indexes(segment: Segment, position: int, *, next_offset: int) -> None:
    if position == 0:
        segment.clear_indexes()
        return
    segment.offset_index.truncate_to(next_offset)
    segment.time_index.truncate_to(next_offset)
    segment.max_timestamp = segment.time_index.last_timestamp
    segment.max_timestamp_offset = segment.time_index.last_offset
    # The first batch of the scan had an entry, and has to get one again.
    segment.unindexed_bytes = segment.index_interval_bytes + 1


def _cut_and_isolate(
    volume: Volume,
    segments: list[Segment],
    scanned: _ScannedLog,
    *,
    log_start_offset: int,
    compacted_end: int,
) -> RecoveredLog:
    """Cut behind the last good batch, and put in quarantine what is bad before it."""
    first, scans = scanned.first, scanned.scans
    last = max((number for number, scan in enumerate(scans) if scan.good_batches), default=0)
    recovered = RecoveredLog(
        segments=segments[: first + last + 1],
        log_end_offset=scans[last].next_offset,
        epochs=LeaderEpochs(),
        producers=ProducerStates(),
    )
    for number in range(len(scans) - 1, -1, -1):
        segment, scan = segments[first + number], scans[number]
        damage = scan.damage
        if number > last:
            recovered.truncated_bytes += segment.size_bytes
            segment.rename_to(DELETED_SUFFIX)
            continue
        torn = segment.size_bytes - scan.good_end
        upper = segments[first + number + 1].base_offset if number < last else scan.next_offset
        is_incomplete = scan.next_offset < upper
        if is_incomplete and (torn or _is_end_missing(segment, upper, log_start_offset, compacted_end)):
            damage = [*damage, DamagedRange(scan.good_end, torn, scan.next_offset, upper)]
        elif torn:
            recovered.truncated_bytes += torn
            segment.file.truncate(scan.good_end)
            segment.size_bytes = scan.good_end
        kept = tuple(known for known in segment.damage if known.position < scan.start)
        segment.damage = (*kept, *damage)
        save_damage(volume, segment.path(QUARANTINE_SUFFIX), segment.damage)
        for damaged in damage:
            logger.error(
                "%s: %d bytes at %d are damaged or missing, offsets %d to %d are in quarantine",
                segment.file.path,
                damaged.size_bytes,
                damaged.position,
                damaged.first_offset,
                damaged.next_offset - 1,
            )
            recovered.damage.append((segment.file.path, damaged))
    recovered.scanned_bytes = sum(segments[first + i].size_bytes - scan.start for i, scan in enumerate(scans))
    return recovered


def _is_end_missing(segment: Segment, upper_offset: int, log_start_offset: int, compacted_end: int) -> bool:
    """Whether a segment whose batches end before the next segment begins has lost some of them."""
    if upper_offset <= log_start_offset:
        return False
    was_known = any(known.next_offset >= upper_offset for known in segment.damage)
    return was_known or upper_offset > compacted_end


def _recover_producers(
    volume: Volume,
    directory: str,
    segments: list[Segment],
    *,
    log_start_offset: int,
    scan_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> ProducerStates:
    """The producers, from the newest snapshot before the scan: later ones may tell of lost batches."""
    for number, segment in enumerate(segments):
        # An index that ends before the scan loses nothing, and one wrong entry could cost it all others.
        is_before = number + 1 < len(segments) and segments[number + 1].base_offset <= scan_offset
        if not is_before and volume.exists(segment.path(TXN_INDEX_SUFFIX)):
            segment.txn_index.truncate_to(scan_offset)

    def work() -> tuple[ProducerStates, list[tuple[Segment, AbortedTransaction]]]:
        found: list[tuple[Segment, AbortedTransaction]] = []
        states = load_producers(
            volume,
            directory,
            segments,
            log_start_offset=log_start_offset,
            snapshot_offset_max=scan_offset,
            end_offset=log_end_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
            on_aborted=lambda segment, aborted: found.append((segment, aborted)),
        )
        return states, found

    # Nobody has checked yet what lies before the scan.
    states, aborted_in = past_damage_in(volume, segments, work, end_offset=log_end_offset)
    for segment, aborted in aborted_in:
        if aborted.last_offset >= scan_offset:
            segment.txn_index.append(aborted)
    remove_snapshots(volume, directory, above=log_end_offset)
    return states
