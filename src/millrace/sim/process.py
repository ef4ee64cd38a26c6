"""A simulated process: all code that runs under one value of a context variable, and that stops, stands still
or vanishes together."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millrace.sim.network import SimServer, SimTransport

_CLOSE_ATTEMPTS: Final = 8
_PRUNE_AT_LEAST: Final = 256


class State(IntEnum):
    """Whether a process runs. RUNNING is 0, so that the loop rules the others out with one test."""

    RUNNING = 0
    PAUSED = 1
    """Its callbacks wait, as those of a process that was sent SIGSTOP."""
    DEAD = 2


@dataclass(slots=True)
class DiskSpeed:
    """How long work in the executor takes, which is mostly waiting for the disk."""

    seconds_min: float = 0.000_1
    seconds_max: float = 0.002


class Process:
    """One run of a program. Each start of a program makes a new one; the host stays."""

    def __init__(self, name: str, host: str, chance: random.Random) -> None:
        self.name = name
        self.host = host
        self.chance = chance
        self.state = State.RUNNING
        self.disk_speed = DiskSpeed()
        self.parked: deque[asyncio.Handle] = deque()
        """What became due while the process was paused."""
        self.transports: dict[SimTransport, None] = {}
        self.servers: dict[SimServer, None] = {}
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._prune_at = _PRUNE_AT_LEAST
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)

    def work_seconds(self) -> float:
        return self.chance.uniform(self.disk_speed.seconds_min, self.disk_speed.seconds_max)

    def adopt(self, task: asyncio.Task[object]) -> None:
        """Remember a task, to be able to end it with the process."""
        tasks = self._tasks
        tasks[task] = None
        if len(tasks) >= self._prune_at:
            self._tasks = {each: None for each in tasks if not each.done()}
            self._prune_at = max(_PRUNE_AT_LEAST, 2 * len(self._tasks))

    def die(self) -> None:
        """Let nothing of the process run again. Its coroutines are closed now, in order, and not when the
        collector comes."""
        self.state = State.DEAD
        self.parked.clear()
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            if not task.done():
                _close(task)


def _close(task: asyncio.Task[object]) -> None:
    # The task will never be done, which is no mistake of the program.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(_CLOSE_ATTEMPTS):
        # A block that awaits while it is being left (a task group does) has to be closed again.
        try:
            coroutine.close()
        except RuntimeError:
            continue
        except Exception:  # noqa: BLE001 - what a dead process does in its last breath concerns nobody
            return
        return


CURRENT: Final[ContextVar[Process | None]] = ContextVar("millrace_sim_process", default=None)
"""The process whose code is running; None for the simulator's own code."""


def current_process() -> Process:
    process = CURRENT.get()
    assert process is not None, "only simulated processes have a network and a disk"
    return process
