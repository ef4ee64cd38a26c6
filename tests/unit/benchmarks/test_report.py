"""What a run leaves behind must say what was measured, where, and whether it is enough."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.brokers import System
from benchmarks.metrics import Metric, Sample, summarize
from benchmarks.processes import GeneratorFailed
from benchmarks.report import Report, make_report, number_text, write_json, write_markdown
from benchmarks.runner import Outcome
from benchmarks.summary import Better, Comparison, Target, Verdict
from benchmarks.workloads.produce import steady_rate

RATE = Metric(key="produce.rate", title="produce", unit="MB/s", target=Target(1.3))
CPU = Metric(key="produce.cpu", title="produce: CPU", unit="s/GB", better=Better.LOWER, target=Target(0.5))
MEMORY = Metric(key="memory", title="memory", unit="MB", better=Better.LOWER)


def test_rows_hold_medians_in_the_order_of_the_metrics_and_skip_what_was_not_measured() -> None:
    samples = [
        *(
            Sample("produce.cpu", System.MILLRACE, number, value)
            for number, value in enumerate((1.0, 9.0, 2.0))
        ),
        Sample("produce.rate", System.MILLRACE, 1, 20.0),
        Sample("produce.rate", System.KAFKA, 1, 10.0),
    ]

    rows = summarize([RATE, CPU, MEMORY], samples)

    assert [row.metric.key for row in rows] == ["produce.rate", "produce.cpu"]
    assert [row.comparison for row in rows] == [Comparison(20.0, 10.0), Comparison(2.0, None)]
    assert [row.verdict for row in rows] == [Verdict.PASS, Verdict.UNKNOWN]


def test_the_files_carry_commit_machine_samples_and_verdicts(tmp_path: Path) -> None:
    report = _report()
    write_json(report, tmp_path / "run.json")
    write_markdown(report, tmp_path / "run.md", tmp_path / "run.png")

    stored = json.loads((tmp_path / "run.json").read_text())
    assert (stored["commit"], stored["machine"]) == ("abc", {"cpu": "fast"})
    assert stored["metrics"][0]["samples"] == {"kafka": [10.0], "millrace": [12.0]}
    assert stored["metrics"][0]["verdict"] == "FAIL"
    text = (tmp_path / "run.md").read_text()
    assert "| produce | MB/s | 10 | 12 | 1.20x | ≥ 1.3x | FAIL |" in text
    assert "0 of 1 targets met" in text
    assert "run.png" in text


@pytest.mark.parametrize(
    "profile, is_partial, name",
    [
        ("standard", False, "2026-01-02-abc"),
        ("quick", False, "2026-01-02-abc-quick"),
        ("standard", True, "2026-01-02-abc-partial"),
    ],
)
def test_only_a_complete_run_goes_by_the_plain_name(profile: str, is_partial: bool, name: str) -> None:
    assert _report(profile, is_partial=is_partial).file_stem == name


def test_the_cpu_of_the_idle_broker_is_stated() -> None:
    assert any("1.5 % of a core" in note for note in _report().notes)


@pytest.mark.parametrize(
    "value, text", [(None, "–"), (0.0, "0"), (0.1234, "0.123"), (12.34, "12.3"), (123_456.7, "123,457")]
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_the_steady_rate_is_read_from_producer_performance() -> None:
    output = (
        "200000 records sent, 21394.95 records/sec (20.40 MB/sec), 1282.87 ms avg latency.\n"
        "150000 steady state records sent, 21171.489061 records/sec (20.19 MB/sec), 1260.59 ms avg latency.\n"
    )
    assert steady_rate(output) == pytest.approx(21171.489061)


def test_output_without_a_result_is_a_failure_and_not_a_zero() -> None:
    with pytest.raises(GeneratorFailed):
        steady_rate("org.apache.kafka.common.errors.TimeoutException")


def _report(profile: str = "standard", *, is_partial: bool = False) -> Report:
    outcome = Outcome(metrics=[RATE], bystander_cpu_percent=[1.0, 1.5, 3.0])
    outcome.record({"produce.rate": 10.0}, System.KAFKA, 1)
    outcome.record({"produce.rate": 12.0}, System.MILLRACE, 1)
    return make_report(
        outcome,
        date=datetime(2026, 1, 2, tzinfo=UTC),
        commit="abc",
        profile=profile,
        is_partial=is_partial,
        rounds=1,
        duration_s=60,
        machine={"cpu": "fast"},
        load_before=0.0,
        notes=[],
    )
