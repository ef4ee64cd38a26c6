"""An event loop whose time jumps to the next thing to do. One thread, no sockets, no clock of the machine:
the same program and the same seed run the same callbacks in the same order.

Callbacks that are due at the same moment run in the order in which they were asked for. Every callback
belongs to the process in whose context it was asked for: those of a paused process wait, those of a dead one
are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from millrace.core.override import override
from millrace.sim.census import Census
from millrace.sim.handover import Handover, SharedWithThread
from millrace.sim.network import Network, SimServer, SimTransport
from millrace.sim.process import CURRENT, Process, State

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SPLIT_CHANCE: Final = 0.3
"""How often the result of work in the executor comes later than its effect."""


class SimTask(asyncio.Task[Any]):
    """A task with a number for a hash: sets of tasks have the same order in every process."""

    number: int

    @override
    def __hash__(self) -> int:
        return self.number


class _Timer(asyncio.TimerHandle):
    """A timer with less to do at its beginning and its end than asyncio's own: there are millions."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._scheduled = False
        self._source_traceback = None
        self._repr = None

    @override
    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


def _nothing() -> None:
    """What a cancelled timer does."""


class Stuck(Exception):
    """Nothing is left to do, and what was waited for has not happened."""


class SimLoop(asyncio.BaseEventLoop):
    """A loop in virtual time, which counts seconds from 0. `network` carries its connections."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        network.loop = self
        self.failures: list[str] = []
        """The exceptions that callbacks let escape: each is a bug in the program under test, or here."""
        self.callbacks_count = 0
        self.census: Census | None = None
        self.kernel: Context = copy_context()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._task_number = 0
        self._ready: deque[asyncio.Handle] = deque()
        self.set_task_factory(self._new_task)

    # Time.

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def _run_once(self) -> None:
        ready = self._ready
        timers = self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("no timer is set and no callback is ready")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        for _ in range(len(ready)):
            self._run(ready.popleft())

    def _run(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        context: Context = handle._context  # type: ignore[attr-defined]
        process = context.get(CURRENT)
        if process is not None and process.state:
            if process.state == State.PAUSED:
                process.parked.append(handle)
            return
        self.callbacks_count += 1
        if self.census is not None:
            self.census.count("sim" if process is None else process.name, handle)
        try:
            context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            name = "the simulator" if process is None else process.name
            log.error("a callback of %s failed", name, exc_info=error)
            self.failures.append(f"{name}: {type(error).__name__}: {error}")

    def resume(self, process: Process) -> None:
        """Let a paused process go on, first with what has become due meanwhile."""
        assert process.state == State.PAUSED, process.state
        process.state = State.RUNNING
        self._ready.extend(process.parked)
        process.parked.clear()

    # Tasks.

    def _new_task(
        self,
        _loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        context: Context | None = None,
    ) -> SimTask:
        task = SimTask.__new__(SimTask)
        self._task_number += 1
        task.number = self._task_number
        task.__init__(  # type: ignore[misc]
            coroutine, loop=self, name=f"task-{self._task_number}", context=context
        )
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.adopt(task)
        return task

    def start_in(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a part of a process."""
        return self.create_task(work, context=process.context.copy())

    @override
    def default_exception_handler(self, context: dict[str, Any]) -> None:
        log.debug("asyncio: %s", context.get("message"))

    def _asyncgen_finalizer_hook(self, agen: object) -> None:
        """Leave generators of dead processes alone: the seed does not say when the collector comes."""

    # Work off the loop.

    @override
    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do the work in one instant, after a while; its result may take another while to come.

        One instant is enough: a thread can neither see nor leave anything half done, since it shares nothing
        with the loop that either changes, which `Handover` checks."""
        process = CURRENT.get()
        done: asyncio.Future[T] = self.create_future()
        handover = self._look_at(func, args)
        if process is None:
            self.call_soon(self._work, done, 0.0, handover, func, args)
            return done
        before = process.work_seconds()
        after = process.work_seconds() if process.chance.random() < _SPLIT_CHANCE else 0.0
        self.call_later(before, self._work, done, after, handover, func, args)
        return done

    def _look_at(self, func: Callable[..., object], args: tuple[Any, ...]) -> Handover | None:
        """Look at what work can reach. Work that shares something with the loop is done all the same, but the
        run has failed."""
        try:
            return Handover(func, args)
        except SharedWithThread as error:
            if str(error) not in self.failures:
                self.failures.append(str(error))
            return None

    def _work(
        self,
        done: asyncio.Future[T],
        after: float,
        handover: Handover | None,
        func: Callable[..., T],
        args: tuple[Any, ...],
    ) -> None:
        deliver: Callable[[], None]
        if handover is not None:
            self.failures += handover.changes()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            failure = error

            def deliver() -> None:
                if not done.done():
                    done.set_exception(failure)
        else:

            def deliver() -> None:
                if not done.done():
                    done.set_result(result)

        if after:
            self.call_later(after, deliver)
        else:
            deliver()

    # Connections.

    @override
    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_options: object,
    ) -> SimServer:
        assert port, "a simulated listener needs a port"
        return self.network.listen(protocol_factory, host, port)

    @override
    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_options: object,
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        assert host
        assert port
        return await self.network.connect(protocol_factory, host, port)

    # Driving it.

    def run(self, work: Awaitable[T]) -> T:
        """Run until a coroutine of the simulator itself is done."""
        events.set_event_loop(None)
        return self.run_until_complete(work)

    @override
    def close(self) -> None:
        self._timers.clear()
        super().close()
