"""Answers that a request makes possible on other connections than its own, and when they leave.

Fetches can be answered because records have arrived. The first one goes out before the producer's own answer:
its consumer is waiting for exactly this, and every system call in between would be part of the latency from
end to end. The others follow after it, so that a producer never waits for a crowd of consumers.

Produces can be answered because a follower has fetched their batches: often many at once, of one producer.
They are collected while the follower's request is handled, and leave together, with one system call for each
connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Sender(Protocol):
    def send_collected(self) -> None:
        """Send the answers that were made meanwhile."""


class Wakeups:
    __slots__ = ("_is_scheduled", "_loop", "has_run_first", "is_collecting", "pending", "unsent")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        self.pending: deque[Callable[[], None]] = deque()
        self.is_collecting = False
        """Whether somebody handles requests, and calls `run_first`, `run_rest_soon` and `send_together`
        afterwards."""
        self.has_run_first = False
        """Whether that was done for the requests that are being handled."""
        self.unsent: dict[Sender, None] = {}
        """With answers that wait for it."""

    def add(self, answer: Callable[[], None]) -> None:
        """Have `answer` called soon, at the latest in the loop's next round."""
        self.pending.append(answer)
        if not self.is_collecting:
            self.run_rest_soon()

    def run_rest_soon(self) -> None:
        if self.pending and not self._is_scheduled:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._is_scheduled = True
            self._loop.call_soon(self._run_all)

    def run_first(self) -> None:
        """Call the first one now, and what it answers leaves now."""
        was_collecting, self.is_collecting = self.is_collecting, False
        self._run(self.pending.popleft())
        self.is_collecting = was_collecting
        self.has_run_first = True

    def send_together(self) -> None:
        unsent, self.unsent = self.unsent, {}
        for sender in unsent:
            sender.send_collected()

    def _run_all(self) -> None:
        self._is_scheduled = False
        # Only those that are here: an answer may make room for others, which get their own round.
        for _ in range(len(self.pending)):
            self._run(self.pending.popleft())

    def _run(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        except Exception:
            # It belongs to another connection than the one being handled, whose requests must not suffer.
            log.exception("a waiting fetch could not be answered")
