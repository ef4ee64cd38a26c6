"""Statistics of the samples: percentiles, medians, ratios and verdicts. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median


class Better(StrEnum):
    """Which direction of a metric is the good one."""

    HIGHER = "higher"
    LOWER = "lower"


class Verdict(StrEnum):
    """Whether a target was met."""

    PASS = "pass"
    FAIL = "FAIL"
    UNKNOWN = "not measured"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on Millrace's value, or on the ratio of Millrace's value to Kafka's."""

    limit: float
    of_ratio: bool = True

    def describe(self, better: Better, unit: str) -> str:
        sign = "≥" if better is Better.HIGHER else "≤"
        return f"{sign} {self.limit:g}x" if self.of_ratio else f"{sign} {self.limit:g} {unit}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The medians of one metric for both systems; a missing system has None."""

    millrace: float | None
    kafka: float | None

    @property
    def ratio(self) -> float | None:
        """Millrace over Kafka."""
        if self.millrace is None or not self.kafka:
            return None
        return self.millrace / self.kafka

    def verdict(self, target: Target | None, better: Better) -> Verdict:
        if target is None:
            return Verdict.NONE
        value = self.ratio if target.of_ratio else self.millrace
        if value is None:
            return Verdict.UNKNOWN
        is_met = value >= target.limit if better is Better.HIGHER else value <= target.limit
        return Verdict.PASS if is_met else Verdict.FAIL


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be above 0 and at most 100: {percent}")
    # Decimal fractions such as 99.9 are not exact: without rounding, 1,000 values would give rank 1,000.
    rank = math.ceil(round(len(values) * percent / 100, 9))
    return sorted(values)[rank - 1]


def median_or_none(values: Sequence[float]) -> float | None:
    return median(values) if values else None
