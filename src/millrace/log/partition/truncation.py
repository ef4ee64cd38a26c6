"""Cutting a log's end.

Files go from the newest to the oldest: a crash in between leaves a log that is longer than asked, never one
with a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.log.errors import HalfRenamed, StorageError
from millrace.log.partition.isolation import past_damage
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segments.segment import DELETED_SUFFIX, TXN_INDEX_SUFFIX, Located, Segment
from millrace.log.state import producer_snapshots

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


def truncate_to(log: PartitionLog, offset: int) -> None:
    """Forget everything from `offset` on; a batch that holds it goes as a whole."""
    log.require_writable_tail()
    if offset >= log.log_end_offset:
        return
    if offset <= log.segments[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return
    kept = [segment for segment in log.segments if segment.base_offset < offset]
    active = kept[-1]
    damaged = _damage_at_end(active, offset)
    if damaged is not None and damaged.first_offset < log.log_start_offset <= offset:
        # Nothing good is left from the log's start on.
        truncate_fully_and_start_at(log, log.log_start_offset)
        return
    _delete_newest_first(log, log.segments[len(kept) :])
    if damaged is not None:
        end_offset = damaged.first_offset
        _cut(log, active, damaged.position, end_offset=end_offset)
    elif (found := _locate(log, active, offset)) is not None:
        end_offset = min(offset, found.base_offset)
        _cut(log, active, found.position, end_offset=end_offset)
    else:
        # Compaction may have left no batch that reaches up to the offset.
        end_offset = min(offset, past_damage(log, active.open_tail))
    _end_at(log, kept, end_offset)


def truncate_fully_and_start_at(log: PartitionLog, offset: int) -> None:
    """Forget everything; the next batch gets `offset`."""
    log.require_writable_tail()
    _delete_newest_first(log, log.segments)
    segment = Segment(log.home.volume, log.path, offset, 0, create=True)
    segment.file.truncate(0)
    log.log_start_offset = offset
    _end_at(log, [segment], offset)
    log.epochs.clear()
    log.state.epochs_changed()


def _locate(log: PartitionLog, segment: Segment, offset: int) -> Located | None:
    return past_damage(log, lambda: segment.locate(offset)) if segment.size_bytes else None


def _damage_at_end(segment: Segment, offset: int) -> DamagedRange | None:
    """The damaged range with which a segment that is cut at `offset` would end, if there is one. The cut
    takes it as well: a replica says what it has, and gets the rest from its leader."""
    for damaged in segment.damage:
        if damaged.first_offset <= offset <= damaged.next_offset:
            return damaged
    return None


def _cut(log: PartitionLog, segment: Segment, position: int, *, end_offset: int) -> None:
    had_damage = bool(segment.damage)
    segment.truncate_to(position, next_offset=end_offset)
    if log.home.volume.exists(segment.path(TXN_INDEX_SUFFIX)):
        # An entry that came back would hide the records that take the place of the lost ones.
        log.sync_later(segment.path(TXN_INDEX_SUFFIX))
    if had_damage:
        save_damage(log.home.volume, segment.path(QUARANTINE_SUFFIX), segment.damage)


def _delete_newest_first(log: PartitionLog, segments: Sequence[Segment]) -> None:
    left = list(log.segments)
    for segment in reversed(segments):
        try:
            moved = segment.rename_to(DELETED_SUFFIX)
        except StorageError as error:
            if len(left) < len(log.segments):
                # The log stays longer than asked, and says so: nothing may be written behind a file that is
                # gone.
                _end_at(log, left, log.segments[len(left)].base_offset)
            if isinstance(error, HalfRenamed):
                log.home.fence(str(error))
            raise
        log.home.remove_later(moved, log.config.file_delete_delay_ms)
        left.pop()


def _end_at(log: PartitionLog, segments: list[Segment], offset: int) -> None:
    log.set_segments(segments)
    log.log_start_offset = min(log.log_start_offset, offset)
    log.end_moved_back(offset)
    producer_snapshots.remove_snapshots(log.home.volume, log.path, above=offset)
    if log.epochs.truncate_from_end(offset):
        log.state.epochs_changed()
    log.sync_later(segments[-1].file.path)
