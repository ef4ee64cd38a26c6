"""The scrub as Prometheus reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.watching.scrub_metrics import scrub_counters, scrub_gauges
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.scrubber import Scrubber, ScrubMetrics


def directories(*, quarantined: list[int], damaged: list[int]) -> LogDirectories:
    """So many finds in each directory, and so many damaged ranges in each segment of one log."""
    segments = [SimpleNamespace(damage=(None,) * count) for count in damaged]
    found: Any = SimpleNamespace(
        all=[SimpleNamespace(quarantined_count=count) for count in quarantined],
        all_logs=lambda: [SimpleNamespace(segments=segments)],
    )
    return cast("LogDirectories", found)


def test_what_the_scrub_has_done() -> None:
    figures = ScrubMetrics(bytes_read=1, logs_count=2, failures_count=3, damaged_count=4, rebuilt_count=5)
    counters = scrub_counters(figures, directories(quarantined=[2, 4], damaged=[]))
    assert {name.removeprefix("millrace_"): value for name, (_, value) in counters.items()} == {
        "scrub_bytes_read": 1,
        "scrub_logs": 2,
        "scrub_failures": 3,
        "scrub_damaged_ranges": 4,
        "scrub_indexes_rebuilt": 5,
        "quarantines": 6,
    }


def test_how_far_it_is_and_what_is_not_served() -> None:
    scrubber = cast("Scrubber", SimpleNamespace(metrics=ScrubMetrics(progress=0.25)))
    gauges = scrub_gauges(scrubber, directories(quarantined=[], damaged=[1, 0, 2]))
    assert {name: value for name, (_, value) in gauges.items()} == {
        "millrace_scrub_progress": 0.25,
        "millrace_quarantined_ranges": 3,
    }
