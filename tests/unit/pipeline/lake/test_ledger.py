"""What an archive says about itself, and which ranges come next."""

from __future__ import annotations

import itertools

import pytest

from millrace.pipeline.lake.errors import ForeignTable
from millrace.pipeline.lake.ledger import Ledger, ledger_of
from millrace.pipeline.lake.ranges import next_ranges
from millrace.pipeline.lake.replay import PartitionPlan, portions

LEDGER = Ledger(topic="orders", topic_id="id", first={0: 5, 1: 0}, next={0: 10, 1: 0})


def test_a_ledger_survives_the_way_through_a_commit() -> None:
    assert ledger_of(LEDGER.to_json()) == LEDGER


def test_ranges_move_the_ledger_and_count_one_commit() -> None:
    after = LEDGER.after({0: (10, 25), 2: (3, 7)})
    assert after.next == {0: 25, 1: 0, 2: 7}
    assert after.first == {0: 5, 1: 0, 2: 3}
    assert (after.sequence, after.partitions) == (1, 3)


def test_a_range_below_the_ledger_would_be_a_duplicate() -> None:
    with pytest.raises(AssertionError):
        LEDGER.after({0: (9, 11)})


@pytest.mark.parametrize("metadata", [None, "", "somebody's note", '{"kind": "other"}', '"millrace-archive"'])
def test_commits_of_others_hold_no_ledger(metadata: str | None) -> None:
    assert ledger_of(metadata) is None


def test_a_newer_ledger_is_refused_rather_than_guessed() -> None:
    with pytest.raises(ForeignTable, match="version 2"):
        ledger_of('{"kind": "millrace-archive", "version": 2}')


def test_a_batch_is_shared_in_proportion_and_nobody_starves() -> None:
    ranges = next_ranges({0: 0, 1: 100}, {0: 1_000_000, 1: 101, 2: 0}, 1000)
    assert ranges == {0: (0, 999), 1: (100, 101)}


def test_all_is_taken_when_it_fits() -> None:
    assert next_ranges({}, {0: 3, 1: 4}, 7) == {0: (0, 3), 1: (0, 4)}


def test_portions_cover_every_offset_once() -> None:
    left = {0: PartitionPlan(10, 109, 100), 3: PartitionPlan(0, 6, 3)}
    cut = list(portions(left, 25))
    assert len(cut) == 5
    for partition, plan in left.items():
        spans = [ranges[partition] for ranges in cut if partition in ranges]
        assert spans[0][0] == plan.first
        assert spans[-1][1] == plan.last + 1
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_nothing_left_is_no_portion() -> None:
    assert list(portions({}, 10)) == []
