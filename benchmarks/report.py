"""What a run leaves behind: a table on the terminal, and JSON and Markdown files with commit and machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.brokers import System
from benchmarks.metrics import Row, Sample, summarize
from benchmarks.profiles import STANDARD
from benchmarks.runner import Outcome
from benchmarks.summary import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run: what was measured, on what, and what came out."""

    date: datetime
    commit: str
    profile: str
    is_partial: bool
    rounds: int
    duration_s: float
    machine: dict[str, str]
    load_before: float
    notes: list[str]
    rows: list[Row]
    samples: list[Sample]
    failures: list[str]

    @property
    def file_stem(self) -> str:
        """Only a complete standard run goes by the plain name, so that no lesser one replaces it."""
        kind = "" if self.profile == STANDARD.name else f"-{self.profile}"
        return f"{self.date:%Y-%m-%d}-{self.commit}{kind}{'-partial' if self.is_partial else ''}"

    @property
    def targets_met(self) -> str:
        judged = [row for row in self.rows if row.verdict is not Verdict.NONE]
        met = sum(row.verdict is Verdict.PASS for row in judged)
        return f"{met} of {len(judged)} targets met"


def make_report(
    outcome: Outcome,
    *,
    date: datetime,
    commit: str,
    profile: str,
    is_partial: bool,
    rounds: int,
    duration_s: float,
    machine: dict[str, str],
    load_before: float,
    notes: list[str],
) -> Report:
    bystander = outcome.bystander_cpu_percent
    if bystander:
        idle = f"{median(bystander):.1f} % of a core (median of the rounds; {max(bystander):.1f} % at most)"
        notes = [*notes, f"The broker that was up but not measured used {idle}."]
    return Report(
        date=date,
        commit=commit,
        profile=profile,
        is_partial=is_partial,
        rounds=rounds,
        duration_s=duration_s,
        machine=machine,
        load_before=load_before,
        notes=notes,
        rows=summarize(outcome.metrics, outcome.samples),
        samples=outcome.samples,
        failures=outcome.failures,
    )


def print_table(report: Report, console: Console) -> None:
    table = Table(title=f"Millrace {report.commit} and Apache Kafka, medians", title_justify="left")
    table.add_column("work")
    for name in ("unit", "Kafka", "Millrace", "ratio", "target", "verdict"):
        table.add_column(name, justify="left" if name in {"unit", "verdict"} else "right")
    for row in report.rows:
        verdict = row.verdict
        table.add_row(*_cells(row), verdict.value, style=None if verdict is not Verdict.FAIL else "red")
    console.print(table)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)
    for failure in report.failures:
        console.print(f"not measured: {failure}", style="red", markup=False, highlight=False)
    console.print(report.targets_met, markup=False, highlight=False)


def write_json(report: Report, path: Path) -> None:
    path.write_text(json.dumps(_as_json(report), indent=1, ensure_ascii=False) + "\n")


def write_markdown(report: Report, path: Path, plot: Path | None) -> None:
    extent = f"Profile {report.profile}, {report.rounds} rounds, {report.duration_s / 60:.0f} minutes"
    lines = [
        f"# Benchmark of {report.date:%Y-%m-%d %H:%M} UTC, commit {report.commit}",
        "",
        f"{extent}; load average before the run {report.load_before:.2f}. {report.targets_met}.",
        "",
        *(f"- {name}: {value}" for name, value in report.machine.items()),
        "",
        "| work | unit | Kafka | Millrace | ratio | target | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
        *(f"| {' | '.join(_cells(row))} | {row.verdict.value} |" for row in report.rows),
        "",
        *(f"- {note}" for note in report.notes),
        *(f"- Not measured: {' '.join(failure.split())}" for failure in report.failures),
    ]
    if plot is not None:
        lines += ["", f"![Millrace and Kafka compared]({plot.name})"]
    path.write_text("\n".join(lines).rstrip() + "\n")


def number_text(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def _cells(row: Row) -> tuple[str, ...]:
    comparison = row.comparison
    ratio = "–" if comparison.ratio is None else f"{comparison.ratio:.2f}x"
    if not row.metric.is_compared:
        ratio = ""
    return (
        row.metric.title,
        row.metric.unit,
        number_text(comparison.kafka),
        number_text(comparison.millrace),
        ratio,
        row.target_text,
    )


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "date": report.date.isoformat(timespec="seconds"),
        "commit": report.commit,
        "profile": report.profile,
        "rounds": report.rounds,
        "duration_s": round(report.duration_s),
        "machine": report.machine,
        "load_before": round(report.load_before, 2),
        "notes": report.notes,
        "failures": report.failures,
        "metrics": [_metric_as_json(row, report.samples) for row in report.rows],
    }


def _metric_as_json(row: Row, samples: list[Sample]) -> dict[str, Any]:
    metric, comparison = row.metric, row.comparison
    return {
        "key": metric.key,
        "title": metric.title,
        "unit": metric.unit,
        "better": metric.better.value,
        "kafka": comparison.kafka,
        "millrace": comparison.millrace,
        "ratio": comparison.ratio,
        "target": row.target_text or None,
        "verdict": row.verdict.value or None,
        "samples": {
            system.value: [
                sample.value for sample in samples if sample.metric == metric.key and sample.system is system
            ]
            for system in (System.KAFKA, System.MILLRACE)
        },
    }
