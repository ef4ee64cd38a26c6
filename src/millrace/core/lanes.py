"""Threads for blocking calls, in lanes: work waits only behind work that waits for the same thing.

A disk that hangs keeps the threads of its own lanes, and nobody else's. Each lane has a bounded number of
threads, started when they are needed, with the lane's name; what is queued is bounded by those who ask, each
of whom waits for an answer before it asks again. The threads are daemons: the end of the process does not
wait for a disk that never answers.

The loop's default executor is the lane of work that only needs the processor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from millrace.core.override import override

T = TypeVar("T")

THREADS_PER_DISK: Final = 8
"""Threads for each kind of work: about as many requests as a disk can use at once."""


LOGIN_THREADS: Final = 2
"""For passwords and tokens: work for the processor, which must not take all of it."""


class Waits(Enum):
    """What work on a data directory waits for."""

    SYNC = "sync"
    """For written bytes to reach the disk."""
    READ = "read"
    """For bytes that are not in memory."""
    FILES = "files"
    """Long or rare work: recovery, copies, removal, new directories."""


class LaneFigures(NamedTuple):
    """How much work waits in a lane, for `/metrics`."""

    name: str
    queued: int
    oldest_s: float
    """The age of the oldest piece of work that is not done, whether it waits or is under way."""


class Lane(Executor):
    """Some threads that take work in the order in which it comes."""

    def __init__(self, name: str, threads_max: int, ticks: Callable[[], float]) -> None:
        self.name = name
        self._threads_max = threads_max
        self._ticks = ticks
        self._queue: deque[tuple[Future[Any], Callable[[], Any], float]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._under_way: dict[int, float] = {}
        """When the work of each busy thread was asked for."""
        self._threads_count = 0

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._queue.append((future, lambda: fn(*args, **kwargs), self._ticks()))
            if self._idle >= len(self._queue):
                self._changed.notify()
            elif self._threads_count < self._threads_max:
                self._start_thread()
        return future

    def figures(self) -> LaneFigures:
        with self._changed:
            asked_at = list(self._under_way.values())
            if self._queue:
                asked_at.append(self._queue[0][2])
            oldest_s = self._ticks() - min(asked_at) if asked_at else 0.0
            return LaneFigures(self.name, len(self._queue), oldest_s)

    def _start_thread(self) -> None:
        number = self._threads_count
        try:
            thread = threading.Thread(  # noqa: TID251 - this is an executor
                target=self._run, args=(number,), name=f"{self.name}-{number}", daemon=True
            )
            thread.start()
        except RuntimeError as error:
            # The system gives no thread now. Other threads will do the work, unless there are none.
            if number == 0:
                future, _, _ = self._queue.pop()
                future.set_exception(OSError(f"no thread for {self.name}: {error}"))
            return
        self._threads_count += 1

    def _run(self, number: int) -> None:
        while True:
            with self._changed:
                self._under_way.pop(number, None)
                while not self._queue:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                future, work, asked_at = self._queue.popleft()
                self._under_way[number] = asked_at
            if future.set_running_or_notify_cancel():
                try:
                    # No variable for the result: it would stay alive until the next work comes, as these two
                    # would.
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - goes to whoever waits
                    future.set_exception(error)
            del future, work


class Lanes:
    """All lanes of a broker: for each data directory one of each kind, one for the metadata store, one for
    logins, one for the audit's file."""

    def __init__(self, directories: Sequence[str], ticks: Callable[[], float]) -> None:
        self._by_directory = [
            (
                path.rstrip("/") + "/",
                {kind: Lane(f"{kind.value}-{number}", THREADS_PER_DISK, ticks) for kind in Waits},
            )
            for number, path in enumerate(directories)
        ]
        # One thread, because only one at a time may use the store's file.
        self.metadata = Lane("metadata", 1, ticks)
        self.logins = Lane("logins", LOGIN_THREADS, ticks)
        # One thread keeps the lines in their order.
        self.audit = Lane("audit", 1, ticks)

    def of(self, waits: Waits, path: str) -> Lane | None:
        """The lane for work on this path; None (the default executor) if it is in no data directory."""
        for directory, lanes in self._by_directory:
            if path.startswith(directory) or path == directory[:-1]:
                return lanes[waits]
        return None

    def figures(self) -> list[LaneFigures]:
        lanes = [lane for _, of_directory in self._by_directory for lane in of_directory.values()]
        return [lane.figures() for lane in (*lanes, self.metadata, self.logins, self.audit)]
