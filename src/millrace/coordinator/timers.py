"""Many named timers behind one timer of the loop. To set one anew costs a dictionary entry, because thousands
of members do so every few seconds and next to none of their timers ever fires."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from millrace.coordinator.decision import SetTimer, Timer

log = logging.getLogger(__name__)


class TimerHandle(Protocol):
    """One timer of the loop, which can be taken back."""

    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """What an event loop offers for timers."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle: ...


class Timers:
    """Deadlines by name. `fire` gets the commands that are due, in the order of their deadlines."""

    def __init__(self, loop: TimerLoop, fire: Callable[[object], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._due: dict[Hashable, tuple[float, object]] = {}
        # (when to look, a number that keeps ties in order, name). A timer may be looked at before it is due,
        # and never after.
        self._heap: list[tuple[float, int, Hashable]] = []
        self._looked_at: dict[Hashable, float] = {}
        self._number = 0
        self._handle: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def change(self, timers: Sequence[Timer]) -> None:
        """Set and cancel timers, as a decision has it."""
        for timer in timers:
            name = timer.name
            if type(timer) is not SetTimer:
                self._due.pop(name, None)
                continue
            deadline = self._loop.time() + timer.delay_ms / 1000
            self._due[name] = (deadline, timer.command)
            looked_at = self._looked_at.get(name)
            # Most timers are moved to a later time. Then the look at the old time finds the new one.
            if looked_at is None or deadline < looked_at:
                self._push(deadline, name)

    def clear(self) -> None:
        self._due.clear()
        self._heap.clear()
        self._looked_at.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _push(self, when: float, name: Hashable) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, name))
        self._looked_at[name] = when
        if self._heap[0][2] == name:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._look) if self._heap else None

    def _look(self) -> None:
        self._handle = None
        now = self._loop.time()
        due: list[tuple[float, object]] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, name = heapq.heappop(self._heap)
            if self._looked_at.get(name) != when:
                # The timer was set to an earlier time since, which has an entry of its own.
                continue
            del self._looked_at[name]
            timer = self._due.get(name)
            if timer is None:
                continue
            if timer[0] > now:
                self._push(timer[0], name)
            else:
                del self._due[name]
                due.append(timer)
        if self._heap and self._handle is None:
            self._arm()
        for _, command in due:
            try:
                self._fire(command)
            except Exception:
                # The rules have a bug for this command; the others were promised their time as well.
                log.exception("a command that a timer gave has failed: %s", command)
