"""What scenarios are made of: a name, a plan, and faults that go on for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from millrace.sim.faults import Fault
from millrace.sim.run import Plan, Run, Scenario

FLUSH_EVERY_MESSAGE: Final = {"log.flush.interval.messages": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A scenario under its name, with the plan that it needs."""

    name: str
    play: Scenario
    plan: Plan
    about: str


def again_and_again(*kinds: Fault, every_s: tuple[float, float] = (1.0, 15.0)) -> Scenario:
    """Plays one of these faults after the other, with quiet times between, until the time is over."""

    async def play(run: Run) -> None:
        while run.time_left() > 0:
            await run.sleep(*every_s)
            await run.chance.choice(kinds)(run)

    return play


def side_by_side(*kinds: Fault, every_s: tuple[float, float] = (2.0, 30.0), lines: int = 2) -> Scenario:
    """Plays faults as `again_and_again` does, several at the same time."""

    async def play(run: Run) -> None:
        await asyncio.gather(*(again_and_again(*kinds, every_s=every_s)(run) for _ in range(lines)))

    return play


async def no_fault(run: Run) -> None:
    await run.sleep(run.seconds)
