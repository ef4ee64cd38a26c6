"""Deadlines of requests that wait. Nearly all are answered in time, so there is one timer for each length of
time that clients allow, instead of one for each request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

log = logging.getLogger(__name__)

LOOK_THROUGH_MIN: Final = 1_024
"""Up to so many requests that were answered long ago may stand behind one that is not."""
LOOK_S_MAX: Final = 60.0
"""The longest time between two looks at the requests that were given the same time. Without it the broker
would keep a request that was answered for the days that its client would have waited."""
TOLERANCE_S: Final = 0.0005
"""Timers count whole milliseconds."""


class Waiting(Protocol):
    """A request that waits."""

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or nobody waits for the answer any more."""
        ...

    def expire(self) -> None:
        """Its time has passed before it was over."""


class _Queue:
    """Requests that were given the same time, so the first of them is the first to run out of it."""

    __slots__ = ("entries", "look_through_at")

    def __init__(self) -> None:
        self.entries: deque[tuple[float, Waiting]] = deque()
        self.look_through_at = LOOK_THROUGH_MIN

    def look_through(self) -> None:
        self.entries = deque(entry for entry in self.entries if not entry[1].is_over)
        self.look_through_at = max(2 * len(self.entries), LOOK_THROUGH_MIN)


class Deadlines:
    """The deadlines of all requests that wait, by the time that their clients allow."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}

    def add(self, loop: asyncio.AbstractEventLoop, timeout_ms: int, waiting: Waiting) -> None:
        """Have `waiting` expire after `timeout_ms`, unless it is over by then."""
        queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = _Queue()
            loop.call_later(min(timeout_ms / 1000, LOOK_S_MAX), self._look, loop, timeout_ms)
        else:
            entries = queue.entries
            while entries and entries[0][1].is_over:
                entries.popleft()
            if len(entries) >= queue.look_through_at:
                queue.look_through()
        queue.entries.append((loop.time() + timeout_ms / 1000, waiting))

    def _look(self, loop: asyncio.AbstractEventLoop, timeout_ms: int) -> None:
        queue = self._queues[timeout_ms]
        now = loop.time()
        while True:
            while queue.entries and queue.entries[0][1].is_over:
                queue.entries.popleft()
            if not queue.entries:
                del self._queues[timeout_ms]
                return
            left_s = queue.entries[0][0] - now
            if left_s > TOLERANCE_S:
                loop.call_later(min(left_s, LOOK_S_MAX), self._look, loop, timeout_ms)
                return
            try:
                queue.entries.popleft()[1].expire()
            except Exception:
                # A bug in the answer to one request: those of others have their deadlines all the same.
                log.exception("a request could not be told that its time has passed")
