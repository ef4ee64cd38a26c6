"""The picture of a run: how Millrace compares on every target, and how both systems scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.brokers import System
from benchmarks.metrics import Row
from benchmarks.report import Report, number_text
from benchmarks.summary import Better, Verdict

COLOURS: Final = {System.KAFKA: "#8d99ae", System.MILLRACE: "#1d7874"}
MET, MISSED, UNJUDGED = "#2a9d6f", "#c8553d", "#9aa5b1"
LABELS_SIDE_BY_SIDE_MAX: Final = 4
LABELS: Final = {System.KAFKA: "Kafka", System.MILLRACE: "Millrace"}


def write_plot(report: Report, path: Path) -> None:
    rows = {row.metric.key: row for row in report.rows}
    compared = [row for row in report.rows if row.metric.target and row.comparison.ratio]
    figure = plt.figure(figsize=(17, 13.5), layout="constrained")
    grid = figure.add_gridspec(4, 3, width_ratios=(1.5, 1, 1))
    _advantages(figure.add_subplot(grid[:, 0]), compared)
    _bars(figure.add_subplot(grid[0, 1]), rows, _percentiles("latency"), "end-to-end latency, ms")
    _curve(
        figure.add_subplot(grid[0, 2]), rows, "requests.{}.rate", "connections", "single-record requests/s"
    )
    _curve(
        figure.add_subplot(grid[1, 1]), rows, "partitions.{}.rate", "partitions", "requests/s over partitions"
    )
    _curve(figure.add_subplot(grid[1, 2]), rows, "partitions.{}.mb", "partitions", "resident memory, MB")
    _curve(
        figure.add_subplot(grid[2, 1]), rows, "log-size.{}.rate", "size of the log, MB", "append rate, MB/s"
    )
    _curve(
        figure.add_subplot(grid[2, 2]),
        rows,
        "log-size.{}.fetch_p50",
        "size of the log, MB",
        "fetch from the middle, p50, ms",
    )
    _bars(
        figure.add_subplot(grid[3, 1]),
        rows,
        _percentiles("cluster-latency"),
        "three brokers: end-to-end latency, ms",
    )
    _bars(
        figure.add_subplot(grid[3, 2]),
        rows,
        _cluster_rates(rows),
        "three brokers: MB/s (record B/batch KB/partitions)",
    )
    machine = report.machine
    figure.suptitle(
        f"Millrace {report.commit} and Apache Kafka {machine.get('kafka', '')} – {report.date:%Y-%m-%d}, "
        f"{machine.get('cpu', '')}, {machine.get('cores', '')} cores, {report.rounds} rounds, medians",
        fontsize=12,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_changes_plot(
    changes: Sequence[tuple[str, float, tuple[float, ...]]], limit: float, title: str, path: Path
) -> None:
    """The ratio of every line of `changes` as a bar from 1, with its rounds as dots."""
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.27 * len(changes)), layout="constrained")
    positions = list(range(len(changes)))
    colours = [MET if ratio <= limit else MISSED for _, ratio, _ in changes]
    axes.barh(positions, [ratio - 1 for _, ratio, _ in changes], left=1, color=colours, height=0.62)
    for position, (_, _, rounds) in zip(positions, changes, strict=True):
        axes.plot(rounds, [position] * len(rounds), "o", color="#333333", ms=2.5)
    axes.axvline(1.0, color="#333333", lw=1)
    axes.axvline(limit, color="black", lw=1, ls="--", label=f"at most {limit:g}x")
    axes.set_yticks(positions, [name for name, _, _ in changes], fontsize=8)
    axes.set_ylim(len(changes) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_title(title, fontsize=11)
    axes.grid(axis="x", alpha=0.25)
    axes.legend(fontsize=8.5, frameon=False, loc="lower right")
    _clean(axes)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def advantage(row: Row) -> float:
    """How many times better Millrace is: above 1 is ahead, whatever the metric's direction."""
    ratio = row.comparison.ratio
    assert ratio is not None, row.metric.key
    if row.metric.better is Better.HIGHER:
        return ratio
    return 1 / ratio if ratio else float("inf")


def target_advantage(row: Row) -> float | None:
    target = row.metric.target
    if target is None or not target.of_ratio:
        return None
    return target.limit if row.metric.better is Better.HIGHER else 1 / target.limit


def _advantages(axes: Axes, rows: list[Row]) -> None:
    axes.set_title("times better than Kafka (right of 1 is ahead)", fontsize=11)
    if not rows:
        _say_empty(axes)
        return
    values = [advantage(row) for row in rows]
    colours = [_verdict_colour(row.verdict) for row in rows]
    positions = list(range(len(rows)))
    # Bars grow from 1, the line of equality, to either side.
    axes.barh(positions, [value - 1 for value in values], left=1, color=colours, height=0.68)
    for position, row, value in zip(positions, rows, values, strict=True):
        # In a column of their own: beside the bars the numbers would meet the marks of the targets.
        axes.text(
            1.01,
            position,
            f"{value:.2f}x" if value < 10 else f"{value:.0f}x",
            transform=axes.get_yaxis_transform(),
            color=_verdict_colour(row.verdict),
            fontweight="bold",
            va="center",
            fontsize=8.5,
        )
        wanted = target_advantage(row)
        if wanted is not None:
            axes.plot([wanted, wanted], [position - 0.42, position + 0.42], color="black", lw=1.6, zorder=5)
    axes.axvline(1.0, color="#333333", lw=1)
    axes.set_xscale("log")
    low, high = min(values), max(values)
    axes.set_xlim(min(0.45, low * 0.75), max(2.8, high * 1.1))
    axes.set_yticks(positions, [row.metric.title for row in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if _is_inside(axes, tick)]
    axes.set_xticks(ticks)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.grid(axis="x", alpha=0.25)
    _clean(axes)
    axes.legend(
        handles=[
            Patch(color=MET, label="target met"),
            Patch(color=MISSED, label="target missed"),
            Line2D([], [], color="black", lw=1.6, label="target against Kafka"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.4, -0.04),
        ncols=3,
        fontsize=8.5,
        frameon=False,
    )


def _percentiles(prefix: str) -> dict[str, str]:
    return {f"{prefix}.p50": "p50", f"{prefix}.p99": "p99", f"{prefix}.p999": "p99.9"}


def _cluster_rates(rows: dict[str, Row]) -> dict[str, str]:
    pattern = re.compile(r"cluster-produce\.(\d+)\.(\d+)\.(\d+)\.rate")
    found = ((key, pattern.fullmatch(key)) for key in rows)
    return {
        key: f"{match[1]}/{int(match[2]) // 1000}/{match[3]}" for key, match in found if match is not None
    }


def _bars(axes: Axes, rows: dict[str, Row], labels: dict[str, str], title: str) -> None:
    """A pair of bars for each metric of `labels` that was measured."""
    axes.set_title(title, fontsize=11)
    keys = [key for key in labels if key in rows]
    if not keys:
        _say_empty(axes)
        return
    width = 0.38
    for shift, system in ((-width / 2, System.KAFKA), (width / 2, System.MILLRACE)):
        values = [_value(rows[key], system) for key in keys]
        known = [(index + shift, value) for index, value in enumerate(values) if value is not None]
        if not known:
            continue
        bars = axes.bar(
            [position for position, _ in known],
            [value for _, value in known],
            width,
            color=COLOURS[system],
            label=LABELS[system],
        )
        axes.bar_label(bars, [number_text(value) for _, value in known], fontsize=8, padding=2)
    axes.set_xticks(range(len(keys)), [labels[key] for key in keys], fontsize=8.5)
    if len(keys) > LABELS_SIDE_BY_SIDE_MAX:
        axes.tick_params(axis="x", labelrotation=20, labelsize=7)
    axes.margins(y=0.15)
    axes.legend(fontsize=8.5, frameon=False, loc="upper left")
    _clean(axes)


def _curve(axes: Axes, rows: dict[str, Row], pattern: str, x_label: str, title: str) -> None:
    axes.set_title(title, fontsize=11)
    points = _points(rows, pattern)
    if not points:
        _say_empty(axes)
        return
    for system in (System.KAFKA, System.MILLRACE):
        known = [(x, value) for x, row in points if (value := _value(row, system)) is not None]
        if known:
            xs, ys = zip(*known, strict=True)
            axes.plot(xs, ys, marker="o", lw=2, color=COLOURS[system], label=LABELS[system])
    axes.set_xscale("log")
    axes.set_xticks([x for x, _ in points], [f"{x:,}" for x, _ in points])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(_compact))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    axes.set_xlabel(x_label, fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8.5, frameon=False)
    _clean(axes)


def _points(rows: dict[str, Row], pattern: str) -> list[tuple[int, Row]]:
    """The rows whose key has a number in the place of the pattern's braces, by that number."""
    expression = re.compile(re.escape(pattern).replace(re.escape("{}"), r"(\d+)"))
    found = ((expression.fullmatch(key), row) for key, row in rows.items())
    return sorted(((int(match[1]), row) for match, row in found if match), key=itemgetter(0))


def _compact(value: float, _position: int) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _value(row: Row, system: System) -> float | None:
    return row.comparison.kafka if system is System.KAFKA else row.comparison.millrace


def _verdict_colour(verdict: Verdict) -> str:
    return {Verdict.PASS: MET, Verdict.FAIL: MISSED}.get(verdict, UNJUDGED)


def _is_inside(axes: Axes, x: float) -> bool:
    low, high = axes.get_xlim()
    return low <= x <= high


def _say_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", va="center", color="#888888", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _clean(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
