"""The time and the timers of a connection, which go on when a test says so."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any


class VirtualTime:
    """Stands for the loop of a connection that is not connected to anything."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        handle = asyncio.TimerHandle(self._now + delay, callback, args, loop)
        self._number += 1
        heapq.heappush(self._timers, (handle.when(), self._number, handle))
        return handle

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback, *args)

    def advance(self, seconds: float) -> None:
        """Let time pass, and what was set for it happen."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                handle._run()
        self._now = end

    @property
    def timers_count(self) -> int:
        return sum(1 for _, _, handle in self._timers if not handle.cancelled())
