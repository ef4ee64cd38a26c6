"""Turns the outcome of a command into a response, at once or when it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from millrace.coordinator.runtime import Answer, Outcome

T = TypeVar("T")


def answered(outcome: Outcome | Answer, respond: Callable[[Outcome], T]) -> T | Awaitable[T]:
    """The response itself if the outcome is known, which costs no task; else an awaitable of it."""
    return _later(outcome, respond) if isinstance(outcome, asyncio.Future) else respond(outcome)


def all_answered(
    outcomes: Sequence[Outcome | Answer], respond: Callable[[Sequence[Outcome]], T]
) -> T | Awaitable[T]:
    """As `answered`, for several commands that make one response."""
    if any(isinstance(outcome, asyncio.Future) for outcome in outcomes):
        return _all_later(outcomes, respond)
    return respond(outcomes)


async def _later(outcome: Answer, respond: Callable[[Outcome], T]) -> T:
    return respond(await outcome)


async def _all_later(outcomes: Sequence[Outcome | Answer], respond: Callable[[Sequence[Outcome]], T]) -> T:
    return respond(
        [await outcome if isinstance(outcome, asyncio.Future) else outcome for outcome in outcomes]
    )
