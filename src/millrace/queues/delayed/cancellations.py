"""Which messages were cancelled or replaced, by the hashes of their ids. No I/O: the index keeps the same in
files that only grow.

The newest lie in a dictionary, older ones in sorted arrays of 16 bytes each: a million takes 16 MB. They go
together, once nothing is left of what was stored before the last of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, NamedTuple

GENERATION_MAX: Final = 65_536
"""Cancellations that are sorted, and forgotten, together."""


class _Generation(NamedTuple):
    keys: array[int]
    offsets: array[int]
    last_offset: int


class Cancellations:
    """By the hash of an id: up to which store offset its messages are not to be delivered."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self._older: list[_Generation] = []
        self.added: list[tuple[int, int]] = []
        """What the index has to take in; whoever does empties the list."""

    def __len__(self) -> int:
        return len(self._newest) + sum(len(each.keys) for each in self._older)

    def add(self, key: int, offset: int) -> None:
        self.added.append((key, offset))
        self.restore(key, offset)

    def restore(self, key: int, offset: int) -> None:
        """One that the index knows. They come in the order of their offsets."""
        newest = self._newest
        newest[key] = offset
        if len(newest) >= GENERATION_MAX:
            keys = array("Q", sorted(newest))
            offsets = array("q", [newest[each] for each in keys])
            self._older.append(_Generation(keys, offsets, max(offsets)))
            self._newest = {}

    def get(self, key: int) -> int:
        """The last offset at which this id was cancelled; -1 if it was not."""
        found = self._newest.get(key)
        if found is not None:
            return found
        for keys, offsets, _ in reversed(self._older):
            place = bisect_left(keys, key)
            if place < len(keys) and keys[place] == key:
                return offsets[place]
        return -1

    def forget_before(self, offset: int) -> None:
        """A cancellation counts for what was stored before it. Nothing is left below this offset."""
        self._older = [each for each in self._older if each.last_offset >= offset]
        if self._newest and not self._older and max(self._newest.values()) < offset:
            self._newest = {}
