"""The rules between the parts: what reads what, in which order, and what streams allow."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest
from millrace.pipeline.declared.language.model import (
    JdbcSink,
    Pipeline,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
    TopicSource,
)


def check_names(sources: Mapping[str, Source | None], steps: Mapping[str, Step], mistakes: Mistakes) -> None:
    """Sources and steps are tables of one database: each name may occur once, whatever its case."""
    seen: dict[str, str] = {}
    for name, mark in [
        *((name, source.mark) for name, source in sources.items() if source is not None),
        *((name, step.mark) for name, step in steps.items()),
    ]:
        if name.casefold() in seen:
            other = seen[name.casefold()]
            mistakes.add(mark, f"{name!r} has the name of {other!r}: SQL could not tell them apart")
        seen.setdefault(name.casefold(), name)


def check_tables(views: list[str], steps: Mapping[str, Step], mistakes: Mistakes) -> None:
    """Every table in a query is a source or a step."""
    known = {view.casefold() for view in views}
    for step in steps.values():
        others = [view for view in views if view != step.name]
        for table, mark in step.query.tables.items():
            if table.casefold() not in known:
                what = f"{label(step.name)}: there is no source or step {table!r}"
                mistakes.unknown(mark, what, table, [view for view in others if not view.startswith("sink:")])


def in_order(steps: Mapping[str, Step], mistakes: Mistakes) -> dict[str, Step]:
    """The steps so that each reads only earlier ones; steps that read each other are a mistake."""
    by_name = {name.casefold(): step for name, step in steps.items()}
    ordered: dict[str, Step] = {}
    open_names: list[str] = []

    def visit(step: Step) -> None:
        if step.name in ordered:
            return
        if step.name in open_names:
            circle = [*open_names[open_names.index(step.name) :], step.name]
            mistakes.add(step.mark, f"steps read each other in a circle: {' -> '.join(circle)}")
            return
        open_names.append(step.name)
        for table in step.query.tables:
            if table.casefold() in by_name:
                visit(by_name[table.casefold()])
        open_names.pop()
        ordered[step.name] = step

    for step in steps.values():
        visit(step)
    return ordered


def check_view(sink_name: str, view: str, views: list[str], mark: Mark, mistakes: Mistakes) -> None:
    if view.casefold() not in (each.casefold() for each in views):
        known = [each for each in views if not each.startswith("sink:")]
        what = f"sinks.{sink_name}: there is no source or step {view!r}"
        mistakes.add(mark, what, allowed=", ".join(known) or "none", meant=closest(view, known) or "")


def check_graph(pipeline: Pipeline, mistakes: Mistakes) -> None:
    """Check what shows only when all parts are known; leave alone the parts that rest on a mistake."""
    used: dict[str, None] = {}
    is_broken = mistakes.fatal
    for sink in pipeline.sinks.values():
        used |= dict.fromkeys(pipeline.upstream(sink.view))
        if not _is_whole(pipeline, sink.view):
            continue
        _check_stream(pipeline, sink, mistakes)
        _check_loop(pipeline, sink, mistakes)
    _check_targets(pipeline, mistakes)
    for name, part in [*pipeline.sources.items(), *pipeline.steps.items()]:
        if name not in used and not is_broken:
            if name in pipeline.sources:
                mistakes.warn(part.mark, f"sources.{name}: no sink uses this source")
            else:
                mistakes.warn(part.mark, f"{label(name)}: no sink uses this step")
    for step in pipeline.steps.values():
        if _is_whole(pipeline, step.name):
            _check_step(pipeline, step, mistakes)


def _is_whole(pipeline: Pipeline, view: str) -> bool:
    """Whether all that a view is made of could be read."""
    known = {name.casefold() for name in (*pipeline.sources, *pipeline.steps)}
    if view.casefold() not in known:
        return False
    steps = [pipeline.steps[name] for name in pipeline.upstream(view) if name in pipeline.steps]
    return all(table.casefold() in known for step in steps for table in step.query.tables)


def label(view: str) -> str:
    """How messages name a step: a sink's own query belongs to the sink."""
    return f"sinks.{view.removeprefix('sink:')}.sql" if view.startswith("sink:") else f"steps.{view}"


def _check_stream(pipeline: Pipeline, sink: Sink, mistakes: Mistakes) -> None:
    if not pipeline.is_streaming(sink.view):
        return
    where = f"sinks.{sink.name}"
    aggregates = [name for name in pipeline.upstream(sink.view) if _aggregates(pipeline, name)]
    if sink.mode == "complete" and not aggregates:
        mistakes.add(
            sink.mark,
            f"{where}: mode complete needs an aggregation: the whole result of a stream has no end",
            allowed="append, update",
        )
    if sink.mode == "append" and aggregates and not pipeline.has_watermark(sink.view):
        mistakes.add(
            sink.mark,
            f"{where}: mode append of an aggregation (in {label(aggregates[0])}) needs a watermark, or no"
            " group would ever be complete",
            allowed="a watermark on a source or step before it, or mode update or complete",
        )


def _aggregates(pipeline: Pipeline, view: str) -> bool:
    step = pipeline.steps.get(view)
    return step is not None and step.query.aggregates and pipeline.is_streaming(view)


def _check_loop(pipeline: Pipeline, sink: Sink, mistakes: Mistakes) -> None:
    if not isinstance(sink, TopicSink) or sink.topic is None:
        return
    for source in pipeline.sources_of(sink.view):
        if isinstance(source, TopicSource) and sink.topic in source.topics and source.streaming:
            mistakes.add(
                sink.mark,
                f"sinks.{sink.name}: writes to the topic {sink.topic!r} that sources.{source.name} reads:"
                " its own results would come round again without end",
            )


def _check_targets(pipeline: Pipeline, mistakes: Mistakes) -> None:
    """Two queries must not write to the same files or replace each other's rows."""
    seen: dict[str, str] = {}
    for sink in pipeline.sinks.values():
        if isinstance(sink, TableSink):
            target = sink.path.rstrip("/")
        elif isinstance(sink, JdbcSink):
            target = f"{sink.url} {sink.table.casefold()}"
        else:
            continue
        if target in seen:
            what = f"sinks.{sink.name}: writes to {sink.what}, as sinks.{seen[target]} does"
            mistakes.add(sink.mark, what, allowed="a place of its own for each sink")
        seen.setdefault(target, sink.name)


def _check_step(pipeline: Pipeline, step: Step, mistakes: Mistakes) -> None:
    if not pipeline.is_streaming(step.name):
        if step.watermark is not None:
            mistakes.warn(
                step.mark, f"{label(step.name)}: a watermark has no effect: nothing here is a stream"
            )
        return
    has_watermark = pipeline.has_watermark(step.name)
    if (step.deduplicate or step.query.distinct) and not has_watermark:
        mistakes.warn(
            step.mark,
            f"{label(step.name)}: deduplication without a watermark remembers every row for ever",
        )
    inputs = [name for name in pipeline.inputs_of(step.name) if pipeline.is_streaming(name)]
    if step.query.joins and len(inputs) > 1 and not has_watermark:
        mistakes.warn(
            step.mark,
            f"{label(step.name)}: a join of streams without a watermark remembers every row for ever",
        )
