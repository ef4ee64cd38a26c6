from __future__ import annotations

from millrace.queues.share_partition.model import RecordState, StateBatch
from millrace.queues.share_partition.runs import ACKNOWLEDGED, FRESH, Mark
from millrace.queues.share_partition.window import Window
from tests.unit.queues.share_partition.lab import stored

HELD = Mark(RecordState.ACQUIRED, 1, 500, "a", 10)


def _window() -> Window:
    window = Window(stored(), 5)
    window.append(9, FRESH)
    return window


def test_sums_follow_what_records_become() -> None:
    window = _window()
    window.turn(0, 9, FRESH, HELD)
    assert (window.acquired, window.held, window.deadline_ms) == (10, {"a": 10}, 500)
    window.turn(2, 5, HELD, ACKNOWLEDGED)
    assert (window.acquired, window.held, window.complete) == (6, {"a": 6}, 4)
    window.turn(0, 1, HELD, ACKNOWLEDGED)
    window.trim()
    assert (window.start, window.complete) == (6, 0)
    window.cut_below(8)
    assert (window.start, window.held) == (8, {"a": 2})
    window.cut_below(20)
    assert (window.start, window.held, window.acquired) == (20, {}, 0)


def test_a_write_moves_the_start_over_its_own_records_only() -> None:
    window = _window()
    window.turn(0, 9, FRESH, HELD)
    window.turn(0, 4, HELD, ACKNOWLEDGED._replace(token=1, prior=HELD))
    window.turn(5, 9, HELD, ACKNOWLEDGED._replace(token=2, prior=HELD))
    assert (window.start_once_stored(1), window.start_once_stored(2)) == (5, 0)
    assert window.stored_batches(0, 9, 2) == [
        StateBatch(0, 4, RecordState.AVAILABLE, 0),
        StateBatch(5, 9, RecordState.ACKNOWLEDGED, 0),
    ]


def test_what_is_stored_is_read_in_any_order_and_once() -> None:
    window = Window(
        stored(
            StateBatch(8, 9, RecordState.AVAILABLE, 1, 700),
            StateBatch(3, 5, RecordState.ACKNOWLEDGED, 1),
            StateBatch(0, 1, RecordState.ACKNOWLEDGED, 1),
            start=2,
        ),
        5,
    )
    assert list(window.runs.pieces(0, 9)) == [
        (2, 2, FRESH),
        (3, 5, ACKNOWLEDGED),
        (6, 7, FRESH),
        (8, 9, Mark(RecordState.AVAILABLE, 1, 700, "", 2)),
    ]
    assert window.deadline_ms == 700
