"""Damage that is met outside of recovery goes into quarantine on the spot, and whoever met it goes on.

Headers are read in many places: to serve a fetch, to load producers and epochs, to apply retention. A bit
that flipped in a header must cost its batch, and neither the log nor the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.core.ids import NO_EPOCH
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, FileMissing, StorageError
from millrace.log.segments.header_walk import BATCH_LENGTH_MIN, RELATIVE_OFFSET_MAX
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.segments.scanning import BatchReader
from millrace.log.segments.segment import Segment
from millrace.wire.batch_header import MAGIC

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


def past_damage(log: PartitionLog, work: Callable[[], T]) -> T:
    """Do work that reads a log's files, on the loop. What it finds damaged goes into quarantine, and the work
    is done again: it has to begin from scratch each time."""
    met: list[tuple[str, int]] = []
    while True:
        try:
            return work()
        except (CorruptLog, FileMissing) as error:
            if not may_go_on(met, error) or not isolate_in(log, error):
                raise


def isolate_in(log: PartitionLog, error: CorruptLog | FileMissing) -> bool:
    """Take out of service, on the loop, what was found damaged in a log, here or in the executor."""
    if not isolate(log.home.volume, log.segments, error, end_offset=log.log_end_offset):
        return False
    log.home.damage_found(log)
    return True


def past_damage_in(
    volume: Volume, segments: Sequence[Segment], work: Callable[[], T], *, end_offset: int
) -> T:
    """As `past_damage`, for segments that have no log yet; the last one ends at `end_offset`."""
    met: list[tuple[str, int]] = []
    while True:
        try:
            return work()
        except (CorruptLog, FileMissing) as error:
            if not may_go_on(met, error) or not isolate(volume, segments, error, end_offset=end_offset):
                raise


def may_go_on(met: list[tuple[str, int]], error: CorruptLog | FileMissing) -> bool:
    """Whether this damage is met for the first time: nothing is tried twice."""
    place = error.path, error.position if isinstance(error, CorruptLog) else -1
    if place in met:
        return False
    met.append(place)
    return True


def isolate(
    volume: Volume, segments: Sequence[Segment], error: CorruptLog | FileMissing, *, end_offset: int
) -> bool:
    """Take what an error speaks of out of service; False if there is nothing to be done about it."""
    if isinstance(error, CorruptLog) and error.next_offset is not None:
        # The range is in quarantine already.
        return False
    for number, segment in enumerate(segments):
        if segment.file.path == error.path:
            is_last = number + 1 == len(segments)
            upper_offset = end_offset if is_last else segments[number + 1].base_offset
            is_shorter = (
                not volume.exists(segment.file.path) or segment.file.size_bytes() < segment.size_bytes
            )
            if is_shorter and is_last:
                # Writing goes on where the file ends, and the next start finds out where that is.
                return False
            if is_shorter:
                _take_size(volume, segment)
            suspect = error.position if isinstance(error, CorruptLog) else -1
            found = _find_damage(segment, upper_offset, suspect=suspect, has_lost_end=is_shorter)
            if found:
                put_in_quarantine(volume, segment, found)
            else:
                # The batches are where they belong, so an index led to the wrong place.
                logger.error("%s: an index is wrong and is made again", segment.file.path)
                segment.rebuild_indexes()
            return True
    return False


def _find_damage(
    segment: Segment, upper_offset: int, *, suspect: int, has_lost_end: bool
) -> list[DamagedRange]:
    """What the headers alone show to be damaged, besides the ranges that are known, and the batch at
    `suspect` if its checksum says so; with `has_lost_end` also all that is missing before `upper_offset`."""
    reader = BatchReader(
        segment.file.handle().read_at,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        upper_offset=upper_offset,
    )
    known = {damaged.position: damaged for damaged in segment.damage if damaged.size_bytes}
    found: list[DamagedRange] = []
    before: tuple[int, int] | None = None
    position, next_offset, last_epoch = 0, segment.base_offset, int(NO_EPOCH)
    while position < segment.size_bytes:
        damaged = known.get(position)
        if damaged is None:
            header = reader.header(position)
            if (
                header is not None
                and header.batch_length >= BATCH_LENGTH_MIN
                and position + header.size_bytes <= segment.size_bytes
                and header.magic == MAGIC
                and header.last_offset_delta >= 0
                and header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
                and not reader.is_contradicted(
                    position, header, next_offset=next_offset, last_epoch=last_epoch
                )
                and (position != suspect or reader.sound_batch(position, next_offset=next_offset) is not None)
            ):
                before = position, next_offset
                position += header.size_bytes
                next_offset, last_epoch = max(next_offset, header.next_offset), header.leader_epoch
                continue
            if before is not None and reader.sound_batch(before[0], next_offset=before[1]) is None:
                # The length of the batch before is wrong and led here, past good batches.
                position, next_offset = before
            damaged = reader.damage_at(position, next_offset=next_offset)
            found.append(damaged)
        before = None
        position += damaged.size_bytes
        next_offset = max(next_offset, damaged.next_offset)
    if has_lost_end and next_offset < upper_offset:
        found.append(DamagedRange(segment.size_bytes, 0, next_offset, upper_offset))
    return found


def put_in_quarantine(volume: Volume, segment: Segment, found: Sequence[DamagedRange]) -> None:
    """Serve these ranges no more. If the list cannot be written, it holds until the process ends."""
    for damaged in found:
        logger.error(
            "%s: %d bytes at %d are damaged or missing, offsets %d to %d are in quarantine",
            segment.file.path,
            damaged.size_bytes,
            damaged.position,
            damaged.first_offset,
            damaged.next_offset - 1,
        )
    segment.set_damage(tuple(sorted({*segment.damage, *found})))
    try:
        save_damage(volume, segment.path(QUARANTINE_SUFFIX), segment.damage)
    except StorageError as error:
        logger.warning("the quarantine of %s could not be written down: %s", segment.file.path, error)


def _take_size(volume: Volume, segment: Segment) -> None:
    """Take over the size of a file that was cut. The file must be there for what comes back."""
    segment.file.close()
    segment.file = volume.file(segment.file.path, create=True)
    segment.file.handle()
    segment.size_bytes = segment.file.size_bytes()
    # Ranges that began behind the end are gone with it.
    segment.damage = tuple(damaged for damaged in segment.damage if damaged.position < segment.size_bytes)
