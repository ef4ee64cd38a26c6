"""Which segments are too old, too many or below the log's start. Offsets never shift, and nothing at or above
the high watermark is deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millrace.log.errors import DiskFull, HalfRenamed, OffsetOutOfRange, StorageError
from millrace.log.segments.segment import DELETED_SUFFIX, SNAPSHOT_SUFFIX, Segment

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)


def delete_old_segments(log: PartitionLog, now_ms: int) -> int:
    """Apply the log's retention; returns how many segments went."""
    if log.is_closed or log.home.offline_reason is not None:
        return 0
    deleted = _delete_while(log, lambda _, upper: upper <= log.log_start_offset)
    config = log.config
    if not config.cleanup_delete:
        return deleted
    if config.retention_bytes >= 0:
        excess = log.size_bytes - config.retention_bytes

        def is_excess(segment: Segment, _: int) -> bool:
            nonlocal excess
            excess -= segment.size_bytes
            return excess >= 0

        deleted += _delete_while(log, is_excess)
    if config.retention_ms >= 0:
        oldest_ms = now_ms - config.retention_ms
        deleted += _delete_while(log, lambda segment, _: segment.retention_timestamp() < oldest_ms)
    return deleted


def advance_log_start(log: PartitionLog, offset: int) -> None:
    """Hide the records below `offset`, and delete the segments that hold nothing else."""
    if offset > log.high_watermark:
        raise OffsetOutOfRange(
            offset, log_start_offset=log.log_start_offset, log_end_offset=log.high_watermark
        )
    _move_start(log, offset)
    _delete_while(log, lambda _, upper: upper <= log.log_start_offset)


def _delete_while(log: PartitionLog, is_due: Callable[[Segment, int], bool]) -> int:
    """Delete from the oldest segment on, as long as `is_due(segment, upper offset)` and the rules allow."""
    segments = log.segments
    doomed = 0
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        upper = log.log_end_offset if is_last else segments[number + 1].base_offset
        if upper > log.high_watermark or (is_last and segment.size_bytes == 0) or not is_due(segment, upper):
            break
        doomed += 1
    if doomed and doomed == len(segments):
        try:
            log.roll()
        except DiskFull:
            # Deleting the others makes room, and the next round can roll.
            doomed -= 1
    if doomed:
        delete_oldest(log, doomed)
    return doomed


def delete_oldest(log: PartitionLog, count: int) -> None:
    segments = log.segments
    gone, kept = segments[:count], list(segments[count:])
    assert kept, log
    # The start moves before a file does: a read never looks for what is being deleted.
    log.set_segments(kept)
    _move_start(log, kept[0].base_offset)
    for number, segment in enumerate(gone):
        logger.info("%s: retention deletes the segment at %d", log.topic_partition, segment.base_offset)
        try:
            moved = segment.rename_to(DELETED_SUFFIX)
        except StorageError as error:
            # The log's start hides the segment, and the next round deletes it. Were it forgotten, it would be
            # back after a restart.
            log.set_segments([*gone[number:], *kept])
            if isinstance(error, HalfRenamed):
                log.home.fence(str(error))
            raise
        log.home.remove_later([*moved, segment.path(SNAPSHOT_SUFFIX)], log.config.file_delete_delay_ms)


def _move_start(log: PartitionLog, offset: int) -> None:
    if offset <= log.log_start_offset:
        return
    log.log_start_offset = offset
    if log.epochs.truncate_from_start(offset):
        log.state.epochs_changed()
    log.producers.truncate_from_start(offset)
