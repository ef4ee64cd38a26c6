"""A response is made at once where the outcome is known, and once all are known where several make it."""

from __future__ import annotations

import asyncio
import inspect

from millrace.broker.handlers.groups.answers import all_answered, answered


def test_a_known_outcome_is_answered_without_waiting() -> None:
    assert answered(1, lambda outcome: f"got {outcome}") == "got 1"
    assert all_answered([1, 2], lambda outcomes: f"got {outcomes}") == "got [1, 2]"
    assert all_answered([], len) == 0


def test_an_outcome_that_is_still_to_come_is_waited_for() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        one = answered(first, lambda outcome: f"got {outcome}")
        several = all_answered([1, second, 3, first], lambda outcomes: f"got {outcomes}")
        assert inspect.isawaitable(one)
        assert inspect.isawaitable(several)
        loop.call_soon(second.set_result, 2)
        loop.call_soon(first.set_result, 4)
        assert await several == "got [1, 2, 3, 4]", "in the order of the commands"
        assert await one == "got 4"

    asyncio.run(work())
