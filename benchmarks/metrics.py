"""Every figure the benchmark reports: its name, unit, direction and the target set for it, if any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.brokers import System
from benchmarks.summary import Better, Comparison, Target, Verdict, median_or_none

PRODUCE: Final = Target(1.3)
CONSUME: Final = Target(1.0)
REQUESTS: Final = Target(1.0)
NOT_SLOWER: Final = Target(1.0)
CLUSTER_MEDIAN: Final = Target(0.7)
HALF: Final = Target(0.5)
TAIL: Final = Target(0.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure: what it is called, and what is wanted of it."""

    key: str
    title: str
    unit: str
    better: Better = Better.HIGHER
    target: Target | None = None
    is_compared: bool = True
    """False for what belongs to the generator: it explains a figure and is not one itself."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that one round measured."""

    metric: str
    system: System
    round: int
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    metric: Metric
    comparison: Comparison

    @property
    def verdict(self) -> Verdict:
        return self.comparison.verdict(self.metric.target, self.metric.better)

    @property
    def target_text(self) -> str:
        target = self.metric.target
        return target.describe(self.metric.better, self.metric.unit) if target else ""


def summarize(metrics: list[Metric], samples: list[Sample]) -> list[Row]:
    """Medians per metric, in the order of `metrics`, leaving out what was not measured."""
    rows = []
    for metric in metrics:
        comparison = Comparison(
            median_or_none(_values(samples, metric.key, System.MILLRACE)),
            median_or_none(_values(samples, metric.key, System.KAFKA)),
        )
        if comparison != Comparison(None, None):
            rows.append(Row(metric, comparison))
    return rows


def _values(samples: list[Sample], metric: str, system: System) -> list[float]:
    return [sample.value for sample in samples if sample.metric == metric and sample.system is system]
