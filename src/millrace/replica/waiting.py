"""Requests that wait: fetches for more records, produces until enough replicas and disks have theirs.

No I/O and no timers here: a request that waits has its own deadline, and withdraws when that has passed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

_UNANSWERED: Final = "a request that waited for an offset could not be answered"
"""Logged for a bug in an answer. It must not harm the request at work, nor those that wait behind it."""


NEWEST_BYTES_MAX: Final = 16 * 1024
"""Larger batches are not kept in memory for those who wait: they read them from the log."""
Newest = tuple[int, bytes]
"""The first offset and the bytes of batches that were just written, up to the end of the log."""


class FetchWaiter(Protocol):
    """A fetch that waits for more records of a partition."""

    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        """`size_bytes` more can be read from a partition that this fetch waits for; `newest` holds them, if
        known."""

    def changed(self) -> None:
        """Answer now, because the partition changed in a way that waiting cannot mend."""

    def permissions_changed(self) -> None:
        """Answer now if what this fetch waits for may not be read any more."""


class ReplicaReader(Protocol):
    """A follower's place at one partition of its leader: it is told what happens and reads when it can."""

    def appended(self) -> None:
        """Hear that there is something to fetch, committed or not."""

    def high_watermark_moved(self) -> None:
        """Hear that more is committed, which the follower should know soon."""

    def changed(self) -> None:
        """Hear that leadership or the log's start has changed."""


class OffsetWaiters:
    """Requests that wait until an offset is reached, in the order of their offsets."""

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
        """Tell all that their offsets will not be reached: the partition is gone or its disk has failed."""
        waiting, self._waiting = self._waiting, deque()
        for _offset, done in waiting:
            try:
                done(False)
            except Exception:
                log.exception(_UNANSWERED)


def _offset(waiter: tuple[int, Callable[[bool], None]]) -> int:
    return waiter[0]
