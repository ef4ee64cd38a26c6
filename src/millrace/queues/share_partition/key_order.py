"""Which records may be delivered when no two of one key are in flight together.

The records of the window that are not done form a chain for each key, in the order of the log. Only the first
of a chain may be delivered; the next one follows when it is done, so nothing is ever searched for. Kept are a
hash and the link to the next record of the key, 16 bytes for a record in arrays for each batch, and an entry
for each key: no object for a record. Two keys with the same hash are in order with each other, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heappop, heappush
from typing import Final

from millrace.queues.share_partition.model import RecordState
from millrace.queues.share_partition.runs import Mark, Runs

NO_KEY: Final = 0
"""The hash of a record without a key: nothing is in order with it."""
KEYED_RECORDS_MAX: Final = 100_000
"""So many records of the window have their place in chains; beyond it no new ones are delivered."""

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED


class KeyOrder:
    """The chains of one share partition. `runs` are its window's, which it only reads."""

    __slots__ = (
        "_firsts",
        "_hashes",
        "_heads",
        "_links",
        "_ready",
        "_runs",
        "_tails",
        "known_end",
        "records",
    )

    def __init__(self, runs: Runs, start: int) -> None:
        self._runs = runs
        self.known_end = start
        """The keys of all batches below it are known."""
        self.records = 0
        self._firsts: list[int] = []
        self._hashes: list[array[int]] = []
        self._links: list[array[int]] = []
        self._heads: dict[int, int] = {}
        self._tails: dict[int, int] = {}
        self._ready: list[int] = []

    def learn(self, first_offset: int, hashes: array[int]) -> None:
        """Put the records of a batch into their chains; there is a hash for each of its offsets. Batches
        come in order, and lie in the window."""
        assert not self._firsts or first_offset >= self._firsts[-1] + len(self._hashes[-1]), first_offset
        self._firsts.append(first_offset)
        self._hashes.append(hashes)
        self._links.append(array("q", bytes(8 * len(hashes))))
        self.records += len(hashes)
        last_offset = first_offset + len(hashes) - 1
        for first, last, mark in self._runs.pieces(first_offset, last_offset):
            if _is_behind(mark):
                continue
            is_ready = _is_ready(mark)
            for offset in range(first, last + 1):
                key = hashes[offset - first_offset]
                if key == NO_KEY or key not in self._heads:
                    if key != NO_KEY:
                        self._heads[key] = self._tails[key] = offset
                    if is_ready:
                        heappush(self._ready, offset)
                    continue
                tail = self._tails[key]
                index = bisect_right(self._firsts, tail) - 1
                self._links[index][tail - self._firsts[index]] = offset
                self._tails[key] = offset
        self.known_end = last_offset + 1

    def ready(self, records_max: int) -> list[int]:
        """The first offsets that may be delivered now, in order."""
        found: list[int] = []
        while self._ready and len(found) < records_max:
            offset = heappop(self._ready)
            # An offset may have been put here more than once, or before something else happened to it.
            if (not found or found[-1] != offset) and self._may_go(offset):
                found.append(offset)
        for offset in found:
            heappush(self._ready, offset)
        return found

    def turned(self, first: int, last: int, mark: Mark) -> None:
        """Records have become something else."""
        if mark.token or mark.state is _ACQUIRED:
            return
        for offset in range(first, min(last, self.known_end - 1) + 1):
            key = self._key(offset)
            if key is None or (key != NO_KEY and self._heads.get(key) != offset):
                continue
            if mark.state is not _AVAILABLE:
                if key != NO_KEY:
                    self._move_on(key, offset)
            elif not mark.until_ms:
                heappush(self._ready, offset)

    def cut_below(self, start: int) -> None:
        """Forget the batches below the window. All their records have left their chains."""
        count = 0
        while count < len(self._firsts) and self._firsts[count] + len(self._hashes[count]) <= start:
            self.records -= len(self._hashes[count])
            count += 1
        if count:
            del self._firsts[:count], self._hashes[:count], self._links[:count]
        self.known_end = max(self.known_end, start)

    def _may_go(self, offset: int) -> bool:
        key = self._key(offset)
        if key is None or (key != NO_KEY and self._heads.get(key) != offset):
            return False
        return any(_is_ready(mark) for _, _, mark in self._runs.pieces(offset, offset))

    def _move_on(self, key: int, offset: int) -> None:
        """The first of a chain is done: the next one that is not done is the first now."""
        while True:
            index = bisect_right(self._firsts, offset) - 1
            offset = self._links[index][offset - self._firsts[index]]
            if not offset:
                del self._heads[key], self._tails[key]
                return
            mark = next((mark for _, _, mark in self._runs.pieces(offset, offset)), None)
            if mark is not None and not _is_behind(mark):
                break
        self._heads[key] = offset
        if _is_ready(mark):
            heappush(self._ready, offset)

    def _key(self, offset: int) -> int | None:
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset - self._firsts[index] >= len(self._hashes[index]):
            return None
        return self._hashes[index][offset - self._firsts[index]]


def _is_ready(mark: Mark) -> bool:
    return mark.state is _AVAILABLE and not mark.token and not mark.until_ms


def _is_behind(mark: Mark) -> bool:
    """Whether the next record of the key may follow: consumers have nothing more to do with this one."""
    return not mark.token and mark.state is not _AVAILABLE and mark.state is not _ACQUIRED
