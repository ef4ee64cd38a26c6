"""What is still to be written to one place: bounded, and it knows how long the oldest has waited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from millrace.security.audit.events import Event

PATIENCE_S: Final = 10.0
"""An event that waits for longer says that its place cannot be written to."""


class Outbox:
    """The events for one place, which its writer takes in their order. Nothing is taken out before it is
    written. `now` is the loop's time, which does not jump."""

    def __init__(self, name: str, events_max: int) -> None:
        self.name = name
        self.written = 0
        self.lost = 0
        """Events that found no room."""
        self.failures = 0
        self.wake: Callable[[], None] = _nobody_writes
        """Tells the writer that there is something to do."""
        self._events_max = events_max
        self._events: deque[Event] = deque()
        self._waits_since = 0.0
        self._untold_lost = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_full(self) -> bool:
        return len(self._events) >= self._events_max

    def put(self, event: Event, now: float) -> None:
        """Take one event more; if there is no room for it, it is counted."""
        if self.is_full:
            self.lost += 1
            self._untold_lost += 1
            return
        if not self._events:
            self._waits_since = now
        self._events.append(event)
        self.wake()

    def first(self, events_max: int) -> list[Event]:
        """The oldest events."""
        return list(islice(self._events, events_max))

    def took(self, count: int, now: float) -> None:
        """The oldest events are written."""
        for _ in range(count):
            self._events.popleft()
        self.written += count
        self._waits_since = now

    def failed(self) -> None:
        """An attempt to write has failed; the events stay."""
        self.failures += 1

    def is_stuck(self, now: float) -> bool:
        """Whether events cannot be written: there is no room for one more, or the oldest waits too long."""
        return self.is_full or (bool(self._events) and now - self._waits_since > PATIENCE_S)

    def take_lost(self) -> int:
        """How many events were lost since this was asked, once there is room to tell of it."""
        if self.is_full:
            return 0
        lost, self._untold_lost = self._untold_lost, 0
        return lost


def _nobody_writes() -> None:
    """Stands in until a writer follows the outbox."""
