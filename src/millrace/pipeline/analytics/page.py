"""The report as one HTML page that loads nothing from elsewhere: it can be mailed as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from millrace.core.units import bytes_text, count_text, seconds_text
from millrace.pipeline.analytics import plots
from millrace.pipeline.analytics.summary import Distribution, TopicSummary

KEYS_SHOWN: Final = 20
PARTITIONS_SHOWN: Final = 50

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1b2733; background: #fff;
  margin: 2rem auto; max-width: 84rem; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p.note { color: #5c6b7a; margin: .1rem 0 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; }
.figures div { background: #f3f6f8; border-radius: .4rem; padding: .5rem .8rem; }
.figures b { display: block; font-size: 1.2rem; }
.figures span { color: #5c6b7a; font-size: .85rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr));
  gap: 1.2rem; margin-top: 1rem; }
figure { margin: 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
.tables { display: flex; flex-wrap: wrap; gap: 1rem 3rem; align-items: flex-start; margin-top: 1rem; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #e5eaee; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
.hot { color: #b23c22; font-weight: 600; }
"""


def render(summaries: Sequence[TopicSummary], *, made_ms: int, source: str) -> str:
    """The whole page."""
    made = datetime.fromtimestamp(made_ms / 1000, UTC)
    names = ", ".join(summary.topic for summary in summaries)
    body = "".join(_topic(summary) for summary in summaries)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)} – Millrace analytics</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>Topics measured</h1>"
        f'<p class="note">{made:%Y-%m-%d %H:%M:%S} UTC, {escape(source)}</p>\n{body}</body></html>\n'
    )


def _topic(summary: TopicSummary) -> str:
    parts = [f"<section><h2>{escape(summary.topic)}</h2>\n"]
    if not summary.messages:
        parts.append('<p class="note">No messages in what was measured.</p>\n')
    parts.append(_figures(summary))
    drawn = (
        f"<figure><figcaption>{escape(title)}</figcaption>{plots.svg(summary, panel)}</figure>\n"
        for title, panel in plots.panels_of(summary)
    )
    parts.append(f'<div class="panels">{"".join(drawn)}</div>\n')
    parts.append(
        f'<div class="tables">{_partition_table(summary)}{_key_table(summary)}{_lag_table(summary)}</div>'
    )
    parts.append("</section>\n")
    return "".join(parts)


def figures_of(summary: TopicSummary) -> list[tuple[str, str]]:
    """The headline figures, as text: for the page and for the terminal."""
    figures = [
        ("messages", f"{summary.messages:,.0f}"),
        ("keys and values", bytes_text(summary.bytes)),
        ("messages/s, mean", count_text(summary.messages_per_s)),
        (f"messages/s, best {seconds_text(summary.bucket_ms / 1000)}", count_text(summary.peak_per_s)),
    ]
    if summary.sizes is not None:
        figures += [
            ("size, p50", bytes_text(summary.sizes.p50 or 0)),
            ("size, p99", bytes_text(summary.sizes.p99 or 0)),
            ("size, largest", bytes_text(summary.sizes.largest)),
        ]
    figures += _latency_figures("latency until stored", summary.latencies)
    figures += _latency_figures("latency until read", summary.arrivals)
    figures.append(("distinct keys", f"{summary.distinct_keys:,.0f}"))
    figures.append(("busiest partition over mean", f"{summary.skew:.2f}x"))
    hot = ", ".join(f"#{each.partition}" for each in summary.hot_partitions)
    figures.append(("hot partitions", hot or "none"))
    for group, series in summary.lag.items():
        figures.append((f"lag of {group}", f"{series[-1][1]:,.0f}"))
    return figures


def _latency_figures(name: str, found: Distribution | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    figures = [
        (f"{name}, p50", _ms_text(found.p50 or 0)),
        (f"{name}, p99", _ms_text(found.p99 or 0)),
        (f"{name}, largest", _ms_text(found.largest)),
    ]
    if found.negative:
        figures.append((f"{name}: below zero, clocks differ", f"{found.negative:,.0f}"))
    return figures


def _ms_text(value_ms: float) -> str:
    # Timestamps count whole milliseconds: below one we cannot say more.
    return "< 1 ms" if value_ms < 1 else seconds_text(value_ms / 1000)


def _figures(summary: TopicSummary) -> str:
    cells = (
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures_of(summary)
    )
    return f'<div class="figures">{"".join(cells)}</div>\n'


def _partition_table(summary: TopicSummary) -> str:
    ranked = sorted(summary.partitions, key=lambda load: -load.messages)[:PARTITIONS_SHOWN]
    rows = [
        (
            f"{each.partition}{' hot' if each.is_hot else ''}",
            f"{each.messages:,.0f}",
            bytes_text(each.bytes),
            f"{each.share:.1%}",
        )
        for each in ranked
    ]
    return _table("Partitions", ("partition", "messages", "bytes", "share"), rows)


def _key_table(summary: TopicSummary) -> str:
    rows = [
        (
            each.key,
            f"{each.messages:,.0f}",
            bytes_text(each.bytes),
            f"{each.share:.2%}",
            ", ".join(str(partition) for partition in each.partitions),
        )
        for each in summary.keys[:KEYS_SHOWN]
    ]
    if summary.null_keys:
        rows.append(("(no key)", f"{summary.null_keys:,.0f}", "", f"{_part(summary):.2%}", ""))
    return _table("Most frequent keys", ("key", "messages", "bytes", "share", "partition"), rows)


def _part(summary: TopicSummary) -> float:
    return summary.null_keys / summary.messages if summary.messages else 0.0


def _lag_table(summary: TopicSummary) -> str:
    rows = [
        (group, f"{series[-1][1]:,.0f}", f"{max(lag for _, lag in series):,.0f}", f"{len(series):,}")
        for group, series in summary.lag.items()
    ]
    return _table("Consumer groups", ("group", "lag now", "most", "looks"), rows)


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        "<tr>" + "".join(f"<td{_mark(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    if not lines:
        return ""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{''.join(lines)}</table>\n"


def _mark(cell: str) -> str:
    return ' class="hot"' if cell.endswith(" hot") else ""
