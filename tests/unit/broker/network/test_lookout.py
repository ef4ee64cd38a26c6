"""Looking for the next request instead of sleeping: only for one client at a time, and only if it pays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from millrace.broker.network.lookout import PASSED_OVER_MAX, Lookout

PATIENCE_S = 0.001
STEP_S = 0.0001


class Loop:
    """Each turn takes a tenth of the patience."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(lambda: callback(*arguments))

    def turn(self) -> None:
        self.now += STEP_S
        for _ in range(len(self._ready)):
            self._ready.popleft()()

    @property
    def is_awake(self) -> bool:
        return bool(self._ready)

    def turns_until_sleep(self) -> int:
        count = 0
        while self.is_awake:
            self.turn()
            count += 1
            assert count < 100, "it never sleeps"
        return count


class Watched:
    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.loop = Loop()
        self.lookout = Lookout(lambda: self.loop.now, patience_s)

    def batch(self) -> None:
        self.lookout.expect_more(cast("Any", self.loop))

    def batches_until_awake(self) -> int:
        count = 0
        while not self.loop.is_awake:
            self.batch()
            count += 1
        return count


def test_after_a_batch_the_loop_stays_awake_for_a_moment() -> None:
    watched = Watched()
    watched.batch()
    assert 9 <= watched.loop.turns_until_sleep() <= 11


def test_the_moment_begins_anew_with_each_batch() -> None:
    watched = Watched()
    watched.batch()
    for _ in range(50):
        for _ in range(8):
            watched.loop.turn()
            assert watched.loop.is_awake
        watched.batch()


def test_batches_that_are_rare_are_hardly_looked_for() -> None:
    watched = Watched()
    tries = []
    for _ in range(14):
        tries.append(watched.batches_until_awake())
        watched.loop.turns_until_sleep()
    assert tries[:5] == [1, 2, 4, 8, 16]
    assert tries[-2:] == [PASSED_OVER_MAX + 1] * 2


def test_a_batch_that_was_found_makes_looking_worthwhile_again() -> None:
    watched = Watched()
    for _ in range(6):
        watched.batches_until_awake()
        watched.loop.turns_until_sleep()
    watched.batches_until_awake()
    watched.batch()
    watched.loop.turns_until_sleep()
    assert watched.batches_until_awake() == 2


def test_batches_that_come_together_are_not_looked_for() -> None:
    watched = Watched()
    watched.batch()
    watched.batch()
    watched.batch()
    watched.loop.turn()
    assert not watched.loop.is_awake


def test_without_patience_the_loop_always_sleeps() -> None:
    watched = Watched(patience_s=0)
    for _ in range(5_000):
        watched.batch()
    assert not watched.loop.is_awake
