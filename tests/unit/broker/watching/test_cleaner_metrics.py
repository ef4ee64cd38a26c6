"""Compaction as Prometheus reads it."""

from __future__ import annotations

from millrace.broker.watching.cleaner_metrics import cleaner_counters
from millrace.log.cleaning.cleaner import CleanerMetrics


def test_every_figure_has_its_own_name() -> None:
    figures = CleanerMetrics(
        passes_count=1,
        aborted_count=2,
        worker_deaths_count=3,
        failures_count=4,
        bytes_read=5,
        bytes_written=6,
        records_removed=7,
    )
    counters = cleaner_counters(figures)
    found = {name.removeprefix("millrace_cleaner_"): value for name, (_, value) in counters.items()}
    assert found == {
        "passes": 1,
        "aborted": 2,
        "worker_deaths": 3,
        "failures": 4,
        "bytes_read": 5,
        "bytes_written": 6,
        "records_removed": 7,
    }
