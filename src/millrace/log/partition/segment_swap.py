"""Puts compacted segments in the place of others so that a crash at any moment leaves the old or the new.

The names tell how far the swap came: `.cleaned` is being written, `.swap` is complete and replaces whatever
overlaps it, `.deleted` is no longer needed. `finish_swaps` reads them at the next start. Kafka uses the same
names in the same order.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from millrace.core.lanes import Waits
from millrace.log.disk.renames import rename_all, rename_back
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, FileMissing, HalfRenamed, StorageError
from millrace.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    Segment,
    segment_path,
)

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


class CleanableSegment(NamedTuple):
    """A segment that compaction may rewrite."""

    base_offset: int
    next_offset: int
    """Where the next segment begins."""
    size_bytes: int
    max_timestamp: int
    path: str
    """The path of its `.log` file; the indexes lie beside it."""


def cleanable(log: PartitionLog) -> list[CleanableSegment]:
    """The sealed segments whose records are all there, committed and in no open transaction."""
    segments = log.segments
    limit = min(log.high_watermark, log.last_stable_offset)
    found = []
    for segment, following in pairwise(segments):
        if following.base_offset > limit or segment.damage:
            break
        if following.base_offset <= log.log_start_offset:
            continue
        found.append(
            CleanableSegment(
                segment.base_offset,
                following.base_offset,
                segment.size_bytes,
                segment.largest_timestamp(),
                segment.file.path,
            )
        )
    return found


async def replace_segments(log: PartitionLog, old: list[int], new: list[int]) -> bool:
    """Swap segments by base offset.

    The `.cleaned` files must be on disk. False if the old ones are gone by now.
    """
    volume = log.home.volume
    # The highest first: while a `.cleaned` is left, every `.swap` above it counts as unfinished.
    try:
        for base_offset in sorted(new, reverse=True):
            _rename_all(volume, log.path, base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
        await asyncio.get_running_loop().run_in_executor(
            volume.lane(Waits.SYNC, log.path), volume.sync_directory, log.path
        )
    except StorageError as error:
        _undo(log, error, [], [], new)
        raise
    present = {segment.base_offset for segment in log.segments[:-1]}
    if log.is_closed or not present.issuperset(old):
        for base_offset in new:
            _remove_all(volume, log.path, base_offset, SWAP_SUFFIX)
        return False
    doomed = [segment for segment in log.segments if segment.base_offset in old]
    moved: list[tuple[Segment, list[str]]] = []
    placed: list[tuple[str, str]] = []
    try:
        for segment in doomed:
            # One by one, because `_undo` has to know those before the one that fails.
            moved.append((segment, segment.rename_to(DELETED_SUFFIX)))  # noqa: PERF401
        for base_offset in new:
            placed += _rename_all(volume, log.path, base_offset, SWAP_SUFFIX, "")
        cleaned = [_opened(volume, log.path, base_offset) for base_offset in new]
    except StorageError as error:
        _undo(log, error, moved, placed, new)
        raise
    for _, paths in moved:
        log.home.remove_later(paths, log.config.file_delete_delay_ms)
    kept = [segment for segment in log.segments if segment.base_offset not in old]
    log.set_segments(sorted([*kept, *cleaned], key=lambda segment: segment.base_offset))
    log.sync_later(directory=log.path)
    return True


def _opened(volume: Volume, directory: str, base_offset: int) -> Segment:
    size_bytes = volume.file(segment_path(directory, base_offset, LOG_SUFFIX)).size_bytes()
    return Segment(volume, directory, base_offset, size_bytes)


def _undo(
    log: PartitionLog,
    error: StorageError,
    moved: list[tuple[Segment, list[str]]],
    placed: list[tuple[str, str]],
    new: list[int],
) -> None:
    """Give the old segments their names back, and remove the new ones. Where the disk does not let us, a
    start completes the swap; nothing may be written until then."""
    volume = log.home.volume
    try:
        if isinstance(error, HalfRenamed):
            raise error
        rename_back(volume, placed)
        for segment, paths in reversed(moved):
            segment.rename_back(paths, DELETED_SUFFIX)
        for base_offset in new:
            # A `.swap` left behind would replace whatever has its offsets by the next start.
            _remove_all(volume, log.path, base_offset, SWAP_SUFFIX)
    except StorageError as failure:
        log.home.fence(str(failure))


def finish_swaps(volume: Volume, directory: str) -> bool:
    """At the start: complete what was decided, undo what was not, remove what is no longer needed."""
    names = [entry.name for entry in volume.list_directory(directory)]
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)) for name in names):
        return False
    unfinished = [int(name.split(".")[0]) for name in names if name.endswith(CLEANED_SUFFIX)]
    swapped = sorted(int(name.split(".")[0]) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    for name in names:
        is_undone = name.endswith(SWAP_SUFFIX) and unfinished and int(name.split(".")[0]) >= min(unfinished)
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)) or is_undone:
            volume.remove(f"{directory}/{name}")
    decided = [base for base in swapped if not unfinished or base < min(unfinished)]
    for base_offset in decided:
        end_offset = _end_of_swapped(volume, directory, base_offset)
        for name in names:
            stem, _, suffix = name.partition(".")
            if f".{suffix}" == LOG_SUFFIX and base_offset <= int(stem) < end_offset:
                _remove_all(volume, directory, int(stem), "")
    # Index files are renamed before the log: a `.swap` that is left belongs to a log that has its name
    # already.
    for entry in volume.list_directory(directory):
        if entry.name.endswith(SWAP_SUFFIX):
            path = f"{directory}/{entry.name}"
            volume.rename(path, path.removesuffix(SWAP_SUFFIX))
    volume.sync_directory(directory)
    return True


def _end_of_swapped(volume: Volume, directory: str, base_offset: int) -> int:
    file = volume.file(segment_path(directory, base_offset, LOG_SUFFIX + SWAP_SUFFIX))
    segment = Segment(volume, directory, base_offset, file.size_bytes())
    segment.file = file
    end_offset = base_offset + 1
    try:
        for _, header in segment.headers():
            end_offset = header.next_offset
    except CorruptLog:
        pass
    return end_offset


def _rename_all(
    volume: Volume, directory: str, base_offset: int, source: str, target: str
) -> list[tuple[str, str]]:
    """Rename the log last: whoever sees it with its new name finds the indexes there already."""
    paths = [segment_path(directory, base_offset, suffix) for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX)]
    done = rename_all(volume, [(path + source, path + target) for path in paths])
    if (paths[-1] + source, paths[-1] + target) not in done:
        rename_back(volume, done)
        raise FileMissing("rename", paths[-1] + source, "no such file")
    return done


def _remove_all(volume: Volume, directory: str, base_offset: int, suffix: str) -> None:
    for own in (*INDEX_SUFFIXES, LOG_SUFFIX):
        volume.remove(segment_path(directory, base_offset, own) + suffix)
