"""Throttles: who found the quota used up goes on by itself, in order, and not before it is there again."""

from __future__ import annotations

import asyncio

from millrace.broker.throttles import Throttle
from millrace.replica.quota import UNLIMITED
from tests.unit.metadata.virtual_time import run_virtually


def test_those_who_wait_are_let_go_in_order_by_one_timer() -> None:
    async def body() -> None:
        throttle = Throttle()
        throttle.set_rate(1_000)
        gone: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()
        started = loop.time()

        def waits(name: str) -> None:
            throttle.wait(name, lambda: gone.append((name, loop.time() - started)))

        assert throttle.available() == 1_000
        throttle.take(2_000)
        assert throttle.available() == 0
        for name in "abc":
            waits(name)
        throttle.forget("b")
        await asyncio.sleep(0.9)
        assert gone == []
        await asyncio.sleep(0.3)
        assert [name for name, _ in gone] == ["a", "c"]
        assert all(1.0 <= when <= 1.2 for _, when in gone)
        assert throttle.waiting_count == 0

    run_virtually(body())


def test_nobody_overtakes_those_who_wait() -> None:
    async def body() -> None:
        throttle = Throttle()
        throttle.set_rate(1_000)
        throttle.take(1_000)
        throttle.wait("first", lambda: None)
        await asyncio.sleep(0.05)
        assert throttle.available() == 0, "there is something, but somebody waits for it"
        await asyncio.sleep(0.1)
        assert throttle.available() > 0

    run_virtually(body())


def test_another_rate_counts_at_once() -> None:
    async def body() -> None:
        throttle = Throttle()
        throttle.set_rate(10)
        throttle.take(100_000)
        gone: list[str] = []
        throttle.wait("a", lambda: gone.append("a"))
        throttle.set_rate(UNLIMITED)
        assert gone == ["a"]
        assert not throttle.is_limited

    run_virtually(body())
