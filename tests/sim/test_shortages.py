"""EMFILE and ENOSPC at any call to the disk: nothing is lost, doubled or left unanswered, and a lack of
descriptors is outlasted. Without the guards that see to it, a run is condemned."""

from __future__ import annotations

import pytest

from millrace.log.errors import StorageError
from millrace.log.partition.flushing import Flushing
from millrace.log.segments.group_commit import ToSync
from millrace.log.segments.segment import Segment
from millrace.sim.run import run_scenario
from millrace.sim.scenarios import BY_NAME

REFUSED = "F10-refused-calls"
SEEDS = range(1, 9)


@pytest.mark.parametrize("name", [REFUSED, "C-F10-refused-calls"])
def test_nothing_is_violated(name: str) -> None:
    scenario = BY_NAME[name]
    for seed in range(1, 4):
        outcome = run_scenario(seed, scenario.play, scenario.plan, seconds=30.0)
        assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
        assert outcome.acked > 0, "nothing was acknowledged: the run shows nothing"


def is_condemned_for(*reasons: str) -> bool:
    """Whether a run is condemned for one of these. It may be for others, too: a broken broker may come to
    a stop."""
    scenario = BY_NAME[REFUSED]
    for seed in SEEDS:
        outcome = run_scenario(seed, scenario.play, scenario.plan, seconds=60.0)
        if any(reason in str(violation) for violation in outcome.violations for reason in reasons):
            return True
    return False


def test_forgetting_what_a_refused_flush_was_to_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(flushing: Flushing, to_sync: ToSync) -> None:
        return

    monkeypatch.setattr(Flushing, "sync_not_begun", forget)
    assert is_condemned_for("lost write:", "lost:", "inconsistent offsets:")


def test_failing_an_append_because_of_its_index_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is in the file: its producer sends it again, and it is there twice."""

    def enter(segment: Segment, last_offset: int, position: int) -> None:
        segment.offset_index.append(last_offset, position=position)
        segment.store_indexes()

    monkeypatch.setattr(Segment, "_add_index_entries", enter)
    assert is_condemned_for("duplicate:")


def test_giving_a_disk_up_for_a_lack_of_descriptors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fence(flushing: Flushing, error: StorageError, to_sync: ToSync) -> None:
        flushing._log.home.fence(str(error))

    monkeypatch.setattr(Flushing, "sync_failed", fence)
    assert is_condemned_for("gave a disk up")
