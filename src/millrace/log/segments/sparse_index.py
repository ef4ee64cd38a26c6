"""Sorted entries of fixed size: a stored part in a file, and a tail that still waits in memory.

The log is the truth. Entries reach the file when the owner stores them (flush, roll, close), so that an
append costs no second write, and whatever a crash takes from here is built again from the log.
"""

from __future__ import annotations

import struct
from array import array
from copy import copy
from typing import Final, Self

from millrace.log.disk.volume import VolumeFile

_BLOCK_ENTRIES: Final = 512
"""A search reads so many entries at once: a reader that moves forward finds the next ones there."""
_UNKNOWN: Final = -(2**63)

STORE_AT_BYTES: Final = 64 * 1024


class SparseIndex:
    """Entries are pairs that grow in both fields. Missing entries are legal; wrong ones are not."""

    __slots__ = (
        "_block",
        "_block_start",
        "_file",
        "_firsts",
        "_pack",
        "_stored",
        "_unpack",
        "count",
        "entry_size",
        "tail",
    )

    def __init__(self, file: VolumeFile, entry: struct.Struct, *, stored_size_bytes: int) -> None:
        self._file = file
        self.entry_size = entry.size
        self._pack = entry.pack
        self._unpack = entry.unpack_from
        self.tail = bytearray()
        """Entries that are not in the file yet."""
        self._block = b""
        self._block_start = 0
        self._firsts = array("q")
        """Both fields of the first entry of each block that a search has met: 16 bytes for 512 entries, so
        that the next search reads only its last block."""
        self._stored = stored_size_bytes // entry.size
        self._stored -= self._count_zero_entries_at_end()
        self.count = self._stored

    def detached(self, file: VolumeFile) -> Self:
        """The same entries as of now, for a thread that only searches them: nothing that either of the two
        changes is shared. `file` is the index's own, opened for the thread."""
        twin = copy(self)
        twin._file = file
        twin.tail = bytearray(self.tail)
        twin._firsts = self._firsts[:]
        return twin

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def file(self) -> VolumeFile:
        return self._file

    def entry(self, number: int) -> tuple[int, int]:
        """The entry with this number, counted from 0."""
        assert 0 <= number < self.count, (number, self.count)
        if number >= self._stored:
            pair = self._unpack(self.tail, (number - self._stored) * self.entry_size)
        else:
            pair = self._unpack(self._file.read_at(number * self.entry_size, self.entry_size))
        return pair[0], pair[1]

    def entries(self) -> list[tuple[int, int]]:
        """All entries, for checks and dumps."""
        data = self._file.read_at(0, self._stored * self.entry_size) if self._stored else b""
        return [(pair[0], pair[1]) for pair in struct.iter_unpack(self._format(), data + bytes(self.tail))]

    def find(self, field: int, key: int) -> tuple[int, int] | None:
        """The last entry whose field (0 or 1) is at most `key`."""
        tail = self.tail
        size = self.entry_size
        unpack = self._unpack
        if tail and unpack(tail)[field] <= key:
            return self._search(tail, 0, len(tail) // size, field, key)
        block = self._block
        if block:
            count = len(block) // size
            is_last_block = self._block_start + count == self._stored
            if unpack(block)[field] <= key and (
                is_last_block or key < unpack(block, (count - 1) * size)[field]
            ):
                return self._search(block, 0, count, field, key)
        return self._find_stored(field, key)

    def add(self, first: int, second: int) -> None:
        self.tail += self._pack(first, second)
        self.count += 1

    def store(self) -> None:
        """Write the waiting entries to the file. On an error they keep waiting."""
        tail = self.tail
        if tail:
            self._file.write_at(self._stored * self.entry_size, bytes(tail))
            self._stored += len(tail) // self.entry_size
            self.tail = bytearray()
            # The first entries of earlier blocks stay valid.
            self._block = b""

    def cut(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count >= self.count:
            return
        self._block = b""
        self._firsts = array("q")
        if count >= self._stored:
            del self.tail[(count - self._stored) * self.entry_size :]
        else:
            self.tail = bytearray()
            self._file.truncate(count * self.entry_size)
            self._stored = count
        self.count = count

    def count_below(self, field: int, key: int) -> int:
        """How many entries have a field smaller than `key`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[field] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def trim_file(self) -> None:
        """Cut off preallocated or torn bytes behind the last entry."""
        self.store()
        self._file.handle()
        if self._file.size_bytes() != self._stored * self.entry_size:
            self._file.truncate(self._stored * self.entry_size)

    def _find_stored(self, field: int, key: int) -> tuple[int, int] | None:
        if self._stored == 0:
            return None
        blocks = -(-self._stored // _BLOCK_ENTRIES)
        firsts = self._firsts
        if len(firsts) < 2 * blocks:
            firsts.extend([_UNKNOWN] * (2 * blocks - len(firsts)))
        low, high = 0, blocks
        while high - low > 1:
            middle = (low + high) // 2
            first = firsts[2 * middle + field]
            if first == _UNKNOWN:
                first = self._meet(middle)[field]
            if first <= key:
                low = middle
            else:
                high = middle
        start = low * _BLOCK_ENTRIES
        size = self.entry_size
        count = min(_BLOCK_ENTRIES, self._stored - start)
        block = self._file.read_at(start * size, count * size)
        self._block = block
        self._block_start = start
        return self._search(block, 0, len(block) // size, field, key)

    def _meet(self, block: int) -> tuple[int, int]:
        """Read and remember the first entry of a block."""
        size = self.entry_size
        pair = self._unpack(self._file.read_at(block * _BLOCK_ENTRIES * size, size))
        self._firsts[2 * block], self._firsts[2 * block + 1] = pair
        return pair[0], pair[1]

    def _search(
        self, data: bytes | bytearray, low: int, high: int, field: int, key: int
    ) -> tuple[int, int] | None:
        size = self.entry_size
        unpack = self._unpack
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        pair = unpack(data, (low - 1) * size)
        return pair[0], pair[1]

    def _count_zero_entries_at_end(self) -> int:
        """How many zeros to ignore: Kafka preallocates an active index, and a crash leaves the rest zero."""
        stored = self._stored
        size = self.entry_size
        if stored == 0 or any(self._file.read_at((stored - 1) * size, size)):
            return 0
        low, high = 0, stored - 1
        while low < high:
            middle = (low + high) // 2
            if any(self._file.read_at(middle * size, size)):
                low = middle + 1
            else:
                high = middle
        return stored - low

    def _format(self) -> str:
        return ">ii" if self.entry_size == 8 else ">qi"
