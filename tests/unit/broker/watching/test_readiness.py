"""How far a broker has come."""

from __future__ import annotations

from millrace.broker.watching.readiness import Readiness
from millrace.log.directories.survey import LoadProgress


def test_a_broker_is_ready_only_in_one_of_its_phases() -> None:
    readiness = Readiness()
    assert (readiness.phase, readiness.is_ready) == ("starting", False)
    readiness.recovering(
        LoadProgress(logs_total=7, logs_done=3, bytes_total=100, bytes_done=40, is_clean=False)
    )
    assert (readiness.phase, readiness.logs_loaded, readiness.logs_total) == ("recovering", 3, 7)
    assert not readiness.is_ready
    readiness.phase = "ready"
    assert readiness.is_ready
