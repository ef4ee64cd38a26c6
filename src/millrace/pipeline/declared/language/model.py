"""A pipeline as declared: sources, functions, steps and sinks, each with the line it came from. Only data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from millrace.core.override import override
from millrace.pipeline.declared.language.mistakes import Mark
from millrace.pipeline.declared.language.sql_text import Query


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a row may come behind the latest `column` seen so far."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How values are encoded. `schema` is DDL, Avro JSON or .proto text; `schema_file` holds it instead."""

    format: str = "raw"
    schema: str | None = None
    schema_file: Path | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """When batches begin: `always` (one after the other), `every` some ms, or `available-now` and end."""

    kind: str = "always"
    every_ms: int = 0

    @override
    def __str__(self) -> str:
        return f"every {self.every_ms / 1000:g} s" if self.kind == "every" else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Records of topics, named one by one or by a pattern."""

    name: str
    mark: Mark
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    bootstrap: str
    payload: Payload
    starting: str = "earliest"
    group: str | None = None
    dead_letters: str | None = None
    streaming: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None

    @property
    def what(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"

    def identity(self) -> str:
        return f"pattern {self.pattern}" if self.pattern else f"topics {', '.join(sorted(self.topics))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSource:
    """Records that `millrace pipeline archive` has copied into a Delta table."""

    name: str
    mark: Mark
    path: str
    payload: Payload = Payload()
    streaming: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None

    @property
    def what(self) -> str:
        return f"archive {self.path}"

    def identity(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Rows of files in a folder, or of a Delta table."""

    name: str
    mark: Mark
    path: str
    format: str
    schema: str | None = None
    streaming: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None

    @property
    def what(self) -> str:
        return f"{self.format} files {self.path}"

    def identity(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcSource:
    """Rows of a database's table or query, read once."""

    name: str
    mark: Mark
    url: str
    table: str | None = None
    query: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    watermark: Watermark | None = None

    @property
    def streaming(self) -> bool:
        return False

    @property
    def what(self) -> str:
        return f"table {self.table}" if self.table else "a query by JDBC"

    def identity(self) -> str:
        return self.what


Source: TypeAlias = TopicSource | ArchiveSource | FileSource | JdbcSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A Python function `module:name` that SQL can call; `kind` says if it gets rows or whole columns."""

    name: str
    mark: Mark
    module: str
    attribute: str
    returns: str
    kind: str = "row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A query with a name: a view that later steps and sinks can read."""

    name: str
    mark: Mark
    sql: str
    sql_mark: Mark
    query: Query
    watermark: Watermark | None = None
    deduplicate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCommon:
    """What all sinks have: where their rows come from, when they are written, and how a result changes."""

    name: str
    mark: Mark
    view: str
    mode: str = "append"
    trigger: Trigger = Trigger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink(SinkCommon):
    """Writes rows as records of one topic, or of the topic that each row's column `topic` names."""

    topic: str | None
    bootstrap: str
    payload: Payload
    key: str | None = None
    delivery: str = "exactly-once"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return f"topic {self.topic}" if self.topic else "the topic in the column topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink(SinkCommon):
    """Files of a Delta table or of plain Parquet."""

    format: str
    path: str
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return f"{self.format} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcSink(SinkCommon):
    """Writes rows into a database's table; the marker table remembers which batches are in it."""

    url: str
    table: str
    key: tuple[str, ...] = ()
    marker_table: str = "millrace_batches"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return f"table {self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink(SinkCommon):
    """Prints rows, for trying out a pipeline."""

    rows: int = 20
    truncate: bool = False

    @property
    def what(self) -> str:
        return "console"


Sink: TypeAlias = TopicSink | TableSink | JdbcSink | ConsoleSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline as its file declares it, checked: sources, steps and sinks that fit together."""

    name: str
    path: Path
    sources: Mapping[str, Source]
    functions: Mapping[str, Function]
    # Ordered so that each step reads only what comes before it.
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    checkpoint: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Jars beside Spark's own, GROUP:ARTIFACT:VERSION."""

    def inputs_of(self, view: str) -> list[str]:
        """The sources and steps that a step reads; a source reads none."""
        step = self.steps.get(view)
        if step is None:
            return []
        names = {name.casefold(): name for name in (*self.sources, *self.steps)}
        return [names[table.casefold()] for table in step.query.tables if table.casefold() in names]

    def upstream(self, view: str) -> list[str]:
        """The view and all that it is made of, each once, in the order in which the queries name them."""
        found: dict[str, None] = {}
        waiting = [view]
        while waiting:
            name = waiting.pop(0)
            if name not in found:
                found[name] = None
                waiting = [*self.inputs_of(name), *waiting]
        return list(found)

    def sources_of(self, view: str) -> list[Source]:
        return [self.sources[name] for name in self.upstream(view) if name in self.sources]

    def is_streaming(self, view: str) -> bool:
        return any(source.streaming for source in self.sources_of(view))

    def has_watermark(self, view: str) -> bool:
        known: Mapping[str, Source | Step] = {**self.sources, **self.steps}
        return any(known[name].watermark is not None for name in self.upstream(view) if name in known)
