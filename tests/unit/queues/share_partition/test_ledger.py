from __future__ import annotations

from millrace.queues.share_partition.ledger import Ledger
from millrace.queues.share_partition.model import Delta, RecordState, StateBatch
from millrace.queues.share_partition.runs import ACKNOWLEDGED, FRESH, Mark
from millrace.queues.share_partition.window import Window
from tests.unit.queues.share_partition.lab import stored


def _available(count: int, size: int) -> Mark:
    return Mark(RecordState.AVAILABLE, count, size=size)


def test_neighbours_that_are_stored_alike_are_one_batch() -> None:
    window = Window(stored(), 5)
    window.append(9, FRESH)
    window.turn(0, 4, FRESH, _available(1, 5))
    window.turn(5, 8, FRESH, _available(1, 4))
    token, delta = Ledger(window).write(standing=[(0, 4), (5, 8)])
    assert (token, delta) == (1, Delta(0, 0, (StateBatch(0, 8, RecordState.AVAILABLE, 1),)))


def test_the_start_is_stored_once_and_again_after_a_failure() -> None:
    ledger = Ledger(Window(stored(start=7), 5))
    assert ledger.write()[1].start_offset == 7
    ledger.written(1, is_stored=True)
    assert ledger.write()[1].start_offset == -1
    ledger.written(2, is_stored=False)
    assert ledger.write()[1].start_offset == 7


def test_a_write_never_moves_the_start_back_behind_one_that_is_under_way() -> None:
    window = Window(stored(), 5)
    window.append(9, FRESH)
    ledger = Ledger(window)
    ledger.write()
    ledger.written(1, is_stored=True)
    window.append(19, FRESH)
    window.turn(0, 4, FRESH, Mark(RecordState.ACKNOWLEDGED, 0, token=2, prior=FRESH))
    assert ledger.write(returning=[(0, 4)])[1].start_offset == 5
    window.turn(7, 9, FRESH, Mark(RecordState.ACKNOWLEDGED, 0, token=3, prior=FRESH))
    done = (StateBatch(7, 9, RecordState.ACKNOWLEDGED, 0),)
    assert ledger.write(returning=[(7, 9)])[1][::2] == (-1, done)
    # Also when a failure makes the next delta tell the start.
    ledger.written(3, is_stored=False)
    assert ledger.write()[1].start_offset == -1


def test_what_stands_and_could_not_be_stored_is_kept_in_bounds() -> None:
    window = Window(stored(), 5)
    window.append(5_000, _available(1, 5))
    ledger = Ledger(window)
    ledger.write(standing=[(offset, offset) for offset in range(0, 4_000, 2)])
    ledger.written(1, is_stored=False)
    assert ledger.unstored == [(0, 3_998)]
    window.turn(10, 20, _available(1, 5), ACKNOWLEDGED)
    _, delta = ledger.write(standing=[(3_999, 4_000)])
    assert delta.batches == (
        StateBatch(0, 9, RecordState.AVAILABLE, 1),
        StateBatch(10, 20, RecordState.ACKNOWLEDGED, 0),
        StateBatch(21, 4_000, RecordState.AVAILABLE, 1),
    )
    assert not ledger.unstored
