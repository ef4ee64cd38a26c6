"""Deliveries are counted by how late they were."""

from __future__ import annotations

from millrace.queues.delayed.lateness import BOUNDS_MS, DelayedFigures


def test_each_delivery_is_in_one_bucket() -> None:
    figures = DelayedFigures()
    figures.delivered_at(10_000, [10_000, 9_950, 9_949, 11_000])
    figures.delivered_at(10_000_000, [0])
    assert figures.delivered == 5
    assert figures.late_counts[0] == 3
    assert figures.late_counts[1] == 1
    assert figures.late_counts[len(BOUNDS_MS)] == 1
    assert figures.late_ms_sum == 101 + 10_000_000
