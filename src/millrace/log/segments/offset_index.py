"""From an offset to a byte position near it, as Kafka's `.index`: 8 bytes of relative offset and position.

An entry holds the last offset of the batch that starts at its position.
"""

from __future__ import annotations

import struct
from typing import Final

from millrace.log.disk.volume import VolumeFile
from millrace.log.segments.sparse_index import SparseIndex

ENTRY: Final = struct.Struct(">ii")
ENTRY_SIZE: Final = ENTRY.size


class OffsetIndex(SparseIndex):
    """From offsets to positions: a segment's `.index` file."""

    __slots__ = ("base_offset",)

    def __init__(self, file: VolumeFile, *, base_offset: int, stored_size_bytes: int) -> None:
        super().__init__(file, ENTRY, stored_size_bytes=stored_size_bytes)
        self.base_offset = base_offset

    def append(self, last_offset: int, *, position: int) -> None:
        self.add(last_offset - self.base_offset, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`."""
        self.cut(self.count_below(0, offset - self.base_offset))
