"""From a timestamp to an offset: 12-byte entries of timestamp and relative offset, as Kafka's `.timeindex`.

An entry says: up to this offset no record of the segment is younger than this timestamp.
"""

from __future__ import annotations

import struct
from typing import Final

from millrace.log.disk.volume import VolumeFile
from millrace.log.segments.sparse_index import SparseIndex

ENTRY: Final = struct.Struct(">qi")
ENTRY_SIZE: Final = ENTRY.size


class TimeIndex(SparseIndex):
    """From timestamps to offsets: a segment's `.timeindex` file."""

    __slots__ = ("_last_offset", "_last_timestamp", "base_offset")

    def __init__(self, file: VolumeFile, *, base_offset: int, stored_size_bytes: int) -> None:
        super().__init__(file, ENTRY, stored_size_bytes=stored_size_bytes)
        self.base_offset = base_offset
        self._last_timestamp = -1
        self._last_offset = base_offset
        self._read_last()

    @property
    def last_timestamp(self) -> int:
        """The largest timestamp entered, or -1."""
        return self._last_timestamp

    @property
    def last_offset(self) -> int:
        return self._last_offset

    def append(self, timestamp: int, offset: int) -> None:
        """Enter a timestamp if it is a new maximum."""
        if timestamp > self._last_timestamp and offset >= self._last_offset:
            self.add(timestamp, offset - self.base_offset)
            self._last_timestamp = timestamp
            self._last_offset = offset

    def offset_before(self, timestamp: int) -> int:
        """An offset up to which every record is older than or as old as `timestamp`."""
        found = self.find(0, timestamp)
        return self.base_offset if found is None else self.base_offset + found[1]

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`."""
        self.cut(self.count_below(1, offset - self.base_offset))
        self._read_last()

    def _read_last(self) -> None:
        if self.count:
            timestamp, relative_offset = self.entry(self.count - 1)
            self._last_timestamp = timestamp
            self._last_offset = self.base_offset + relative_offset
        else:
            self._last_timestamp = -1
            self._last_offset = self.base_offset
