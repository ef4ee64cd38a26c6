"""Many timers behind one of the loop: none fires early, none is lost, and setting one anew is cheap."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from millrace.coordinator.decision import CancelTimer, SetTimer
from millrace.coordinator.timers import Timers


def set_timer(timers: Timers, name: Hashable, delay_ms: int, command: object) -> None:
    timers.change([SetTimer(name, delay_ms, command)])


def cancel_timer(timers: Timers, name: Hashable) -> None:
    timers.change([CancelTimer(name)])


class Handle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.is_cancelled = when, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class StandingLoop:
    """A loop whose time moves when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.armed: list[Handle] = []
        self.calls = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.calls += 1
        handle = Handle(when, callback)
        self.armed.append(handle)
        return handle

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [each for each in self.armed if not each.is_cancelled and each.when <= end]:
            first = min(due, key=lambda each: each.when)
            self.armed.remove(first)
            self.now = max(self.now, first.when)
            first.callback()
        self.now = end


def timers() -> tuple[StandingLoop, Timers, list[object]]:
    loop = StandingLoop()
    fired: list[object] = []
    return loop, Timers(loop, fired.append), fired


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    loop, some, fired = timers()
    set_timer(some, "b", 2_000, "second")
    set_timer(some, "a", 1_000, "first")
    set_timer(some, "c", 2_000, "third")
    loop.advance(0.999)
    assert fired == []
    loop.advance(2)
    assert fired == ["first", "second", "third"]
    assert len(some) == 0


def test_a_timer_that_is_set_anew_fires_once_and_late() -> None:
    loop, some, fired = timers()
    for _ in range(10):
        set_timer(some, "session", 10_000, "over")
        loop.advance(9)
    assert fired == []
    loop.advance(1)
    assert fired == ["over"]
    loop.advance(100)
    assert fired == ["over"]


def test_a_timer_can_be_moved_to_an_earlier_time() -> None:
    loop, some, fired = timers()
    set_timer(some, "join", 60_000, "late")
    set_timer(some, "join", 1_000, "soon")
    loop.advance(1)
    assert fired == ["soon"]
    loop.advance(100)
    assert fired == ["soon"]


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    loop, some, fired = timers()
    set_timer(some, "a", 1_000, "first")
    cancel_timer(some, "a")
    cancel_timer(some, "never set")
    loop.advance(0.5)
    set_timer(some, "a", 1_000, "second")
    loop.advance(0.5)
    assert fired == []
    loop.advance(0.5)
    assert fired == ["second"]


def test_what_fires_may_set_timers() -> None:
    loop = StandingLoop()
    fired: list[float] = []
    some: Timers

    def again(_command: object) -> None:
        fired.append(loop.now)
        set_timer(some, "again", 1_000, None)

    some = Timers(loop, again)
    set_timer(some, "again", 1_000, None)
    loop.advance(3)
    assert fired == [101.0, 102.0, 103.0]


def test_restarting_does_not_touch_the_loop() -> None:
    # Ten thousand members send a heartbeat every three seconds.
    loop, some, _ = timers()
    for number in range(1_000):
        set_timer(some, number, 10_000, number)
    before = loop.calls
    for _ in range(10):
        loop.now += 0.1
        for number in range(1_000):
            set_timer(some, number, 10_000, number)
    assert loop.calls == before


def test_any_mixture_fires_exactly_what_is_due() -> None:
    chance = random.Random(7)
    loop, some, fired = timers()
    due: dict[int, tuple[float, int]] = {}
    for step in range(3_000):
        name = chance.randrange(20)
        match chance.randrange(4):
            case 0 | 1:
                delay_ms = chance.randrange(1, 5_000)
                set_timer(some, name, delay_ms, (name, step))
                due[name] = (loop.now + delay_ms / 1000, step)
            case 2:
                cancel_timer(some, name)
                due.pop(name, None)
            case _:
                fired.clear()
                loop.advance(chance.random())
                expected = [(each, step) for each, (deadline, step) in due.items() if deadline <= loop.now]
                assert sorted(fired, key=repr) == sorted(expected, key=repr)
                for each, _ in expected:
                    del due[each]
        assert len(some) == len(due)


def test_a_command_that_fails_takes_no_other_along() -> None:
    """Members whose sessions end at the same moment would stay in their groups for ever."""
    loop = StandingLoop()
    fired: list[object] = []

    def fire(command: object) -> None:
        fired.append(command)
        if command == "bad":
            raise AssertionError(command)

    some = Timers(loop, fire)
    for place, command in enumerate(("first", "bad", "last")):
        set_timer(some, place, 1_000, command)
    loop.advance(1)
    assert fired == ["first", "bad", "last"]
    set_timer(some, "later", 1_000, "later")
    loop.advance(1)
    assert fired[-1] == "later"
