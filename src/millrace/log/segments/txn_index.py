"""The aborted transactions that end in a segment: 34-byte entries, as Kafka's `.txnindex`.

Entries lie in the order in which the transactions ended, so a search passes over those that end before an
offset. Where a reader may stop is harder: a transaction that began early may end late, behind thousands of
short ones. So the smallest first offset of each block of entries is kept in memory, from when they are
entered or read, and a block in which everything begins behind the reader's range is not read again.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millrace.log.config import INT64_MAX
from millrace.log.disk.volume import Volume, VolumeFile
from millrace.log.errors import FileMissing

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size
_LAST_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_AT: Final = 18
_VERSION: Final = 0
BLOCK_ENTRIES: Final = 256
_NOT_READ: Final = -1
"""Stands for the smallest first offset of a block that was not read: offsets are not negative."""
NOTHING_ABORTED: Final = INT64_MAX
"""Stands for the smallest first offset where there is no entry."""


class AbortedTransaction(NamedTuple):
    """Readers of committed records skip what its producer wrote from its first to its last offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """The last stable offset when the transaction ended."""


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """The content of an index with these entries."""
    return b"".join(_ENTRY.pack(_VERSION, *each) for each in aborted)


class TxnSummary(NamedTuple):
    """What the blocks of an index hold, the last and perhaps not full one included."""

    entries_count: int
    block_first: array[int]
    """The smallest first offset of each block."""
    block_stable: array[int]
    """The largest last stable offset of each block."""


def summarize(
    volume: Volume,
    path: str,
    look: Callable[[list[AbortedTransaction], int], None] = lambda entries, entries_count: None,
) -> TxnSummary:
    """Read a whole index, block by block; call it in a thread, because a long index takes a while. `look` is
    called with each block and the number of entries it should have."""
    first, stable = array("q"), array("q")
    file = volume.file(path)
    try:
        count = file.size_bytes() // ENTRY_SIZE
        for start in range(0, count, BLOCK_ENTRIES):
            stop = min(start + BLOCK_ENTRIES, count)
            entries = _read(file, start, stop)
            look(entries, stop - start)
            first.append(_first_of(entries))
            stable.append(_stable_of(entries))
    except FileMissing:
        return TxnSummary(0, array("q"), array("q"))
    finally:
        file.close()
    return TxnSummary(count, first, stable)


class TxnIndex:
    """A segment's `.txnindex` file. Most segments have no aborted transaction and no such file."""

    __slots__ = ("_block_first", "_block_stable", "_count", "_end_offset", "_file", "_waiting")

    def __init__(self, file: VolumeFile) -> None:
        self._file = file
        self._waiting: list[AbortedTransaction] = []
        """Entries that the file did not take yet."""
        self._end_offset: int | None = None
        """The offset behind the last transaction of the file; None if that has to be read."""
        # Two numbers for each block of the file, filled in when it is first written or read.
        self._block_first = array("q")
        """The smallest first offset."""
        self._block_stable = array("q")
        """The largest last stable offset."""
        try:
            self._count = file.size_bytes() // ENTRY_SIZE
        except FileMissing:
            self._count = 0

    @property
    def file(self) -> VolumeFile:
        return self._file

    @property
    def is_known(self) -> bool:
        """Whether memory tells which blocks have to be read for which range."""
        first = self._block_first
        return len(first) * BLOCK_ENTRIES >= self._count and _NOT_READ not in first

    @property
    def first_offset(self) -> int:
        """The smallest first offset of all transactions; -1 if it is not known."""
        if not self.is_known:
            return _NOT_READ
        waiting = min((aborted.first_offset for aborted in self._waiting), default=NOTHING_ABORTED)
        return min(min(self._block_first, default=NOTHING_ABORTED), waiting)

    def is_as_read(self, summary: TxnSummary) -> bool:
        """Whether no entry came or went since the file was read."""
        return summary.entries_count == self._count and not self._waiting

    def learn(self, summary: TxnSummary) -> None:
        """Take over what was read of the file, unless entries came or went meanwhile."""
        if summary.entries_count == self._count and not self.is_known:
            self._block_first, self._block_stable = summary.block_first, summary.block_stable

    def append(self, aborted: AbortedTransaction) -> None:
        """Enter a transaction that ended behind all others. If the file does not take it, the entry waits in
        memory and counts all the same; `store` tries again."""
        self._waiting.append(aborted)
        self.store()

    def store(self) -> None:
        """Write what waits to the file. On an error it keeps waiting."""
        waiting = self._waiting
        if waiting:
            data = b"".join([_ENTRY.pack(_VERSION, *aborted) for aborted in waiting])
            self._file.write_at(self._count * ENTRY_SIZE, data)
            self._note(waiting)
            self._count += len(waiting)
            self._end_offset = waiting[-1].last_offset + 1
            self._waiting = []

    def _note(self, entered: list[AbortedTransaction]) -> None:
        """Count in entries that follow those of the file. A part of a block that was not read says nothing
        about the block."""
        first, stable = self._block_first, self._block_stable
        for number, aborted in enumerate(entered, self._count):
            block, place = divmod(number, BLOCK_ENTRIES)
            if place == 0:
                missing = block - len(first)
                first.extend([*[_NOT_READ] * missing, aborted.first_offset])
                stable.extend([*[_NOT_READ] * missing, aborted.last_stable_offset])
            elif block < len(first) and first[block] != _NOT_READ:
                first[block] = min(first[block], aborted.first_offset)
                stable[block] = max(stable[block], aborted.last_stable_offset)

    def all_aborted(self) -> list[AbortedTransaction]:
        return [*self._read(0, self._count), *self._waiting]

    def aborted_between(self, fetch_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that touch the range, and whether later segments can add none."""
        found: list[AbortedTransaction] = []
        if self._count and self._add_stored(fetch_offset, end_offset, found):
            return found, True
        return found, _add_touching(found, self._waiting, fetch_offset, end_offset)

    def _add_stored(self, fetch_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions of the file that touch the range; True if none can come later."""
        if self._end_offset is None:
            self._end_offset = self._last_offset_of(self._count - 1) + 1
        if fetch_offset >= self._end_offset:
            # Most readers are at the end of the log.
            return False
        start = bisect_left(range(self._count), fetch_offset, key=self._last_offset_of)
        first, stable = self._block_first, self._block_stable
        for block in range(start // BLOCK_ENTRIES, -(-self._count // BLOCK_ENTRIES)):
            if block < len(first) and first[block] >= end_offset:
                if stable[block] >= end_offset:
                    return True
                continue
            from_entry = block * BLOCK_ENTRIES
            entries = self._read(from_entry, min(from_entry + BLOCK_ENTRIES, self._count))
            if len(entries) == BLOCK_ENTRIES:
                self._remember(block, entries)
            if _add_touching(found, entries, fetch_offset, end_offset):
                return True
        return False

    def _remember(self, block: int, entries: list[AbortedTransaction]) -> None:
        first, stable = self._block_first, self._block_stable
        while len(first) <= block:
            first.append(_NOT_READ)
            stable.append(_NOT_READ)
        if first[block] == _NOT_READ:
            first[block] = _first_of(entries)
            stable[block] = _stable_of(entries)

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that end at or after `offset`."""
        self._waiting = [aborted for aborted in self._waiting if aborted.last_offset < offset]
        count = bisect_left(range(self._count), offset, key=self._last_offset_of)
        if count != self._count:
            self._file.truncate(count * ENTRY_SIZE)
            self._count = count
            self._end_offset = None
            del self._block_first[count // BLOCK_ENTRIES :], self._block_stable[count // BLOCK_ENTRIES :]

    def _last_offset_of(self, number: int) -> int:
        data = self._file.read_at(number * ENTRY_SIZE + _LAST_OFFSET_AT, _LAST_OFFSET.size)
        offset: int = _LAST_OFFSET.unpack(data)[0]
        return offset

    def _read(self, start: int, stop: int) -> list[AbortedTransaction]:
        return _read(self._file, start, stop)


def _read(file: VolumeFile, start: int, stop: int) -> list[AbortedTransaction]:
    if start == stop:
        return []
    data = file.read_at(start * ENTRY_SIZE, (stop - start) * ENTRY_SIZE)
    whole = memoryview(data)[: len(data) // ENTRY_SIZE * ENTRY_SIZE]
    return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(whole) if fields[0] == _VERSION]


def _first_of(entries: list[AbortedTransaction]) -> int:
    return min((entry.first_offset for entry in entries), default=NOTHING_ABORTED)


def _stable_of(entries: list[AbortedTransaction]) -> int:
    return max((entry.last_stable_offset for entry in entries), default=0)


def _add_touching(
    found: list[AbortedTransaction], entries: list[AbortedTransaction], fetch_offset: int, end_offset: int
) -> bool:
    """Add the entries that touch the range; True once one shows that all later ones begin behind it."""
    for aborted in entries:
        if aborted.first_offset < end_offset and aborted.last_offset >= fetch_offset:
            found.append(aborted)
        if aborted.last_stable_offset >= end_offset:
            return True
    return False
