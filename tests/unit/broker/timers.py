"""A loop whose time passes when a test says so, for what needs nothing of a loop but its timers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FakeLoop:
    now: float = 0.0
    timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    timers_count: int = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.timers.append((self.now + delay, callback, arguments))
        self.timers_count += 1

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= end:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1](*timer[2])
        self.now = end
