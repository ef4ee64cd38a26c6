"""Whoever reads the log learns why nothing is delivered, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.queues.stops import stop_to_tell, tell_of_stop
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.changes import Stop


def _rules(stop: Stop | None = None, waiting: int = 0) -> Any:
    return SimpleNamespace(stop=lambda _now_ms: stop, archiving_count=waiting, settings=ShareSettings())


@pytest.mark.parametrize("waiting, told", [(9_999, Stop.DEAD_LETTERS), (5_000, None)])
def test_it_is_not_told_each_time_that_one_dead_letter_is_written(waiting: int, told: Stop | None) -> None:
    assert stop_to_tell(_rules(waiting=waiting), Stop.DEAD_LETTERS, 0) is told


def test_other_ends_are_told_at_once() -> None:
    assert stop_to_tell(_rules(waiting=9_999), Stop.BREAKER, 0) is None
    assert stop_to_tell(_rules(Stop.PAUSED), None, 0) is Stop.PAUSED


@pytest.mark.parametrize(
    "stop, level, text",
    [
        (None, "INFO", "goes on"),
        (Stop.PAUSED, "INFO", "share.delivery.pause"),
        (Stop.BREAKER, "WARNING", "stops for 60000 ms"),
        (Stop.DEAD_LETTERS, "WARNING", "some of 7 dead letters"),
    ],
)
def test_the_log_says_why(caplog: pytest.LogCaptureFixture, stop: Stop | None, level: str, text: str) -> None:
    caplog.set_level("INFO")
    tell_of_stop("g", "jobs-0", _rules(waiting=7), stop)
    (record,) = caplog.records
    assert (record.levelname, text in record.getMessage()) == (level, True)
    assert "group g, jobs-0" in record.getMessage()
