"""Reads stored segments again, checksums and all, to find what the disk has changed since it was flushed.

This runs in threads: what goes in and comes out never changes. It writes nothing of a log but new index files
in a directory of their own, which the loop puts in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from millrace.log.disk.volume import FileHandle, Volume
from millrace.log.errors import FileMissing
from millrace.log.partition.aborted_checks import aborted_if_wrong
from millrace.log.segments.offset_index import ENTRY as OFFSET_ENTRY
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.scanning import BatchReader
from millrace.log.segments.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from millrace.log.segments.time_index import ENTRY as TIME_ENTRY
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.wire.batch_header import HEADER_SIZE, MAGIC, BatchHeader, read_header

SCRATCH_DIRECTORY: Final = "scrub"
"""The directory within a log's own where indexes are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A segment as it is at a moment."""

    directory: str
    base_offset: int
    size_bytes: int
    upper_offset: int
    """Where the next segment begins; where the log ends, for the last one."""
    is_active: bool
    damage: tuple[DamagedRange, ...]
    epoch_starts: tuple[tuple[int, int], ...]
    """Leader epochs and where they begin: a batch's epoch is covered by no checksum."""
    index_interval_bytes: int
    compacted_end: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How far a segment was read, and what was found."""

    position: int = 0
    next_offset: int = -1
    last_epoch: int = -1
    max_timestamp: int = -1
    damage: tuple[DamagedRange, ...] = ()
    odd_epoch: int = -1
    """An epoch that several batches in a row have against the checkpoint: then the checkpoint is wrong."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What the files beside a segment should be, where they are not."""

    rebuilt_indexes: bool = False
    aborted: tuple[AbortedTransaction, ...] | None = None
    """The transactions that the index should hold; None if it holds them."""


def scrub_some(handle: FileHandle, stored: Stored, so_far: Scrubbed, bytes_max: int) -> Scrubbed:
    """Check the next batches, about `bytes_max` of them."""
    reader = BatchReader(
        handle.read_at,
        base_offset=stored.base_offset,
        size_bytes=stored.size_bytes,
        upper_offset=stored.upper_offset,
    )
    known = {damaged.position: damaged for damaged in stored.damage if damaged.size_bytes}
    position, damage = so_far.position, list(so_far.damage)
    next_offset = max(so_far.next_offset, stored.base_offset)
    last_epoch, max_timestamp, odd_epoch = so_far.last_epoch, so_far.max_timestamp, so_far.odd_epoch
    # Pages that nobody had in memory must not push out those that somebody needs.
    was_cached = handle.is_cached(position, min(bytes_max, stored.size_bytes - position))
    start, end = position, min(position + bytes_max, stored.size_bytes)
    while position < end:
        damaged = known.get(position)
        if damaged is None:
            fields = reader.sound_batch(position, next_offset=next_offset, last_epoch=last_epoch)
            header = None if fields is None else BatchHeader._make(fields)
            if header is not None and not _is_epoch_right(stored, header):
                if odd_epoch != header.leader_epoch and not _has_companion(reader, stored, position, header):
                    header = None
                else:
                    odd_epoch = header.leader_epoch
            if header is not None:
                position += header.size_bytes
                next_offset = header.next_offset
                last_epoch, max_timestamp = header.leader_epoch, max(max_timestamp, header.max_timestamp)
                continue
            damaged = reader.damage_at(position, next_offset=next_offset)
            damage.append(damaged)
        position += damaged.size_bytes
        next_offset = max(next_offset, damaged.next_offset)
    if not was_cached:
        handle.drop_cached(start, position - start)
    return Scrubbed(position, next_offset, last_epoch, max_timestamp, tuple(damage), odd_epoch)


def with_lost_end(stored: Stored, found: Scrubbed) -> Scrubbed:
    """When all was read, count as damage what is missing at the end, unless compaction took it."""
    next_offset = max(found.next_offset, stored.base_offset, *(each.next_offset for each in stored.damage), 0)
    if stored.is_active:
        # Damage at the very end is left until something follows it: a start would take it for a torn write.
        return replace(
            found, damage=tuple(each for each in found.damage if each.next_offset < stored.upper_offset)
        )
    if next_offset >= stored.upper_offset or stored.upper_offset <= stored.compacted_end:
        return found
    if stored.upper_offset <= stored.log_start_offset:
        return found
    lost = DamagedRange(stored.size_bytes, 0, next_offset, stored.upper_offset)
    return replace(found, damage=(*found.damage, lost))


def check_beside(volume: Volume, stored: Stored, found: Scrubbed) -> Beside:
    """Compare the files beside a closed segment without damage with its batches."""
    rebuilt = not _are_indexes_right(volume, stored, found)
    if rebuilt:
        _rebuild_indexes(volume, stored)
    aborted = aborted_if_wrong(
        volume,
        stored.directory,
        stored.base_offset,
        stored.size_bytes,
        log_start_offset=stored.log_start_offset,
        compacted_end=stored.compacted_end,
    )
    return Beside(rebuilt, aborted)


def scratch_path(directory: str) -> str:
    return f"{directory}/{SCRATCH_DIRECTORY}"


def _is_epoch_right(stored: Stored, header: BatchHeader) -> bool:
    if header.leader_epoch < 0 or not stored.epoch_starts or header.base_offset < stored.epoch_starts[0][1]:
        return True
    known = [epoch for epoch, start_offset in stored.epoch_starts if start_offset <= header.base_offset]
    return header.leader_epoch == known[-1]


def _has_companion(reader: BatchReader, stored: Stored, position: int, header: BatchHeader) -> bool:
    """Whether the next batch contradicts the checkpoint in the same way, which no flipped bit explains."""
    fields = reader.sound_batch(position + header.size_bytes, next_offset=header.next_offset)
    if fields is None:
        return False
    following = BatchHeader._make(fields)
    return following.leader_epoch == header.leader_epoch and not _is_epoch_right(stored, following)


def _are_indexes_right(volume: Volume, stored: Stored, found: Scrubbed) -> bool:
    base_offset, directory = stored.base_offset, stored.directory
    try:
        offsets = volume.read_bytes(segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX))
        times = volume.read_bytes(segment_path(directory, base_offset, TIME_INDEX_SUFFIX))
    except FileMissing:
        return False
    if len(offsets) % OFFSET_ENTRY.size or len(times) % TIME_ENTRY.size:
        return False
    entries = list(OFFSET_ENTRY.iter_unpack(offsets))
    read_at = _handle(volume, stored).read_at
    for relative_offset, position in entries:
        data = read_at(position, HEADER_SIZE) if 0 <= position < stored.size_bytes else b""
        if len(data) < HEADER_SIZE:
            return False
        header = read_header(data)
        if header.magic != MAGIC or header.last_offset != base_offset + relative_offset:
            return False
    ages = list(TIME_ENTRY.iter_unpack(times))
    is_sorted = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)) and all(
        a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(ages)
    )
    youngest = ages[-1][0] if ages else -1
    return is_sorted and youngest == found.max_timestamp


def _rebuild_indexes(volume: Volume, stored: Stored) -> None:
    scratch = scratch_path(stored.directory)
    volume.make_directory(scratch)
    segment = Segment(volume, scratch, stored.base_offset, stored.size_bytes)
    segment.file = volume.file(segment_path(stored.directory, stored.base_offset, ".log"))
    segment.damage = stored.damage
    segment.index_interval_bytes = stored.index_interval_bytes
    segment.rebuild_indexes()
    for handle in segment.handles_to_sync(with_indexes=True)[1:]:
        handle.sync()
    segment.close()


def _handle(volume: Volume, stored: Stored) -> FileHandle:
    return volume.file(segment_path(stored.directory, stored.base_offset, ".log")).handle()
