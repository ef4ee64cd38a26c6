"""Frees the page cache of logs that nobody reads.

Nobody reads what a follower stores until it leads, and then mostly its end. Left alone, copies of what others
lead take most of a broker's page cache from the logs that are read. So a flush of such a log is followed by a
hint that all but its end may go. The next writes get the same pages again, and on a virtual machine, which
gets its memory when it first touches it, that costs a quarter of what new pages cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.log.disk.volume import FileHandle
from millrace.log.errors import StorageError
from millrace.log.segments.segment import Segment

STEP_BYTES: Final = 1024 * 1024
"""A smaller range is not worth a call."""


class CachedRange(NamedTuple):
    """Bytes of an open file that need not stay in the page cache."""

    file: FileHandle
    position: int
    size_bytes: int


def take_unread(segments: Sequence[Segment], keep_bytes: int) -> list[CachedRange]:
    """All but the end of a log, as far as it has been written since the last time this was asked."""
    ranges: list[CachedRange] = []
    active = segments[-1]
    for segment in reversed(segments):
        stop = max(segment.size_bytes - keep_bytes, 0)
        keep_bytes = max(keep_bytes - segment.size_bytes, 0)
        size = stop - segment.cached_from
        if size >= STEP_BYTES or (size > 0 and segment is not active):
            try:
                ranges.append(CachedRange(segment.file.handle(), segment.cached_from, size))
            except StorageError:
                # Whoever really needs the file will report what is wrong with it.
                return ranges
            segment.drop_cached_before(stop)
        elif segment.cached_from >= segment.size_bytes > 0:
            # The older segments went before this one.
            break
    return ranges


def drop(ranges: Sequence[CachedRange]) -> None:
    """Drop ranges from the page cache. Call it off the loop, after a flush: only stored pages can go."""
    for range_ in ranges:
        range_.file.drop_cached(range_.position, range_.size_bytes)
