"""After a crash: what of a log's files can be believed.

From the recovery point on every batch's checksum is computed. Behind the last good batch lies the torn tail
of a write that was never finished: it is cut. Damage that has good batches behind it is something else: it
is put in quarantine, and nothing behind it is touched. The end of a segment that is missing before another
segment is such damage, too: a power loss may take a file's content and leave that of the next one. Indexes,
epochs and producers are then made from the good batches.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from crc32c import crc32c

from millrace.log.epochs import LeaderEpochs, epochs_from_batches, load_epochs, save_epochs
from millrace.log.errors import CorruptLog
from millrace.log.layout import find_segments
from millrace.log.producer_snapshots import newest_snapshot, remember_older_batches, remove_snapshots, replay
from millrace.log.producer_state import ProducerStates
from millrace.log.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segment import (
    BATCH_LENGTH_MIN,
    DELETED_SUFFIX,
    RELATIVE_OFFSET_MAX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from millrace.log.txn_index import AbortedTransaction
from millrace.log.volume import Volume
from millrace.wire.batch_header import CRC_START, HEADER, HEADER_SIZE, LENGTH_END, MAGIC

logger: Final = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
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


def recover_log(
    volume: Volume,
    directory: str,
    *,
    recovery_point: int,
    log_start_offset: int,
    compacted_end: int,
    index_interval_bytes: int,
    now_ms: int,
    on_bytes: Callable[[int], None] = lambda size_bytes: None,
) -> RecoveredLog:
    """Bring the files of one partition into a sound state.

    Up to `compacted_end` a gap before a segment may be compaction's work; behind it, something is missing
    there. Runs in the executor; nobody else uses the files yet.
    """
    segments = find_segments(volume, directory, first_offset=log_start_offset)
    for segment in segments:
        segment.index_interval_bytes = index_interval_bytes
    first = max(
        (number for number, segment in enumerate(segments) if segment.base_offset <= recovery_point),
        default=0,
    )
    scans: list[_Scan] = []
    next_offset = segments[first].base_offset
    scan_offset = next_offset
    epochs = load_epochs(volume, directory)
    seen_epochs: list[tuple[int, int]] = []
    for number in range(first, len(segments)):
        segment = segments[number]
        upper = segments[number + 1].base_offset if number + 1 < len(segments) else None
        position = 0
        if number == first and recovery_point > segment.base_offset:
            position, scan_offset = _trusted_start(segment, recovery_point)
            next_offset = scan_offset
        scan = _scan_segment(
            segment, position, max(next_offset, segment.base_offset), upper, seen_epochs, on_bytes
        )
        next_offset = scan.next_offset
        scans.append(scan)

    recovered = _settle(
        volume, segments, first, scans, log_start_offset=log_start_offset, compacted_end=compacted_end
    )
    recovered.scanned_bytes = sum(segments[first + i].size_bytes - scan.start for i, scan in enumerate(scans))
    log_end_offset = recovered.log_end_offset
    known_starts = () if epochs is None else epochs.starts
    if epochs is None:
        epochs = epochs_from_batches(recovered.segments)
    else:
        for epoch, offset in seen_epochs:
            if epoch > epochs.latest:
                epochs.assign(epoch, offset)
        epochs.truncate_from_end(log_end_offset)
    if epochs.starts != known_starts:
        save_epochs(volume, directory, epochs, durable=True)
    recovered.epochs = epochs
    recovered.producers = _recover_producers(
        volume,
        directory,
        recovered.segments,
        log_start_offset,
        min(scan_offset, log_end_offset),
        log_end_offset,
        now_ms,
    )
    if not (recovered.scanned_bytes or recovered.truncated_bytes or recovered.damage):
        # All of it was flushed before the crash, and with thousands of idle partitions every fsync counts.
        for segment in recovered.segments[first:]:
            segment.forget_indexes()
        return recovered
    for segment in recovered.segments[first:]:
        segment.finish_indexes()
        for handle in segment.handles_to_sync(with_indexes=True):
            handle.sync()
        segment.forget_indexes()
    volume.sync_directory(directory)
    return recovered


def _trusted_start(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """A batch at or before the recovery point, if the index is right about it; else the segment's start."""
    try:
        position = segment.offset_index.position_before(recovery_point)
    except CorruptLog:
        # Without a usable index it was to be made from the batches, and the last of those are torn.
        return 0, segment.base_offset
    if position == 0:
        return 0, segment.base_offset
    header = HEADER.unpack(segment.file.read_at(position, HEADER_SIZE))
    entries = segment.offset_index.entries()
    is_sorted = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    if not is_sorted or header[3] != MAGIC or not segment.base_offset <= header[0] <= recovery_point:
        return 0, segment.base_offset
    return position, header[0]


def _scan_segment(
    segment: Segment,
    position: int,
    next_offset: int,
    upper_offset: int | None,
    seen_epochs: list[tuple[int, int]],
    on_bytes: Callable[[int], None],
) -> _Scan:
    """Check every batch from `position` on, and make the index entries for them."""
    _reset_indexes(segment, position, next_offset)
    scan = _Scan(start=position, good_end=position, next_offset=next_offset)
    reader = _Reader(segment)
    last_epoch = -1
    while position < segment.size_bytes:
        header = reader.sound_batch(position, scan.next_offset, upper_offset)
        if header is None:
            resume = _find_sound_batch(reader, position, scan.next_offset, upper_offset)
            if resume is None:
                break
            resume_offset = reader.header(resume)[0]
            scan.damage.append(DamagedRange(position, resume - position, scan.next_offset, resume_offset))
            position = resume
            continue
        size = LENGTH_END + header[1]
        segment.note(position, size, header[0], header[0] + header[6], header[8])
        if header[2] > last_epoch:
            last_epoch = header[2]
            seen_epochs.append((last_epoch, header[0]))
        position += size
        scan.good_end = position
        scan.good_batches += 1
        scan.next_offset = header[0] + header[6] + 1
        on_bytes(size)
    segment.recent_offsets.clear()
    segment.recent_positions.clear()
    return scan


def _reset_indexes(segment: Segment, position: int, next_offset: int) -> None:
    if position == 0:
        segment.clear_indexes()
        return
    segment.offset_index.truncate_to(next_offset)
    segment.time_index.truncate_to(next_offset)
    segment.max_timestamp = segment.time_index.last_timestamp
    segment.max_timestamp_offset = segment.time_index.last_offset
    # The first batch of the scan had an entry; it gets one again.
    segment.unindexed_bytes = segment.index_interval_bytes + 1


class _Reader:
    """Large reads behind small questions."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._read_at = segment.file.handle().read_at
        self._start = 0
        self._data = b""

    def bytes_at(self, position: int, size_bytes: int) -> memoryview:
        if position < self._start or position + size_bytes > self._start + len(self._data):
            self._data = self._read_at(position, max(size_bytes, _CHUNK_BYTES))
            self._start = position
        at = position - self._start
        return memoryview(self._data)[at : at + size_bytes]

    def header(self, position: int) -> tuple[int, ...]:
        return HEADER.unpack(self.bytes_at(position, HEADER_SIZE))

    def sound_batch(
        self, position: int, next_offset: int, upper_offset: int | None
    ) -> tuple[int, ...] | None:
        """The header, if a whole batch with a right checksum and a possible offset is there."""
        segment = self._segment
        if position + HEADER_SIZE > segment.size_bytes:
            return None
        header = self.header(position)
        size = LENGTH_END + header[1]
        last_offset = header[0] + header[6]
        if (
            header[1] < BATCH_LENGTH_MIN
            or position + size > segment.size_bytes
            or header[3] != MAGIC
            or header[6] < 0
            or header[0] < next_offset
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or (upper_offset is not None and last_offset >= upper_offset)
        ):
            return None
        batch = self.bytes_at(position, size)
        return header if len(batch) == size and crc32c(batch[CRC_START:]) == header[4] else None


def _find_sound_batch(
    reader: _Reader, position: int, next_offset: int, upper_offset: int | None
) -> int | None:
    """Where the batches go on behind damage, or None if nothing good follows."""
    segment = reader._segment
    if position + HEADER_SIZE <= segment.size_bytes:
        length = reader.header(position)[1]
        following = position + LENGTH_END + length
        # The length may have survived. Then what follows is no accident in somebody's payload.
        if (
            length >= BATCH_LENGTH_MIN
            and reader.sound_batch(following, next_offset, upper_offset) is not None
        ):
            return following
    pattern = _batch_start_pattern(segment.base_offset)
    window = position + 1
    while window + HEADER_SIZE <= segment.size_bytes:
        data = bytes(reader.bytes_at(window, min(_CHUNK_BYTES, segment.size_bytes - window)))
        for match in pattern.finditer(data):
            candidate = window + match.start()
            header = reader.sound_batch(candidate, next_offset, upper_offset)
            if header is not None and _chain_holds(reader, candidate, header, upper_offset):
                return candidate
        window += max(len(data) - HEADER_SIZE, 1)
    return None


def _chain_holds(reader: _Reader, position: int, header: tuple[int, ...], upper_offset: int | None) -> bool:
    """Whether another batch or the end of the file follows: bytes of a payload do not look so."""
    following = position + LENGTH_END + header[1]
    if following == reader._segment.size_bytes:
        return True
    return reader.sound_batch(following, header[0] + header[6] + 1, upper_offset) is not None


def _batch_start_pattern(base_offset: int) -> re.Pattern[bytes]:
    """Eight bytes of an offset that this segment can hold, eight of anything, the format's number."""
    highs = sorted({base_offset >> 32, (base_offset + RELATIVE_OFFSET_MAX) >> 32})
    alternatives = b"|".join(re.escape(high.to_bytes(4, "big")) for high in highs)
    return re.compile(b"(?=(?:%s).{12}\x02)" % alternatives, re.DOTALL)


def _settle(
    volume: Volume,
    segments: list[Segment],
    first: int,
    scans: list[_Scan],
    *,
    log_start_offset: int,
    compacted_end: int,
) -> RecoveredLog:
    """Cut behind the last good batch, and put in quarantine what is bad before it."""
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
    return recovered


def _is_end_missing(segment: Segment, upper_offset: int, log_start_offset: int, compacted_end: int) -> bool:
    """Whether a segment whose batches end before the next one begins has lost some."""
    if upper_offset <= log_start_offset:
        return False
    was_known = any(known.next_offset >= upper_offset for known in segment.damage)
    return was_known or upper_offset > compacted_end


def _recover_producers(
    volume: Volume,
    directory: str,
    segments: list[Segment],
    log_start_offset: int,
    scan_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> ProducerStates:
    """From the newest snapshot before the scan: what comes after it may have been written and lost again."""
    for segment in segments:
        if volume.exists(segment.path(TXN_INDEX_SUFFIX)):
            segment.txn_index.truncate_to(scan_offset)

    def on_aborted(segment: Segment, aborted: AbortedTransaction) -> None:
        if aborted.last_offset >= scan_offset:
            segment.txn_index.append(aborted)

    offset, states = newest_snapshot(
        volume, directory, first_offset=segments[0].base_offset, end_offset=scan_offset, now_ms=now_ms
    )
    if states.entries:
        remember_older_batches(states, segments, offset)
    replay(states, segments, offset, log_end_offset, now_ms=now_ms, on_aborted=on_aborted)
    states.truncate_from_start(log_start_offset)
    remove_snapshots(volume, directory, above=log_end_offset)
    return states
