"""What is told of delayed messages on /metrics."""

from __future__ import annotations

from millrace.broker.watching.delayed_metrics import delayed_counters, delayed_gauges, lateness_family
from millrace.queues.delayed.lateness import DelayedFigures


def test_what_became_of_messages_is_counted() -> None:
    figures = DelayedFigures()
    figures.delivered_at(100_000, [100_000])
    figures.cancelled, figures.dropped, figures.moved = 2, 3, 4
    told = {name: value for name, (_, value) in delayed_counters(figures).items()}
    assert told == {
        "millrace_delayed_delivered": 1,
        "millrace_delayed_cancelled": 2,
        "millrace_delayed_dropped": 3,
        "millrace_delayed_moved": 4,
    }


def test_lateness_is_a_histogram_in_seconds() -> None:
    figures = DelayedFigures()
    figures.delivered_at(1_000_000, [1_000_000, 999_900, 999_000, 0])
    (family,) = lateness_family(figures.late_counts, figures.late_ms_sum)
    samples = {(each.name, each.labels.get("le")): each.value for each in family.samples}
    name = "millrace_delayed_lateness_seconds"
    assert samples[f"{name}_bucket", "0.05"] == 1
    assert samples[f"{name}_bucket", "0.1"] == 2
    assert samples[f"{name}_bucket", "1.0"] == 3
    assert samples[f"{name}_bucket", "600.0"] == 3
    assert samples[f"{name}_bucket", "+Inf"] == samples[f"{name}_count", None] == 4
    assert samples[f"{name}_sum", None] == 1_001.1


def test_what_waits_and_when_the_next_is_due_are_gauges() -> None:
    told = {name: value for name, (_, value) in delayed_gauges(7, 1_500).items()}
    assert told == {"millrace_delayed_pending": 7, "millrace_delayed_next_due_timestamp_seconds": 1.5}
    assert delayed_gauges(0, None)["millrace_delayed_next_due_timestamp_seconds"][1] == 0
