"""Puts a healthy replica's batches in the place of damaged ones. The bytes of a log are the same on every
replica, so they fit exactly or are not the right ones.

Where a segment has lost its end, nobody knows how many bytes are missing: there the batches must follow each
other without a gap, and the file grows. They may come in several pieces.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from millrace.core.errors import MillraceError
from millrace.core.lanes import Waits
from millrace.log.batches.checks import split_batches
from millrace.log.errors import StorageError
from millrace.log.repair.mended_state import bring_back_state
from millrace.log.segments.header_walk import RELATIVE_OFFSET_MAX
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segments.segment import Segment
from millrace.wire.batch_header import BatchHeader

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_Headers: TypeAlias = list[tuple[int, BatchHeader]]
"""Each header with its position in the records."""


def damage_of(log: PartitionLog) -> list[tuple[Segment, DamagedRange]]:
    """Everything that is in quarantine and would be missed, oldest first."""
    return [
        (segment, damaged)
        for segment in log.segments
        for damaged in segment.damage
        if damaged.next_offset > log.log_start_offset
    ]


async def mend(log: PartitionLog, segment: Segment, damaged: DamagedRange, records: memoryview) -> bool:
    """Write a replica's batches over a damaged range; False if they do not fit, or the range is gone.

    They may be the first part of a lost end: then the range that is left begins behind them."""
    if damaged not in segment.damage or segment not in log.segments:
        return False
    is_end = segment is not log.segments[-1] and (damaged.position + damaged.size_bytes == segment.size_bytes)
    headers = _within(damaged, records)
    if not headers:
        return False
    last_position, last_header = headers[-1]
    copy = records[: last_position + last_header.size_bytes]
    is_whole = len(copy) == damaged.size_bytes
    next_offset = damaged.next_offset
    if is_end and _is_gapless(headers, first_offset=max(damaged.first_offset, log.log_start_offset)):
        next_offset = last_header.next_offset
    elif not is_whole:
        return False
    try:
        if is_end:
            segment, damaged = _make_room(log, segment, damaged, len(copy), next_offset)
        segment.file.write_at(damaged.position, copy)
        if is_end:
            damaged = _end_with(segment, damaged, len(copy))
        # The quarantine ends when the new bytes are on disk, not before.
        handle = segment.file.handle()
        await asyncio.get_running_loop().run_in_executor(
            log.home.volume.lane(Waits.SYNC, log.path), handle.sync
        )
        if any(header.producer_id >= 0 for _, header in headers) and not await bring_back_state(log, damaged):
            return False
    except StorageError as error:
        log.home.write_refused(error)
        raise
    if log.is_closed or segment not in log.segments or damaged not in segment.damage:
        return False
    _release(log, segment, damaged, next_offset)
    _index(log, segment, damaged, headers, is_end=is_end)
    return True


def _within(damaged: DamagedRange, records: memoryview) -> _Headers:
    """The batches of the damaged offsets, if they are whole and sound."""
    try:
        found = split_batches(records, at_least=damaged.first_offset)
    except MillraceError:
        return []
    headers = [(position, BatchHeader._make(header)) for position, _, header in found]
    return [(position, header) for position, header in headers if header.next_offset <= damaged.next_offset]


def _is_gapless(headers: _Headers, *, first_offset: int) -> bool:
    (_, first), *_ = headers
    if first.base_offset > first_offset:
        return False
    return all(before.next_offset == after.base_offset for (_, before), (_, after) in pairwise(headers))


def _make_room(
    log: PartitionLog, segment: Segment, damaged: DamagedRange, size_bytes: int, next_offset: int
) -> tuple[Segment, DamagedRange]:
    """The segment that takes the batches, and the range in it. If whole segments were lost, not all that is
    missing belongs into the one before them."""
    end = damaged.position + size_bytes
    is_fitting = (
        end <= log.config.segment_bytes and next_offset - 1 - segment.base_offset <= RELATIVE_OFFSET_MAX
    )
    if is_fitting or damaged.position == 0:
        return segment, damaged
    volume = log.home.volume
    following = Segment(volume, log.path, damaged.first_offset, 0, create=True)
    following.file.truncate(0)
    following.index_interval_bytes = log.config.index_interval_bytes
    moved = DamagedRange(0, 0, damaged.first_offset, damaged.next_offset)
    following.damage = (moved,)
    # The range goes into the new segment's list before it leaves the old one's: if a crash comes in between,
    # the start takes from the old one what lies behind the next segment's name.
    save_damage(volume, following.path(QUARANTINE_SUFFIX), following.damage)
    if damaged.size_bytes:
        segment.file.truncate(damaged.position)
        segment.size_bytes = damaged.position
    segment.damage = tuple(other for other in segment.damage if other != damaged)
    number = log.segments.index(segment) + 1
    log.set_segments([*log.segments[:number], following, *log.segments[number:]])
    save_damage(volume, segment.path(QUARANTINE_SUFFIX), segment.damage)
    log.sync_later(segment.file.path)
    return following, moved


def _end_with(segment: Segment, damaged: DamagedRange, size_bytes: int) -> DamagedRange:
    """Let the segment end with the batches that were written, which are still in quarantine."""
    end = damaged.position + size_bytes
    if end < segment.size_bytes:
        segment.file.truncate(end)
    segment.size_bytes = end
    placed = damaged._replace(size_bytes=size_bytes)
    segment.damage = tuple(placed if other == damaged else other for other in segment.damage)
    return placed


def _release(log: PartitionLog, segment: Segment, damaged: DamagedRange, next_offset: int) -> None:
    """End the quarantine of what lies below `next_offset`."""
    left = [other for other in segment.damage if other != damaged]
    if next_offset < damaged.next_offset:
        left.append(DamagedRange(segment.size_bytes, 0, next_offset, damaged.next_offset))
    segment.damage = tuple(left)
    save_damage(log.home.volume, segment.path(QUARANTINE_SUFFIX), segment.damage)
    log.sync_later(directory=log.path)
    logger.info(
        "%s: offsets %d to %d are back from a replica",
        log.topic_partition,
        damaged.first_offset,
        next_offset - 1,
    )


def _index(
    log: PartitionLog, segment: Segment, damaged: DamagedRange, headers: _Headers, *, is_end: bool
) -> None:
    """Make the indexes right about the batches that are back."""
    youngest = max(header.max_timestamp for _, header in headers)
    if is_end:
        # These entries are from an earlier attempt, or were made just now from all batches.
        segment.offset_index.truncate_to(damaged.first_offset)
        segment.time_index.truncate_to(damaged.first_offset)
        segment.largest_timestamp()
        segment.unindexed_bytes = segment.index_interval_bytes + 1
        for position, header in headers:
            segment.note(
                damaged.position + position,
                header.size_bytes,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        segment.forget_recent()
        segment.finish_indexes()
    elif any(
        timestamp < youngest and segment.base_offset + relative >= damaged.first_offset
        for timestamp, relative in segment.time_index.entries()
    ):
        # An entry promises that nothing before it is younger.
        segment.rebuild_indexes()
    for index in (segment.offset_index, segment.time_index):
        log.sync_later(index.file.path)
