"""Owns everything that runs beside requests: starts the work, watches it, tries it again and ends it.

There are two kinds of work. A loop is kept: it never ends by itself, so `Background` begins it again when it
fails, after a wait that doubles with every failure in a row. The loop must find its way from what it left
behind; its `reset` puts right what has to be right first. One-off work is started: it ends by itself, and
`Tasks` logs and counts its failure, no more, because only those who asked for it know whether it still makes
sense.

A loop may also end. `fatal` errors say that the broker cannot go on. Work that guards data has a `give_up`,
called when it has failed too often in a row: to fence is better than to pretend. And a loop that returns is
done. An error that nobody expected is never hidden: it is logged with its trace, counted by the task's name,
and a violation in the simulator.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from millrace.core.errors import MillraceError

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 60.0
HEALTHY_S: Final = 300.0
"""A loop that ran for so long has recovered: its next failure is its first again."""
ATTEMPTS_MAX: Final = 6
"""Work that may give up does so after this many failures in a row, which take about fifteen seconds."""
END_S_MAX: Final = 5.0
"""How long cancelled tasks have to end; their owner leaves those behind that do not."""

Loop = Callable[[], Coroutine[Any, Any, None]]
StartTask = Callable[[Coroutine[Any, Any, None]], None]
"""How a part starts one-off work of one kind, under the name that the work's owner chose."""
GiveUp = Callable[[BaseException], None]


class Failures:
    """How often background work failed, by the name of the task."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def report(self, name: str, error: BaseException, what_now: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        log.error("%s failed, %s", name, what_now, exc_info=error, extra={"failures": self.counts[name]})


class Tasks:
    """The one-off work of one owner."""

    def __init__(self, failures: Failures | None = None) -> None:
        self.failures = Failures() if failures is None else failures
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, name: str, work: Coroutine[Any, Any, T], *, is_awaited: bool = False) -> asyncio.Task[T]:
        """Run a coroutine until it ends or the owner does. With `is_awaited`, expected failures reach whoever
        waits for the task, and are not logged here."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._expecting if is_awaited else self._ended)
        return task

    def starter(self, name: str) -> StartTask:
        """A function that starts work of this name, for a part that need not know who owns the work."""

        def start(work: Coroutine[Any, Any, None]) -> None:
            _ = self.start(name, work)

        return start

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def wait(self, timeout_s: float) -> bool:
        """Whether all tasks have ended within the time."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)  # noqa: TID251 - a list keeps its order
        return not self._tasks

    async def end(self, timeout_s: float = END_S_MAX) -> None:
        """Cancel everything, and wait until it is over, but not for ever."""
        self.cancel()
        if not await self.wait(timeout_s):
            names = ", ".join(self._tasks.values())
            log.error("background work does not end and is left behind: %s", names)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MillraceError):
            log.warning("%s: %s", name, error)
        elif error is not None:
            self.failures.report(name, error, "and is not tried again")

    def _expecting(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MillraceError):
            self.failures.report(name, error, "and is not tried again")


class Background(Tasks):
    """The loops of a broker, and its one-off work that belongs to nobody else."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.fatal: BaseException | None = None
        """Why the broker cannot go on, if it cannot."""
        self._on_fatal: Callable[[], object] = _nobody_listens

    def keep(
        self,
        name: str,
        work: Loop,
        *,
        reset: Callable[[], None] | None = None,
        give_up: GiveUp | None = None,
        fatal: tuple[type[BaseException], ...] = (),
    ) -> asyncio.Task[None]:
        """Run a loop until it is cancelled, and again when it fails."""
        return self.start(name, self._keep(name, work, reset, give_up, fatal))

    def cannot_go_on(self, name: str, error: BaseException) -> None:
        """Stop the broker, in order."""
        if self.fatal is None:
            self.fatal = error
            log.error("the broker stops, because %s cannot go on: %s", name, error)
            self._on_fatal()

    def when_fatal(self, stop: Callable[[], object]) -> None:
        """Call `stop` when the broker cannot go on; at once if that is known already."""
        self._on_fatal = stop
        if self.fatal is not None:
            stop()

    async def unless_fatal(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result; if the broker cannot go on meanwhile, this cancels it and raises the reason."""
        task = asyncio.current_task()
        assert task is not None
        self.when_fatal(task.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            if self.fatal is None:
                raise
            task.uncancel()
            raise self.fatal from None
        finally:
            self._on_fatal = _nobody_listens

    async def _keep(
        self,
        name: str,
        work: Loop,
        reset: Callable[[], None] | None,
        give_up: GiveUp | None,
        fatal: tuple[type[BaseException], ...],
    ) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            try:
                if failures and reset is not None:
                    reset()
                await work()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Somebody else cancelled what the loop waited for; that must not end the loop silently.
                log.warning("%s begins again, because what it waited for was cancelled", name)
                delay_s = RETRY_S * self._chance.uniform(0.5, 1.0)
            except fatal as error:
                self.cannot_go_on(name, error)
                return
            except Exception as error:  # noqa: BLE001 - the edge of a background task
                failures = 1 if loop.time() - started >= HEALTHY_S else failures + 1
                if give_up is not None and failures >= ATTEMPTS_MAX:
                    self.failures.report(name, error, f"{failures} times in a row, and gives up")
                    give_up(error)
                    return
                delay_s = min(RETRY_S * 2 ** min(failures - 1, 10), RETRY_S_MAX)
                delay_s *= self._chance.uniform(0.5, 1.0)
                self.failures.report(name, error, f"and is tried again in {delay_s:.1f} s")
            else:
                return
            await asyncio.sleep(delay_s)


def _nobody_listens() -> None:
    """Stands in until `when_fatal` names a listener."""
