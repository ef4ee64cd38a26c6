"""One history for clients in many threads and processes, and the threads that they run in."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Final

from typing_extensions import override

from millrace.sim.history import Event, History

PATIENCE_S: Final = 90.0
"""For what must happen at last, on however slow a machine."""


def now() -> int:
    """Milliseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns() // 1_000_000


class Recorder:
    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def note(self, *events: Event) -> None:
        with self._lock:
            self._events += events

    def history(self) -> History:
        """In the order of time: events of other processes arrive here a little later than they happened."""
        history = History()
        with self._lock:
            for event in sorted(self._events, key=lambda each: each.at):
                history.add(event)
        return history


class Client(ABC):
    """Works in a thread of its own until it is told to stop. `failures` is what no client should be told."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self.note = recorder.note
        self.failures: list[str] = []
        self.troubles: list[str] = []
        """What it was told and got over, for the report of a test that fails."""
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def run(self) -> None:
        """Until `stopping` is set; then bring to an end what was begun."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} comes to no end: {self.troubles[-5:]}"

    def trouble(self, doing: str, error: object) -> None:
        self.troubles.append(f"{now()} {doing}: {error}")

    def _work(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - the test asks for failures, not the thread's log
            self.failures.append(f"{self.name}: {type(error).__name__}: {error}")

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
