"""The graph of a pipeline: as a tree of text for terminals, and as a picture in SVG or HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    JdbcSink,
    Pipeline,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
    TopicSource,
)

_BOX_WIDTH: Final = 250
_BOX_HEIGHT: Final = 58
_GAP_X: Final = 90
_GAP_Y: Final = 26
_MARGIN: Final = 24
_TITLE_HEIGHT: Final = 40
_TEXT_MAX: Final = 38
_FILLS: Final = {"source": "#e3f0fb", "step": "#f6f1dd", "sink": "#e4f5e6"}
_STROKES: Final = {"source": "#2f6f9f", "step": "#8a7420", "sink": "#2e7d3a"}


@dataclass(frozen=True, slots=True)
class Box:
    """One part of the graph: what it is called, what it does, and what it reads."""

    name: str
    kind: str
    title: str
    detail: str
    line: int
    inputs: tuple[str, ...]


def boxes_of(pipeline: Pipeline) -> dict[str, Box]:
    """All parts by a key that is unique over sources, steps and sinks."""
    boxes: dict[str, Box] = {}
    for source in pipeline.sources.values():
        boxes[source.name] = Box(
            source.name,
            "source",
            source.name,
            _beside(pipeline, describe_source(source)),
            source.mark.line,
            (),
        )
    for step in pipeline.steps.values():
        if not step.name.startswith("sink:"):
            inputs = tuple(pipeline.inputs_of(step.name))
            boxes[step.name] = Box(step.name, "step", step.name, describe_step(step), step.mark.line, inputs)
    for sink in pipeline.sinks.values():
        own = sink.view.startswith("sink:")
        inputs = tuple(pipeline.inputs_of(sink.view)) if own else (sink.view,)
        detail = _beside(pipeline, describe_sink(pipeline, sink))
        if own and sink.view in pipeline.steps:
            detail = f"{describe_step(pipeline.steps[sink.view])}, into {detail}"
        boxes[f"sink {sink.name}"] = Box(sink.name, "sink", sink.name, detail, sink.mark.line, inputs)
    return boxes


def describe_source(source: Source) -> str:
    words = [source.what]
    if isinstance(source, TopicSource):
        words.append(source.payload.format)
        if source.dead_letters:
            words.append(f"dead letters to {source.dead_letters}")
    if not source.streaming:
        words.append("read once")
    if source.watermark is not None:
        words.append(f"watermark {source.watermark.column} {source.watermark.delay_ms / 1000:g} s")
    return ", ".join(words)


def describe_step(step: Step) -> str:
    query = step.query
    words = [
        word
        for word, does in (
            ("filter", query.filters),
            ("join", query.joins > 0),
            ("window", query.windowed),
            ("aggregation", query.aggregates),
            ("distinct", query.distinct),
        )
        if does
    ] or ["projection"]
    if step.deduplicate:
        words.append(f"deduplicated by {', '.join(step.deduplicate)}")
    if step.watermark is not None:
        words.append(f"watermark {step.watermark.column} {step.watermark.delay_ms / 1000:g} s")
    return ", ".join(words)


def describe_sink(pipeline: Pipeline, sink: Sink) -> str:
    words = [sink.what]
    streaming = pipeline.is_streaming(sink.view)
    match sink:
        case TopicSink(payload=payload, key=key, delivery=delivery):
            words += [payload.format, *([f"key {key}"] if key else []), delivery]
        case TableSink(partition_by=columns):
            words += [f"by {', '.join(columns)}"] if columns else []
            words += ["exactly-once"] if streaming else []
        case JdbcSink(key=columns):
            words += [f"key {', '.join(columns)}"] if columns else []
            words += ["exactly-once"] if streaming else []
        case ConsoleSink():
            pass
    words.append(f"{sink.mode}, {sink.trigger}" if streaming else "written once")
    return ", ".join(words)


def _beside(pipeline: Pipeline, text: str) -> str:
    """Show paths below the file's folder as the file writes them."""
    return text.replace(f"{pipeline.path.absolute().parent}/", "")


def draw_text(pipeline: Pipeline) -> str:
    """One tree for each sink, from where rows end to where they come from."""
    boxes = boxes_of(pipeline)
    lines = [f"{pipeline.name} ({pipeline.path})"]
    shown: set[str] = set()
    for box in boxes.values():
        if box.kind == "sink":
            lines += ["", f"[{box.title}]  {box.detail}  (line {box.line})"]
            lines += _branches(boxes, box, "", shown)
    return "\n".join(lines)


def _branches(boxes: dict[str, Box], box: Box, indent: str, shown: set[str]) -> list[str]:
    lines = []
    for position, name in enumerate(box.inputs):
        is_last = position == len(box.inputs) - 1
        found = boxes[name]
        label = f"({found.title})" if found.kind == "source" else found.title
        again = name in shown and found.inputs
        detail = "as above" if again else f"{found.detail}  (line {found.line})"
        lines.append(f"{indent}{'└─' if is_last else '├─'} {label}  {detail}")
        if not again:
            shown.add(name)
            lines += _branches(boxes, found, indent + ("   " if is_last else "│  "), shown)
    return lines


def draw_svg(pipeline: Pipeline) -> str:
    """Sources on the left, sinks on the right, each part in a column behind all that it reads."""
    boxes = boxes_of(pipeline)
    places = _places(boxes)
    width = max(x for x, _ in places.values()) + _BOX_WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _BOX_HEIGHT + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker></defs>\n'
        f'<text x="{_MARGIN}" y="{_MARGIN}" font-size="16" font-weight="bold">{escape(pipeline.name)}</text>'
    )
    parts = [_arrow(places[name], places[key]) for key, box in boxes.items() for name in box.inputs]
    parts += [_box(box, places[key]) for key, box in boxes.items()]
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def draw_html(pipeline: Pipeline) -> str:
    """The picture with the queries below it."""
    queries = "\n".join(
        f"<h2>{escape(step.name.replace('sink:', 'sink '))}</h2>\n<pre>{escape(step.sql)}</pre>"
        for step in pipeline.steps.values()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(pipeline.name)}</title>\n"
        "<style>body{font-family:sans-serif;margin:2em}pre{background:#f4f4f4;padding:1em;overflow:auto}"
        "h2{font-size:1em}</style></head>\n"
        f'<body>\n<div style="overflow:auto">{draw_svg(pipeline)}</div>\n{queries}\n</body></html>\n'
    )


def write_drawing(pipeline: Pipeline, path: Path) -> None:
    """SVG or HTML, as the name says."""
    html = path.suffix.lower() in (".html", ".htm")
    path.write_text(draw_html(pipeline) if html else draw_svg(pipeline), encoding="utf-8")


def _places(boxes: dict[str, Box]) -> dict[str, tuple[int, int]]:
    columns: dict[str, int] = {}

    def column(key: str) -> int:
        if key not in columns:
            columns[key] = 1 + max((column(name) for name in boxes[key].inputs), default=-1)
        return columns[key]

    last = max(column(key) for key in boxes)
    # Sinks stand under each other on the right, however short their way is.
    columns |= {key: last for key, box in boxes.items() if box.kind == "sink"}
    rows = [0] * (last + 1)
    places = {}
    for key in boxes:
        row, rows[columns[key]] = rows[columns[key]], rows[columns[key]] + 1
        x = _MARGIN + columns[key] * (_BOX_WIDTH + _GAP_X)
        places[key] = (x, _MARGIN + _TITLE_HEIGHT + row * (_BOX_HEIGHT + _GAP_Y))
    return places


def _arrow(begin: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = begin[0] + _BOX_WIDTH, begin[1] + _BOX_HEIGHT // 2
    x2, y2 = end[0], end[1] + _BOX_HEIGHT // 2
    bend = _GAP_X // 2
    return (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" fill="none" stroke="#666"'
        ' marker-end="url(#arrow)"/>'
    )


def _box(box: Box, place: tuple[int, int]) -> str:
    x, y = place
    corner = {"source": 18, "step": 4, "sink": 18}[box.kind]
    tip = escape(f"{box.detail} (line {box.line})")
    return (
        f'<g><title>{tip}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}"'
        f' rx="{corner}"'
        f' fill="{_FILLS[box.kind]}" stroke="{_STROKES[box.kind]}"/>'
        f'<text x="{x + 14}" y="{y + 24}" font-weight="bold">{escape(_short(box.title))}</text>'
        f'<text x="{x + 14}" y="{y + 43}" fill="#444">{escape(_short(box.detail))}</text></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
