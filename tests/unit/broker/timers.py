"""A loop whose time passes when a test says so, for what needs nothing of a loop but its timers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class FakeTimer:
    """As a `TimerHandle`: what was asked for, until it is called or cancelled."""

    loop: FakeLoop
    due: float
    callback: Callable[..., None]
    arguments: tuple[Any, ...]

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


@dataclass(slots=True)
class FakeLoop:
    now: float = 0.0
    timers: list[FakeTimer] = field(default_factory=list)
    timers_count: int = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> FakeTimer:
        timer = FakeTimer(self, self.now + delay, callback, arguments)
        self.timers.append(timer)
        self.timers_count += 1
        return timer

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> FakeTimer:
        return self.call_later(0.0, callback, *arguments)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(timer.due for timer in self.timers) <= end:
            timer = min(self.timers, key=lambda timer: timer.due)
            self.timers.remove(timer)
            self.now = timer.due
            timer.callback(*timer.arguments)
        self.now = end
