"""Runs are joined so that each offset has the newest of what was said of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.queues.share_partition.model import RecordState, StateBatch
from millrace.queues.state.batches import cut_below, done_count, merge
from tests.unit.queues.state.lab import run

DONE = RecordState.ACKNOWLEDGED
FREE = RecordState.AVAILABLE


def merged(old: list[StateBatch], newer: list[StateBatch], start_offset: int = -1) -> list[StateBatch]:
    merge(old, newer, start_offset)
    return old


def test_a_newer_run_splits_an_older_one() -> None:
    assert merged([run(0, 9)], [run(3, 5, FREE)]) == [run(0, 2), run(3, 5, FREE), run(6, 9)]


def test_equal_neighbours_join() -> None:
    assert merged([run(0, 4), run(10, 14)], [run(5, 9)]) == [run(0, 14)]
    assert merged([run(0, 4)], [run(5, 9, count=2)]) == [run(0, 4), run(5, 9, count=2)]


def test_runs_that_wait_until_different_times_do_not_join() -> None:
    held = run(5, 9, FREE, 1, 5_000)
    assert merged([run(0, 4, FREE)], [held]) == [run(0, 4, FREE), held]


def test_a_newer_run_may_give_a_delivery_back() -> None:
    """Kafka would keep the greater count."""
    assert merged([run(0, 4, FREE, 2)], [run(0, 4, FREE, 1)]) == [run(0, 4, FREE, 1)]


def test_what_is_below_the_start_goes() -> None:
    assert merged([run(0, 9, FREE)], [run(2, 12), run(0, 3)], 5) == [run(5, 12)]
    batches = [run(0, 4), run(6, 9)]
    cut_below(batches, 10)
    assert batches == []


def test_a_run_that_ends_before_it_begins_is_nothing() -> None:
    assert merged([run(0, 4)], [run(9, 8)]) == [run(0, 4)]


def test_records_that_are_done_are_counted() -> None:
    assert done_count([run(0, 4), run(5, 6, FREE), run(7, 7, RecordState.ARCHIVED)]) == 6


RUNS = st.builds(
    lambda first, length, state, count: run(first, first + length, state, count),
    st.integers(0, 40),
    st.integers(0, 15),
    st.sampled_from([DONE, FREE, RecordState.ARCHIVED]),
    st.integers(1, 2),
)


@given(st.lists(st.tuples(st.lists(RUNS, max_size=4), st.integers(-1, 30)), max_size=6))
def test_every_offset_has_what_was_said_last(changes: list[tuple[list[StateBatch], int]]) -> None:
    batches: list[StateBatch] = []
    expected: dict[int, tuple[object, ...]] = {}
    start = -1
    for newer, wanted_start in changes:
        start = max(start, wanted_start)
        merge(batches, newer, start)
        for each in newer:
            expected.update(dict.fromkeys(range(each.first_offset, each.last_offset + 1), each[2:]))
        expected = {offset: said for offset, said in expected.items() if offset >= start}
        found = {
            offset: each[2:] for each in batches for offset in range(each.first_offset, each.last_offset + 1)
        }
        assert found == expected
        for one, next_ in pairwise(batches):
            assert one.last_offset < next_.first_offset
            is_neighbour = one.last_offset + 1 == next_.first_offset
            assert not is_neighbour or one[2:] != next_[2:], "equal neighbours were left apart"
