"""What is due soon, in memory: one slot a second, opened when its second has come.

No I/O and no clock. Slots hold packed entries, so that a minute with hundreds of thousands of messages takes
some megabytes; only those of the present second are objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from millrace.queues.delayed.codec import Entry

ENTRY: Final = struct.Struct(">qq")
"""Due time in ms, store offset: in memory as in the index."""
SECOND_MS: Final = 1000


class Wheel:
    """Entries by the second in which they are due."""

    def __init__(self) -> None:
        self._slots: dict[int, bytearray] = {}
        self._ready: list[Entry] = []
        """A heap: what is due in the seconds that have come."""
        self._come = 0
        """The last second whose slot was opened."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entries: Iterable[Entry]) -> None:
        slots = self._slots
        for due_ms, offset in entries:
            second = due_ms // SECOND_MS
            if second <= self._come:
                heappush(self._ready, (due_ms, offset))
            else:
                slot = slots.get(second)
                if slot is None:
                    slot = slots[second] = bytearray()
                slot += ENTRY.pack(due_ms, offset)
            self._count += 1

    def take(self, now_ms: int, limit: int) -> list[Entry]:
        """Take out what is due, oldest first, at most so many."""
        self._open(now_ms // SECOND_MS)
        ready = self._ready
        taken: list[Entry] = []
        while ready and len(taken) < limit and ready[0][0] <= now_ms:
            taken.append(heappop(ready))
        self._count -= len(taken)
        return taken

    def next_due_ms(self) -> int | None:
        """When the next one may be due, to the second; None if there is none."""
        if self._ready:
            return self._ready[0][0]
        return min(self._slots) * SECOND_MS if self._slots else None

    def _open(self, second: int) -> None:
        if second <= self._come:
            return
        self._come = second
        come = [each for each in self._slots if each <= second]
        for each in sorted(come):
            for entry in ENTRY.iter_unpack(self._slots.pop(each)):
                heappush(self._ready, (entry[0], entry[1]))
