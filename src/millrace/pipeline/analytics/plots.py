"""The panels of a report, drawn with matplotlib: as SVG for the page, or all of a topic in one PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.core.units import bytes_text, count_text, seconds_text
from millrace.pipeline.analytics.measurement import class_bounds
from millrace.pipeline.analytics.summary import Distribution, TopicSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID, EVEN, HOT_COLOUR = "#1b2733", "#d8dee4", "#5c6b7a", "#c8553d"
COLOURS: Final = (
    "#1d7874", "#e9a23b", "#4a6fa5", "#9b5094", "#6a994e", "#bc6c25", "#577590", "#d1495b",
)  # fmt: skip
DAY_MS: Final = 86_400_000
"""Matplotlib counts time in days since 1970."""
TICKS_MAX: Final = 20
MANY: Final = len(COLOURS)
"""If there are more partitions than this, we draw the busiest ones, and the rest as one."""

Panel = Callable[["Axes", TopicSummary], None]


def panels_of(summary: TopicSummary) -> list[tuple[str, Panel]]:
    """The panels for which there is something to show, by title."""
    panels: list[tuple[str, Panel]] = []
    if summary.by_time:
        panels.append(("Messages a second", _messages))
        panels.append(("Bytes a second", _bytes))
    if summary.sizes is not None:
        panels.append(("Message sizes", _sizes))
    if summary.latencies is not None:
        panels.append(("Latency until stored", _latencies))
    if summary.arrivals is not None:
        panels.append(("Latency until read", _arrivals))
    if summary.messages:
        panels.append(("Share of each partition", _partitions))
    if summary.keys:
        panels.append(("Most frequent keys", _keys))
    if summary.lag:
        panels.append(("Consumer lag", _lag))
    return panels


def svg(summary: TopicSummary, panel: Panel) -> str:
    """One panel as an SVG element that can stand inside a page."""
    from matplotlib.figure import Figure

    with _style(salt=f"{summary.topic}-{panel.__name__}"):
        figure = Figure(figsize=(6.4, 3.1), layout="constrained")
        panel(figure.add_subplot(), summary)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    drawing = text.getvalue()
    return drawing[drawing.index("<svg") :]


def write_png(summaries: Sequence[TopicSummary], path: Path, headline: str) -> None:
    """All panels of all topics in one picture, topics below each other."""
    from matplotlib.figure import Figure

    rows = [(summary, panels_of(summary)) for summary in summaries]
    rows = [(summary, panels) for summary, panels in rows if panels]
    columns = 4 if max((len(panels) for _, panels in rows), default=0) > 6 else 3
    heights = [-(-len(panels) // columns) for _, panels in rows] or [1]
    with _style(salt="png"):
        figure = Figure(figsize=(5.2 * columns, 0.8 + 3.6 * sum(heights)), layout="constrained")
        figure.suptitle(headline, fontsize=13, color=INK, x=0.01, ha="left")
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, (summary, panels), height in zip(parts, rows, heights, strict=False):
            part.suptitle(summary.topic, fontsize=12, weight="bold", color=INK)
            for number, (title, panel) in enumerate(panels, start=1):
                axes = part.add_subplot(height, columns, number)
                panel(axes, summary)
                axes.set_title(title, fontsize=10, color=INK, loc="left")
        figure.savefig(path, format="png", dpi=100)


@contextmanager
def _style(salt: str) -> Iterator[None]:
    import matplotlib as mpl

    settings: Any = {
        "svg.fonttype": "none",
        # Identifiers inside one page must differ from drawing to drawing, and not from run to run.
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.edgecolor": GRID,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with mpl.rc_context(settings):
        yield


def _messages(axes: Axes, summary: TopicSummary) -> None:
    _stacked(axes, summary, 0, count_text, "messages/s")


def _bytes(axes: Axes, summary: TopicSummary) -> None:
    _stacked(axes, summary, 1, bytes_text, "per second")


def _stacked(axes: Axes, summary: TopicSummary, which: int, text: Callable[[float], str], unit: str) -> None:
    """Rates by time, one above the other for each partition; times without records are zero."""
    from matplotlib.ticker import FuncFormatter

    assert summary.first_ms is not None
    assert summary.last_ms is not None
    step = summary.bucket_ms
    # One bucket more at the end, so that steps show the last one too.
    starts = range(summary.first_ms, summary.last_ms + 2 * step, step)
    times = [start / DAY_MS for start in starts]
    shown, rest = _busiest(summary)
    series = [[_rate(summary, start, {partition}, which) for start in starts] for partition in shown]
    labels = [f"partition {partition}" for partition in shown]
    colours = list(COLOURS[: len(shown)])
    if rest:
        series.append([_rate(summary, start, rest, which) for start in starts])
        labels.append(f"{len(rest)} others")
        colours.append(EVEN)
    for row in series:
        row[-1] = row[-2]
    axes.stackplot(times, series, labels=labels, colors=colours, step="post", alpha=0.9)
    axes.set_xlim(times[0], times[-1])
    # Leave room for the legend above the highest step.
    axes.set_ylim(0, 1.2 * max(map(sum, zip(*series, strict=True))))
    axes.set_ylabel(f"{unit}, by {seconds_text(step / 1000)}")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    _time_axis(axes)
    axes.legend(loc="upper left", ncols=3)


def _busiest(summary: TopicSummary) -> tuple[list[int], set[int]]:
    loaded = [each for each in summary.partitions if each.messages]
    if len(loaded) <= MANY:
        return [each.partition for each in loaded], set()
    ranked = sorted(loaded, key=lambda load: -load.messages)
    shown = sorted(each.partition for each in ranked[: MANY - 1])
    return shown, {each.partition for each in ranked[MANY - 1 :]}


def _rate(summary: TopicSummary, start: int, partitions: set[int], which: int) -> float:
    row = summary.by_time.get(start, {})
    return sum(load[which] for partition, load in row.items() if partition in partitions) / (
        summary.bucket_ms / 1000
    )


def _sizes(axes: Axes, summary: TopicSummary) -> None:
    assert summary.sizes is not None
    _histogram(axes, summary.sizes, bytes_text, "key and value")


def _latencies(axes: Axes, summary: TopicSummary) -> None:
    assert summary.latencies is not None
    _histogram(axes, summary.latencies, lambda value: seconds_text(value / 1000), "from sent to stored")


def _arrivals(axes: Axes, summary: TopicSummary) -> None:
    assert summary.arrivals is not None
    _histogram(
        axes, summary.arrivals, lambda value: seconds_text(value / 1000), "from created to a waiting reader"
    )


def _histogram(axes: Axes, found: Distribution, text: Callable[[float], str], label: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    for number, count in found.counts.items():
        low, high = class_bounds(number)
        # Values below one have no place on a logarithmic scale: we draw them at its left end.
        low, high = (0.5, 1.0) if number < 0 else (low, high)
        axes.bar(low, count, width=high - low, align="edge", color=COLOURS[0], linewidth=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if class_bounds(max(found.counts))[1] < 4 * class_bounds(min(found.counts))[0]:
        # Within two doublings there may be no power of two to write below the axis.
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    axes.set_xlabel(label)
    axes.set_ylabel("messages")
    axes.margins(x=0.08)
    top = axes.get_ylim()[1]
    for name, value, height in (("p50", found.p50, 1.04), ("p99", found.p99, 1.13)):
        if value is not None and value >= 0.5:
            axes.vlines(value, 0, top * (height - 0.01), color=HOT_COLOUR, linewidth=1, linestyle="--")
            axes.text(value, top * height, f"{name} {text(value)}", fontsize=8, ha="center", va="bottom")
    axes.set_ylim(0, top * 1.24)


def _partitions(axes: Axes, summary: TopicSummary) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    loads = summary.partitions
    colours = [HOT_COLOUR if each.is_hot else COLOURS[0] for each in loads]
    axes.bar([each.partition for each in loads], [each.share for each in loads], color=colours, width=0.8)
    axes.axhline(1 / len(loads), color=EVEN, linewidth=1, linestyle="--", label="even share")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if len(loads) <= TICKS_MAX:
        axes.set_xticks([each.partition for each in loads])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1.2 * max(each.share for each in loads))
    axes.set_xlabel("partition (red: hot)" if summary.hot_partitions else "partition")
    axes.set_ylabel("of all messages")
    axes.legend(loc="upper right")


def _keys(axes: Axes, summary: TopicSummary) -> None:
    from matplotlib.ticker import PercentFormatter

    loads = summary.keys[:10][::-1]
    names = [each.key if len(each.key) <= 22 else f"{each.key[:21]}…" for each in loads]
    # A key's text may hold a dollar sign, which would begin a formula.
    axes.barh(range(len(loads)), [each.share for each in loads], color=COLOURS[1], height=0.75)
    axes.set_yticks(range(len(loads)), [name.replace("$", r"\$") for name in names])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("of all messages")
    axes.grid(visible=False, axis="y")


def _lag(axes: Axes, summary: TopicSummary) -> None:
    from matplotlib.ticker import FuncFormatter

    groups = sorted(summary.lag.items(), key=lambda item: -max(lag for _, lag in item[1]))
    for colour, (group, series) in zip(COLOURS, groups, strict=False):
        times = [time_ms / DAY_MS for time_ms, _ in series]
        mark = "o" if len(series) < 3 else None
        axes.plot(
            times, [lag for _, lag in series], label=group.replace("$", r"\$"), color=colour, marker=mark
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("messages behind")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    _time_axis(axes)
    axes.legend(loc="best")


def _time_axis(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("UTC")
