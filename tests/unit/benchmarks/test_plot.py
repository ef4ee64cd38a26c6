"""In the picture a bar to the right means ahead, whatever the direction of its metric."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.brokers import System
from benchmarks.metrics import Metric, Row
from benchmarks.plot import advantage, target_advantage, write_plot
from benchmarks.report import make_report
from benchmarks.runner import Outcome
from benchmarks.summary import Better, Comparison, Target

FASTER = Metric(key="rate", title="rate", unit="MB/s", target=Target(1.3))
CHEAPER = Metric(key="latency.p50", title="p50", unit="ms", better=Better.LOWER, target=Target(0.5))
REPLICATED = Metric(key="cluster-produce.1000.16384.3.rate", title="replicated", unit="MB/s")
SMALLER = Metric(
    key="memory", title="memory", unit="MB", better=Better.LOWER, target=Target(100, of_ratio=False)
)


def test_half_the_cost_is_twice_as_good() -> None:
    assert advantage(Row(FASTER, Comparison(20.0, 10.0))) == pytest.approx(2)
    assert advantage(Row(CHEAPER, Comparison(10.0, 20.0))) == pytest.approx(2)


def test_targets_are_drawn_where_the_bar_must_reach() -> None:
    assert target_advantage(Row(FASTER, Comparison(1.0, 1.0))) == 1.3
    assert target_advantage(Row(CHEAPER, Comparison(1.0, 1.0))) == 2
    assert target_advantage(Row(SMALLER, Comparison(1.0, 1.0))) is None


@pytest.mark.parametrize("systems", [(System.MILLRACE,), (System.KAFKA, System.MILLRACE), ()])
def test_a_picture_is_drawn_of_whatever_was_measured(tmp_path: Path, systems: tuple[System, ...]) -> None:
    outcome = Outcome(metrics=[FASTER, CHEAPER, SMALLER, REPLICATED])
    for system in systems:
        figures = {"rate": 10.0, "latency.p50": 0.4, "memory": 80.0, REPLICATED.key: 50.0}
        outcome.record(figures, system, 1)
    report = make_report(
        outcome,
        date=datetime(2026, 1, 2, tzinfo=UTC),
        commit="abc",
        profile="quick",
        is_partial=False,
        rounds=1,
        duration_s=60,
        machine={},
        load_before=0.0,
        notes=[],
    )
    write_plot(report, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
