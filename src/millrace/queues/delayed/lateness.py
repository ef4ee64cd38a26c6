"""How late messages were delivered, and how many: plain numbers for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

BOUNDS_MS: Final = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000)
"""The upper bounds of the histogram's buckets; one more is for all that is later."""


class DelayedFigures:
    """What became of delayed messages on this broker since it started."""

    __slots__ = ("cancelled", "delivered", "dropped", "late_counts", "late_ms_sum", "moved")

    def __init__(self) -> None:
        self.delivered = 0
        self.cancelled = 0
        self.dropped = 0
        """Their topic was deleted, or takes no such record any more."""
        self.moved = 0
        self.late_counts = [0] * (len(BOUNDS_MS) + 1)
        self.late_ms_sum = 0

    def delivered_at(self, now_ms: int, due_ms: Iterable[int]) -> None:
        """Count messages that were committed at a moment."""
        counts = self.late_counts
        for due in due_ms:
            late_ms = max(now_ms - due, 0)
            counts[bisect_left(BOUNDS_MS, late_ms)] += 1
            self.late_ms_sum += late_ms
            self.delivered += 1
