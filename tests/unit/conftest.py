"""In every unit test: whatever a loop hands to a thread is looked at (`sim/handover.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.sim.handover import Handover


@pytest.fixture(autouse=True, scope="session")
def handovers_are_checked() -> Iterator[None]:
    """Loop and threads share no structure that either changes."""
    run_in_executor = asyncio.BaseEventLoop.run_in_executor

    def checked(
        loop: asyncio.BaseEventLoop, executor: Any, work: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        Handover(work, arguments)
        return run_in_executor(loop, executor, work, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "run_in_executor", checked)
        yield
