"""Who waits for an offset is answered when it is reached, whatever the order in which he came."""

from __future__ import annotations

from collections.abc import Callable

from millrace.replica.waiting import OffsetWaiters


def test_a_batch_sent_again_waits_among_the_later_ones() -> None:
    """While a flush is slow, a producer repeats a batch whose successors wait already (found by the
    simulator, scenario F32)."""
    answered: list[str] = []

    def note(name: str) -> Callable[[bool], None]:
        return lambda is_there: answered.append(f"{name} {is_there}")

    waiters = OffsetWaiters()
    waiters.add(10, note("first"))
    waiters.add(30, note("third"))
    waiters.add(20, note("second"))
    waiters.add(10, note("first again"))
    waiters.reached(10)
    assert answered == ["first True", "first again True"]
    waiters.reached(25)
    assert answered[2:] == ["second True"]
    waiters.fail()
    assert answered[3:] == ["third False"]


def test_an_answer_that_fails_keeps_nobody_else_waiting() -> None:
    """They belong to different requests; and whoever moves the high watermark has nothing to do with any."""
    answered: list[bool] = []

    def fail(_is_there: bool) -> None:
        raise AssertionError("a bug")

    waiters = OffsetWaiters()
    for offset in (1, 3):
        waiters.add(offset, fail)
        waiters.add(offset + 1, answered.append)
    waiters.reached(2)
    assert answered == [True]
    waiters.fail()
    assert answered == [True, False]
    assert len(waiters) == 0
