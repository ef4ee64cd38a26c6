"""A request that waits must be answered in time, however many others wait or were answered before it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from typing_extensions import override

from millrace.broker.network.deadlines import LOOK_S_MAX, LOOK_THROUGH_MIN, Deadlines
from tests.unit.broker.timers import FakeLoop


@dataclass(slots=True)
class Request:
    loop: FakeLoop
    is_over: bool = False
    expired_at: float | None = None

    def expire(self) -> None:
        assert not self.is_over
        self.expired_at = self.loop.now
        self.is_over = True


def test_each_expires_at_its_own_time() -> None:
    loop, deadlines = FakeLoop(), Deadlines()
    first = _add(deadlines, loop, 1_000)
    loop.advance(0.4)
    second, sooner = _add(deadlines, loop, 1_000), _add(deadlines, loop, 100)
    loop.advance(10)
    assert (first.expired_at, second.expired_at, sooner.expired_at) == (1.0, 1.4, 0.5)


def test_what_is_over_does_not_expire_and_needs_no_timer_of_its_own() -> None:
    loop, deadlines = FakeLoop(), Deadlines()
    requests = []
    for _ in range(100):
        request = _add(deadlines, loop, 1_000)
        loop.advance(0.001)
        request.is_over = True
        requests.append(request)
    waiting = _add(deadlines, loop, 1_000)
    loop.advance(10)
    assert all(request.expired_at is None for request in requests)
    assert waiting.expired_at is not None
    assert abs(waiting.expired_at - 1.1) < 0.001
    assert loop.timers_count < 5
    assert loop.timers == []


def test_one_that_waits_for_long_does_not_keep_all_that_came_after_it() -> None:
    loop, deadlines = FakeLoop(), Deadlines()
    stuck = _add(deadlines, loop, 1_000)
    for _ in range(10 * LOOK_THROUGH_MIN):
        _add(deadlines, loop, 1_000).is_over = True
    kept = sum(len(queue.entries) for queue in deadlines._queues.values())
    assert kept <= LOOK_THROUGH_MIN
    loop.advance(1)
    assert stuck.expired_at == 1.0


def test_one_may_wait_again_while_another_expires() -> None:
    loop, deadlines = FakeLoop(), Deadlines()

    class Again(Request):
        @override
        def expire(self) -> None:
            super().expire()
            again.append(_add(deadlines, loop, 1_000))

    again: list[Request] = []
    deadlines.add(cast("asyncio.AbstractEventLoop", loop), 1_000, Again(loop))
    loop.advance(1.5)
    assert [request.expired_at for request in again] == [None]
    loop.advance(1)
    assert [request.expired_at for request in again] == [2.0]


def test_one_that_fails_keeps_nobody_else_from_expiring() -> None:
    loop, deadlines = FakeLoop(), Deadlines()

    class Broken(Request):
        @override
        def expire(self) -> None:
            raise AssertionError("a bug")

    deadlines.add(cast("asyncio.AbstractEventLoop", loop), 1_000, Broken(loop))
    second = _add(deadlines, loop, 1_000)
    loop.advance(0.5)
    third = _add(deadlines, loop, 1_000)
    loop.advance(10)
    assert (second.expired_at, third.expired_at) == (1.0, 1.5)
    assert loop.timers == []


def test_what_was_answered_is_forgotten_long_before_a_deadline_that_is_far_away() -> None:
    """A client may allow a request 24 days, and each of its requests another time."""
    loop, deadlines = FakeLoop(), Deadlines()
    for number in range(1_000):
        _add(deadlines, loop, 2**31 - 1 - number).is_over = True
    waiting = _add(deadlines, loop, 3_600_000)
    loop.advance(LOOK_S_MAX)
    assert list(deadlines._queues) == [3_600_000]
    loop.advance(3_600)
    assert waiting.expired_at == 3_600.0
    assert loop.timers == []


def _add(deadlines: Deadlines, loop: FakeLoop, timeout_ms: int) -> Request:
    request = Request(loop)
    deadlines.add(cast("asyncio.AbstractEventLoop", loop), timeout_ms, request)
    return request
