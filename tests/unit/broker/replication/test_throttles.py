"""Throttles: who found the quota used up goes on by itself, in order, and not before it is there again."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.replication.throttles import Throttle
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


def test_waits_are_added_up_over_all_who_wait() -> None:
    async def body() -> None:
        throttle = Throttle()
        throttle.set_rate(1_000)
        throttle.take(2_000)
        assert throttle.waited_s == 0.0
        throttle.wait("a", lambda: None)
        await asyncio.sleep(0.25)
        throttle.wait("b", lambda: None)
        await asyncio.sleep(0.5)
        assert throttle.waited_s == pytest.approx(0.25 + 2 * 0.5), "also while they wait"
        throttle.forget("b")
        throttle.forget("nobody")
        await asyncio.sleep(0.125)
        throttle.let_go()
        await asyncio.sleep(10.0)
        assert throttle.waited_s == pytest.approx(0.25 + 2 * 0.5 + 0.125)

    run_virtually(body())


def test_what_has_passed_never_goes_back() -> None:
    async def body() -> None:
        throttle = Throttle()
        throttle.take(1_000)
        assert throttle.passed_bytes == 1_000
        throttle.give_back(900)
        assert throttle.passed_bytes == 1_000
        throttle.take(500)
        assert throttle.passed_bytes == 1_000, "600 in truth: what was counted too early is made up for"
        throttle.take(500)
        assert throttle.passed_bytes == 1_100

    run_virtually(body())


def test_without_a_limit_there_is_no_rate() -> None:
    async def body() -> None:
        throttle = Throttle()
        rates = [throttle.rate]
        for rate in (5_000, UNLIMITED):
            throttle.set_rate(rate)
            rates.append(throttle.rate)
        assert rates == [None, 5_000, None]

    run_virtually(body())
