"""A loop whose time jumps to the next timer as soon as nothing else is to be done: minutes pass in
milliseconds, and no test waits for a clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from millrace.core.override import override

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing is going to happen"
        self.now_s += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        self._jumping.now_s += seconds


def pass_time(seconds: float) -> None:
    """Stand still for so long: no timer is looked at meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _VirtualLoop)
    loop.stand_still(seconds)


def run_virtually(body: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(body)
