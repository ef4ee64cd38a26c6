"""What is due comes out in order, as much as is asked for, and not before its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.queues.delayed.wheel import Wheel


def test_the_oldest_come_first_and_none_before_its_time() -> None:
    wheel = Wheel()
    wheel.add([(5_500, 1), (5_100, 2), (9_000, 3)])
    assert wheel.next_due_ms() == 5_000
    assert wheel.take(5_000, 10) == []
    assert wheel.take(5_200, 10) == [(5_100, 2)]
    assert wheel.take(6_000, 10) == [(5_500, 1)]
    assert len(wheel) == 1
    assert wheel.take(60_000, 10) == [(9_000, 3)]
    assert wheel.next_due_ms() is None


def test_what_is_late_when_it_comes_is_due_at_once() -> None:
    wheel = Wheel()
    assert wheel.take(10_000, 10) == []
    wheel.add([(3_000, 1)])
    assert wheel.next_due_ms() == 3_000
    assert wheel.take(10_000, 10) == [(3_000, 1)]


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**6)), unique=True),
    st.lists(st.integers(0, 20_000)),
    st.integers(1, 5),
)
def test_everything_comes_out_once(entries: list[tuple[int, int]], times: list[int], limit: int) -> None:
    wheel = Wheel()
    wheel.add(entries)
    taken: list[tuple[int, int]] = []
    for now_ms in sorted(times):
        batch = wheel.take(now_ms, limit)
        assert all(due_ms <= now_ms for due_ms, _ in batch)
        taken += batch
    while batch := wheel.take(30_000, limit):
        taken += batch
    assert sorted(taken) == sorted(entries)
    assert taken == sorted(taken)
    assert len(wheel) == 0
