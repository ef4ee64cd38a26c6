from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.queues.share_partition.model import RecordState
from millrace.queues.share_partition.runs import ACKNOWLEDGED, ARCHIVED, FRESH, Mark, Runs

MARKS = (FRESH, ACKNOWLEDGED, ARCHIVED, Mark(RecordState.ACQUIRED, 1, 5, "a"))


def _runs(runs: Runs) -> list[tuple[int, int, Mark]]:
    return list(runs.pieces(0, runs.end))


def test_equal_neighbours_become_one_run() -> None:
    runs = Runs(10)
    runs.append(19, FRESH)
    runs.append(29, FRESH)
    assert _runs(runs) == [(10, 29, FRESH)]
    runs.paint(15, 19, ACKNOWLEDGED)
    runs.paint(20, 24, ACKNOWLEDGED)
    assert _runs(runs) == [(10, 14, FRESH), (15, 24, ACKNOWLEDGED), (25, 29, FRESH)]
    runs.paint(15, 24, FRESH)
    assert _runs(runs) == [(10, 29, FRESH)]


def test_the_ends_are_cut_off() -> None:
    runs = Runs(0)
    runs.append(9, ACKNOWLEDGED)
    runs.append(19, FRESH)
    runs.cut_below(5)
    assert _runs(runs) == [(5, 9, ACKNOWLEDGED), (10, 19, FRESH)]
    runs.cut_end(ACKNOWLEDGED)
    assert runs.end == 20
    runs.cut_end(FRESH)
    assert runs.end == 10
    runs.cut_below(50)
    assert (len(runs), runs.end) == (0, 50)


def test_pieces_lie_in_the_window_only() -> None:
    runs = Runs(10)
    assert list(runs.pieces(0, 100)) == []
    runs.append(19, FRESH)
    assert list(runs.pieces(0, 12)) == [(10, 12, FRESH)]
    assert list(runs.pieces(18, 100)) == [(18, 19, FRESH)]
    assert list(runs.pieces(0, 9)) == []


@given(st.lists(st.tuples(st.integers(5, 40), st.integers(5, 40), st.sampled_from(MARKS)), max_size=30))
def test_runs_say_what_was_painted_last(paintings: list[tuple[int, int, Mark]]) -> None:
    runs = Runs(5)
    runs.append(40, FRESH)
    expected = dict.fromkeys(range(5, 41), FRESH)
    for one, other, mark in paintings:
        first, last = min(one, other), max(one, other)
        runs.paint(first, last, mark)
        expected.update(dict.fromkeys(range(first, last + 1), mark))
        found = {
            offset: mark
            for piece_first, piece_last, mark in _runs(runs)
            for offset in range(piece_first, piece_last + 1)
        }
        assert found == expected
        assert all(one != other for one, other in zip(runs.marks, runs.marks[1:], strict=False))


def test_a_range_in_one_run_has_its_mark() -> None:
    runs = Runs(10)
    runs.append(19, FRESH)
    runs.append(29, ACKNOWLEDGED)
    assert runs.mark_of(10, 19) == FRESH
    assert runs.mark_of(25, 29) == ACKNOWLEDGED
    assert [runs.mark_of(*each) for each in ((9, 9), (15, 20), (29, 30))] == [None] * 3
