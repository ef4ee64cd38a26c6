"""Requests that wait: fetches for more records, produces until enough replicas and disks have theirs.

No I/O and no timers here: who waits brings its own deadline and withdraws when it has passed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

_UNANSWERED: Final = "one who waited for an offset could not be answered"
"""A bug in that answer. It belongs to another request than the one at work, and others wait behind it."""


NEWEST_BYTES_MAX: Final = 16 * 1024
"""More than this is not kept in memory for those who wait: they read it from the log."""
Newest = tuple[int, bytes]
"""The first offset and the bytes of batches that were just written, up to the end of the log."""


class FetchWaiter(Protocol):
    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        """`size_bytes` more can be read from a partition that this fetch waits for: these, where they are
        known."""

    def changed(self) -> None:
        """The partition changed in a way that waiting cannot mend: answer now."""


class ReplicaReader(Protocol):
    """A follower's place at one partition of its leader: it is told what happens and reads when it can."""

    def appended(self) -> None:
        """There is something to fetch, committed or not."""

    def high_watermark_moved(self) -> None:
        """More is committed, which the follower should hear soon."""

    def changed(self) -> None:
        """Leadership, or the log's start, is not what it was."""


class OffsetWaiters:
    """Those who wait until an offset is reached, in the order of their offsets."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once everything below `offset` is there, `done(False)` if it never will be."""
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= offset:
            waiting.append((offset, done))
        else:
            # A batch that was sent again waits for the place that it got the first time.
            waiting.insert(bisect_right(waiting, offset, key=_offset), (offset, done))

    def reached(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            try:
                waiting.popleft()[1](True)
            except Exception:
                log.exception(_UNANSWERED)

    def fail(self) -> None:
        """Nobody's offset will be reached: the partition is going away or its disk has failed."""
        waiting, self._waiting = self._waiting, deque()
        for _offset, done in waiting:
            try:
                done(False)
            except Exception:
                log.exception(_UNANSWERED)


def _offset(waiter: tuple[int, Callable[[bool], None]]) -> int:
    return waiter[0]
