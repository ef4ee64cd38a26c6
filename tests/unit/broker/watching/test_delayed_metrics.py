"""What is told of delayed messages on /metrics."""

from __future__ import annotations

from millrace.broker.watching.delayed_metrics import delayed_counters, delayed_gauges
from millrace.queues.delayed.lateness import BOUNDS_MS, DelayedFigures


def test_each_bound_counts_all_that_were_no_later() -> None:
    figures = DelayedFigures()
    figures.delivered_at(100_000, [100_000, 99_900, 99_000, 0])
    figures.cancelled, figures.dropped, figures.moved = 2, 3, 4
    told = {name: value for name, (_, value) in delayed_counters(figures).items()}
    assert told["millrace_delayed_delivered"] == 4
    assert told["millrace_delayed_cancelled"] == 2
    assert told["millrace_delayed_dropped"] == 3
    assert told["millrace_delayed_moved"] == 4
    counts = [told[f"millrace_delayed_late_up_to_{bound}_ms"] for bound in BOUNDS_MS]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[4], counts[-1]) == (1, 2, 3, 4)


def test_what_waits_is_a_gauge() -> None:
    ((name, (_, value)),) = delayed_gauges(7).items()
    assert (name, value) == ("millrace_delayed_pending", 7)
