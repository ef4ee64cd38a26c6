"""Background work outlives its failures, never hides them, and gives up only in ways that were chosen."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import pytest

from millrace.core.background import (
    ATTEMPTS_MAX,
    HEALTHY_S,
    RETRY_S,
    RETRY_S_MAX,
    Background,
    Tasks,
)
from millrace.core.errors import MillraceError
from tests.unit.metadata.virtual_time import run_virtually


class Lost(MillraceError):
    """What the work says when it cannot go on."""


class Flaky:
    """A loop that fails a number of times, after a while each."""

    def __init__(self, failures: int, *, error: Exception | None = None, after_s: float = 0.0) -> None:
        self.failures = failures
        self.error = error or OSError("no")
        self.after_s = after_s
        self.started_at: list[float] = []

    async def run(self) -> None:
        self.started_at.append(asyncio.get_running_loop().time())
        if len(self.started_at) <= self.failures:
            await asyncio.sleep(self.after_s)
            raise self.error
        await asyncio.Event().wait()


def play(body: Callable[[Background], object], seconds: float) -> Background:
    async def main() -> Background:
        background = Background(random.Random(7))
        body(background)
        await asyncio.sleep(seconds)
        await background.end()
        return background

    return run_virtually(main())


def test_a_loop_that_fails_is_counted_logged_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Flaky(2)
    resets: list[int] = []
    background = play(
        lambda owner: owner.keep("work", work.run, reset=lambda: resets.append(len(work.started_at))), 60
    )
    assert len(work.started_at) == 3
    assert resets == [1, 2]
    assert background.failures.counts == {"work": 2}
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [
        True,
        True,
    ]
    assert background.fatal is None


def test_the_pauses_grow_to_a_bound_and_differ_by_chance() -> None:
    work = Flaky(20)
    _ = play(lambda owner: owner.keep("work", work.run), 3_600)
    pauses = [later - earlier for earlier, later in zip(work.started_at, work.started_at[1:], strict=False)]
    for number, pause in enumerate(pauses):
        longest = min(RETRY_S * 2**number, RETRY_S_MAX)
        assert longest / 2 <= pause <= longest
    assert len({round(pause / min(RETRY_S * 2**n, RETRY_S_MAX), 3) for n, pause in enumerate(pauses)}) > 10


def test_a_loop_that_was_well_for_long_begins_with_short_pauses_again() -> None:
    work = Flaky(12, after_s=HEALTHY_S + 1)
    _ = play(lambda owner: owner.keep("work", work.run), 20 * HEALTHY_S)
    pauses = [
        later - earlier - HEALTHY_S - 1
        for earlier, later in zip(work.started_at, work.started_at[1:], strict=False)
    ]
    assert len(pauses) == 12
    assert max(pauses) <= RETRY_S


def test_what_guards_data_gives_up_after_a_bounded_number_of_failures_in_a_row() -> None:
    work = Flaky(1_000)
    given_up: list[BaseException] = []
    background = play(lambda owner: owner.keep("guard", work.run, give_up=given_up.append), 3_600)
    assert given_up == [work.error]
    assert len(work.started_at) == background.failures.counts["guard"] == ATTEMPTS_MAX


def test_a_fatal_error_stops_the_broker_once_and_is_not_tried_again() -> None:
    first, second = Flaky(9, error=Lost("gone")), Flaky(9, error=Lost("gone too"), after_s=1)
    stops: list[str] = []

    def body(owner: Background) -> None:
        owner.when_fatal(lambda: stops.append("stop"))
        for name, work in (("first", first), ("second", second)):
            _ = owner.keep(name, work.run, fatal=(Lost,))

    background = play(body, 60)
    assert background.fatal is first.error
    assert stops == ["stop"]
    assert len(first.started_at) == len(second.started_at) == 1


def test_a_start_is_broken_off_by_what_cannot_go_on() -> None:
    async def main() -> None:
        background = Background(random.Random(7))
        _ = background.keep("work", Flaky(1, error=Lost("gone"), after_s=1).run, fatal=(Lost,))
        with pytest.raises(Lost):
            await background.unless_fatal(asyncio.sleep(3_600))
        # It was not this task that was to be cancelled: what it does next goes on.
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        await asyncio.sleep(1)
        await background.end()

    run_virtually(main())


def test_one_off_work_is_told_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        tasks = Tasks()
        for name, error in (("bug", ValueError("a")), ("expected", Lost("b"))):
            _ = tasks.start(name, fail(error))
        awaited = tasks.start("awaited", fail(Lost("c")), is_awaited=True)
        with pytest.raises(Lost):
            await awaited
        await asyncio.sleep(60)
        assert tasks.failures.counts == {"bug": 1}
        assert len(tasks) == 0

    run_virtually(main())
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("ERROR", "bug failed, and is not tried again"), ("WARNING", "expected: b")]


def test_a_part_that_starts_one_kind_of_work_needs_to_know_no_owner() -> None:
    done: list[str] = []

    async def note(text: str) -> None:
        done.append(text)
        await asyncio.sleep(3_600)

    async def main() -> None:
        tasks = Tasks()
        start = tasks.starter("note")
        start(note("a"))
        start(note("b"))
        await asyncio.sleep(0)
        assert len(tasks) == 2
        await tasks.end()
        assert len(tasks) == 0

    run_virtually(main())
    assert done == ["a", "b"]


def test_who_asks_late_hears_at_once_that_the_broker_cannot_go_on() -> None:
    background = Background(random.Random(7))
    background.cannot_go_on("work", Lost("gone"))
    stops: list[str] = []
    background.when_fatal(lambda: stops.append("stop"))
    assert stops == ["stop"]


def test_the_end_comes_in_time_even_if_something_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling() > 1:
                    raise

    async def main() -> None:
        background = Background(random.Random(7))
        stuck = background.start("stubborn", stubborn())
        _ = background.keep("work", Flaky(0).run)
        await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        await background.end(5.0)
        assert asyncio.get_running_loop().time() - started == pytest.approx(5.0)
        assert len(background) == 1
        stuck.cancel()

    run_virtually(main())
    assert "left behind: stubborn" in caplog.text


def test_a_loop_goes_on_when_what_it_waits_for_is_cancelled_by_somebody_else() -> None:
    """Only its owner ends it: otherwise it would be gone without a word."""
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            waited_for = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(waited_for.cancel)
            await waited_for
        await asyncio.Event().wait()

    background = play(lambda owner: owner.keep("work", work), 10)
    assert starts == 2
    assert len(background) == 0, "its owner could end it"
