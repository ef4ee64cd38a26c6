"""Figures of delayed messages: how many wait, what became of the others, and how late they were."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from millrace.queues.delayed.lateness import BOUNDS_MS

if TYPE_CHECKING:
    from millrace.broker.watching.metrics import PlainFigures
    from millrace.queues.delayed.lateness import DelayedFigures


def delayed_gauges(pending_count: int) -> PlainFigures:
    return {
        "millrace_delayed_pending": (
            "Delayed messages that wait in partitions of the store that this broker leads.",
            pending_count,
        )
    }


def delayed_counters(figures: DelayedFigures) -> PlainFigures:
    counters: dict[str, tuple[str, float]] = {
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
        "millrace_delayed_late_ms_sum": (
            "By how many milliseconds all delivered messages together were late.",
            figures.late_ms_sum,
        ),
    }
    for bound_ms, count in zip(BOUNDS_MS, accumulate(figures.late_counts), strict=False):
        counters[f"millrace_delayed_late_up_to_{bound_ms}_ms"] = (
            f"Delayed messages that were at most {bound_ms} ms late.",
            count,
        )
    return counters
