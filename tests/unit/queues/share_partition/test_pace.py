from __future__ import annotations

import pytest

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acquiring import NEVER_CUT
from millrace.queues.share_partition.model import AcquireMode
from millrace.queues.share_partition.pace import PATIENCE_MS, Pace, part_of
from tests.unit.queues.share_partition.lab import ACCEPT, RELEASE, Lab

EXACT = AcquireMode.RECORD_LIMIT


@pytest.mark.parametrize(
    "waiting, holders, part",
    [(0, (), 2_000), (0, ("a",), 2_000), (0, ("b",), 1_000), (60, ("a", "b", "c", "d"), 31), (5_000, (), 1)],
)
def test_all_who_wait_or_hold_have_the_same_part(waiting: int, holders: tuple[str, ...], part: int) -> None:
    assert part_of(2_000, waiting=waiting, holders=holders, member_id="a") == part


def test_the_pace_follows_the_acknowledgements() -> None:
    pace = Pace()
    assert pace.cut_at(31, 2_000) == 31
    pace.took(50, 10)
    assert pace.record_ms == 5.0
    for _ in range(100):
        pace.took(100, 10)
    assert pace.record_ms == pytest.approx(10.0, rel=0.01)
    assert pace.cut_at(31, 2_000) == 31
    assert pace.cut_at(1, 2_000) == int(PATIENCE_MS / pace.record_ms)
    assert pace.cut_at(2_000, 2_000) == NEVER_CUT


@pytest.mark.parametrize("elapsed_ms", [-1_000, 0, 10])
def test_nothing_is_cut_for_those_who_are_done_at_once(elapsed_ms: int) -> None:
    pace = Pace()
    pace.took(elapsed_ms, 500)
    assert pace.cut_at(31, 2_000) == NEVER_CUT


def test_a_batch_is_cut_only_if_others_wait_or_hold_some() -> None:
    lab = Lab(ShareSettings(record_locks_max=100), batches=[1_000, 10, 10, 10, 1_000])
    assert lab.take(10, waiting=4) == [(0, 19, 1)]
    assert lab.take(10, member="b", waiting=8) == [(20, 29, 1)]
    assert lab.take(10, member="a") == [(30, 79, 1)]
    assert lab.say(0, 79, ACCEPT) is not None
    lab.say(0, 19, ACCEPT)
    lab.say(30, 79, ACCEPT)
    lab.say(20, 29, ACCEPT, member="b")
    # Alone again: the whole rest of the batch, and as exactly as ever.
    assert lab.take(10, mode=EXACT) == [(80, 89, 1)]
    assert lab.take(10) == [(90, 999, 1)]


def test_batches_that_fit_go_whole_before_one_is_cut() -> None:
    lab = Lab(ShareSettings(record_locks_max=100), batches=[10, 10, 10, 10])
    assert lab.take(100, waiting=3) == [(0, 19, 1)]
    lab.now_ms += 1_000
    lab.say(0, 19, RELEASE)
    # The same for records that were delivered before.
    assert lab.take(100, waiting=3) == [(0, 19, 2)]
    assert lab.take(100, member="b", mode=EXACT, waiting=2) == [(20, 39, 1)]


def test_exactly_so_many_records_are_no_more_than_the_part() -> None:
    lab = Lab(ShareSettings(record_locks_max=100), batches=[1_000])
    assert lab.take(50, mode=EXACT, waiting=9) == [(0, 9, 1)]
    lab.now_ms += 1_000
    lab.say(0, 9, RELEASE)
    assert lab.take(50, mode=EXACT, waiting=9) == [(0, 9, 2)]


def test_a_batch_that_was_too_much_keeps_nobody_from_the_part() -> None:
    lab = Lab(ShareSettings(record_locks_max=100), batches=[1_000, 1_000])
    assert lab.take(10) == [(0, 999, 1)]
    assert lab.take(10) == []
    assert lab.take(10, member="b") == [(1_000, 1_049, 1)]
    assert lab.take(10, member="b") == []
    assert lab.take(10, member="c", waiting=7) == [(1_050, 1_059, 1)]
