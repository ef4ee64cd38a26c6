"""A segment for a thread that reads: it has the files of a log's segment as they are at a moment, and shares
nothing with that segment that either of them changes.

It has open files and index objects of its own, and never writes: an index that cannot be used counts as
empty, so that the search begins at the segment's start. The log finds out by itself that an index is wrong,
and makes it anew.
"""

from __future__ import annotations

from typing import Final

from millrace.core.override import override
from millrace.log.disk.volume import Volume
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX, Segment
from millrace.log.segments.time_index import TimeIndex


class DetachedSegment(Segment):
    """A segment for a thread: it reads the same files and shares nothing that the log changes."""

    __slots__ = ()

    @override
    def rebuild_indexes(self) -> None:
        """Do without the indexes."""
        file = self._volume.file(self.path(OFFSET_INDEX_SUFFIX))
        self._offset_index = OffsetIndex(file, base_offset=self.base_offset, stored_size_bytes=0)
        self._time_index = TimeIndex(file, base_offset=self.base_offset, stored_size_bytes=0)


def detached(segment: Segment, volume: Volume) -> DetachedSegment:
    """A twin of a segment for a thread to read. The thread has to close it."""
    twin: Final = DetachedSegment(volume, segment.directory, segment.base_offset, segment.size_bytes)
    twin.damage = segment.damage
    twin.index_interval_bytes = segment.index_interval_bytes
    twin.max_timestamp = segment.max_timestamp
    twin.max_timestamp_offset = segment.max_timestamp_offset
    # The twin also needs the entries that wait in memory: they are in no file yet.
    offset_index, time_index = segment.opened_indexes()
    if offset_index is not None:
        twin._offset_index = offset_index.detached(volume.file(offset_index.path))
    if time_index is not None:
        twin._time_index = time_index.detached(volume.file(time_index.path))
    return twin
