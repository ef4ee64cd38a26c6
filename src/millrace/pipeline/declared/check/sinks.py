"""The rules for sinks: which keys each kind has, and which changes of a result each can take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypedDict

from millrace.client.errors import InvalidOption
from millrace.pipeline.declared.check.sources import (
    Surroundings,
    check_topic,
    jdbc_options,
    read_bootstrap,
    read_jdbc_url,
    read_kind,
    read_payload,
)
from millrace.pipeline.declared.language.fields import Fields
from millrace.pipeline.declared.language.mistakes import Mark
from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    JdbcSink,
    Sink,
    TableSink,
    TopicSink,
    Trigger,
)
from millrace.pipeline.declared.language.topic_options import sink_options

DELIVERIES: Final = ("exactly-once", "at-least-once")
MODES: Final = ("append", "update", "complete")
_COMMON: Final = ("from", "sql", "mode", "trigger")
_KEYS: Final = {
    "topic": (
        *("topic", "bootstrap.servers", "format", "schema", "schema_file", "message"),
        *("key", "delivery", "options", *_COMMON),
    ),
    "delta": ("delta", "partition_by", "options", *_COMMON),
    "parquet": ("parquet", "partition_by", "options", *_COMMON),
    "jdbc": ("jdbc", "table", "key", "marker_table", "user", "password", "driver", "options", *_COMMON),
    "console": ("console", "rows", "truncate", *_COMMON),
}
# The modes that Spark and the sink itself can do.
_MODES_OF: Final = {
    "topic": ("append", "update"),
    "delta": ("append", "complete"),
    "parquet": ("append",),
    "jdbc": MODES,
    "console": MODES,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the pipeline says for all its sinks."""

    trigger: Trigger
    delivery: str


def read_sink(name: str, fields: Fields, view: str, around: Surroundings, defaults: Defaults) -> Sink | None:
    """One entry of `sinks`; None if it is not even clear of what kind it is."""
    kind = read_kind(fields, _KEYS, around.mistakes, says="where the rows go")
    if kind is None:
        return None
    mode = fields.choice("mode", MODES, "append")
    if mode not in _MODES_OF[kind]:
        what = f"{fields.where}: mode {mode} is not possible for {kind}"
        around.mistakes.add(fields.mark_of("mode"), what, allowed=", ".join(_MODES_OF[kind]))

    common = _Common(
        name=name, mark=fields.mark, view=view, mode=mode, trigger=fields.trigger(defaults.trigger)
    )
    match kind:
        case "topic":
            return _topic(fields, common, around, defaults)
        case "jdbc":
            return _jdbc(fields, common, around)
        case "console":
            return _console(fields, common)
        case _:
            return _table(fields, common, kind, around)


class _Common(TypedDict):
    """What `SinkCommon` takes, for each kind of sink."""

    name: str
    mark: Mark
    view: str
    mode: str
    trigger: Trigger


def _topic(fields: Fields, common: _Common, around: Surroundings, defaults: Defaults) -> Sink:
    topic = fields.text("topic")
    by_column = topic is not None and topic.strip() == "*"
    if topic is not None and not by_column:
        check_topic(topic, fields.mark_of("topic"), fields.where, around.mistakes)
    payload = read_payload(fields, around, schema_needed=("avro", "protobuf"))
    if "format" not in fields:
        payload = replace(payload, format="json")
    before = len(around.mistakes.found)
    sink = TopicSink(
        **common,
        topic=None if by_column else topic,
        bootstrap=read_bootstrap(fields, around),
        payload=payload,
        key=fields.text("key"),
        delivery=fields.choice("delivery", DELIVERIES, defaults.delivery),
        options=fields.options("options"),
    )
    if sink.options and len(around.mistakes.found) == before:
        _check_options(sink, fields, around)
    return sink


def _check_options(sink: TopicSink, fields: Fields, around: Surroundings) -> None:
    """The options go to the writer as they are: ask it whether it understands them, if Spark is installed."""
    try:
        from millrace.pipeline.sink.options import read_sink_options
    except ImportError:
        return
    try:
        read_sink_options(sink_options(sink), is_streaming=True)
    except InvalidOption as error:
        around.mistakes.add(fields.mark_of("options"), f"{fields.where}: {error}")


def _table(fields: Fields, common: _Common, kind: str, around: Surroundings) -> Sink:
    return TableSink(
        **common,
        format=kind,
        path=around.location(fields.text(kind) or "."),
        partition_by=fields.texts("partition_by"),
        options=fields.options("options"),
    )


def _jdbc(fields: Fields, common: _Common, around: Surroundings) -> Sink:
    fields.require("table", "table: NAME")
    url = read_jdbc_url(fields, around.mistakes)
    key = fields.texts("key")
    if common["mode"] == "update" and not key:
        what = f"{fields.where}: mode update needs 'key', the columns by which a row replaces an older one"
        around.mistakes.add(fields.mark_of("mode"), what, allowed="key: COLUMN or a list of columns")
    return JdbcSink(
        **common,
        url=url,
        table=fields.text("table") or "",
        key=key,
        marker_table=fields.text("marker_table") or "millrace_batches",
        options=jdbc_options(fields, url),
    )


def _console(fields: Fields, common: _Common) -> Sink:
    fields.flag("console", True)
    return ConsoleSink(
        **common,
        rows=fields.count("rows", 20),
        truncate=fields.flag("truncate", False),
    )
