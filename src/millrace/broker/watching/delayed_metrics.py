"""Figures of delayed messages: how many wait, what became of the others, and how late they were."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from millrace.queues.delayed.lateness import BOUNDS_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from millrace.broker.watching.metrics import PlainFigures
    from millrace.queues.delayed.lateness import DelayedFigures


LATENESS: Final = "millrace_delayed_lateness_seconds"


def delayed_gauges(pending_count: int, next_due_ms: int | None) -> PlainFigures:
    return {
        "millrace_delayed_next_due_timestamp_seconds": (
            "When the next delayed message may be due here, to the minute, since 1970; 0 if none waits.",
            (next_due_ms or 0) / 1000,
        ),
        "millrace_delayed_pending": (
            "Delayed messages that wait in partitions of the store that this broker leads.",
            pending_count,
        ),
    }


def delayed_counters(figures: DelayedFigures) -> PlainFigures:
    return {
        "millrace_delayed_delivered": ("Delayed messages that were delivered.", figures.delivered),
        "millrace_delayed_cancelled": (
            "Delayed messages that were cancelled or replaced before they were due.",
            figures.cancelled,
        ),
        "millrace_delayed_dropped": (
            "Delayed messages that were not delivered, because their topic is gone or refuses them.",
            figures.dropped,
        ),
        "millrace_delayed_moved": (
            "Delayed messages that were stored again at the end of their log, to free the space before.",
            figures.moved,
        ),
    }


def lateness_family(late_counts: list[int], late_ms_sum: int) -> Iterator[Metric]:
    """How late messages were delivered, as a histogram."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(LATENESS, "From a delayed message's time to its delivery.")
    bounds = [*(str(bound_ms / 1000) for bound_ms in BOUNDS_MS), "+Inf"]
    buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(late_counts), strict=True)]
    family.add_metric((), buckets=buckets, sum_value=late_ms_sum / 1000)
    yield family
