"""Sinks of a pipeline: which keys each kind has, and which changes of a result each can take."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.pipeline.declared.check.sinks import Defaults, read_sink
from millrace.pipeline.declared.check.sources import Surroundings
from millrace.pipeline.declared.language.fields import Fields
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    JdbcSink,
    Payload,
    Sink,
    TableSink,
    TopicSink,
    Trigger,
)
from millrace.pipeline.declared.language.yaml_file import read_yaml

EVERY = Trigger("every", 5000)
FOLDER = Path("/pipelines")


def read(text: str) -> tuple[Sink | None, list[str]]:
    mistakes = Mistakes()
    table = read_yaml(text, mistakes)
    assert table is not None, mistakes.found
    around = Surroundings(FOLDER, "b:1", mistakes)
    sink = read_sink(
        "out", Fields(table, "sinks.out", mistakes, {}), "v", around, Defaults(EVERY, "at-least-once")
    )
    return sink, [each.text() for each in mistakes.found]


def test_a_topic_takes_json_and_the_pipelines_defaults() -> None:
    assert read("topic: a\nkey: id") == (
        TopicSink(
            name="out",
            mark=Mark(1),
            view="v",
            trigger=EVERY,
            topic="a",
            bootstrap="b:1",
            payload=Payload(format="json"),
            key="id",
            delivery="at-least-once",
        ),
        [],
    )


def test_what_a_sink_says_itself_goes_before_the_defaults() -> None:
    sink, mistakes = read("topic: a\ntrigger: always\ndelivery: exactly_once\nformat: raw\nmode: update")
    assert mistakes == []
    assert isinstance(sink, TopicSink)
    assert (sink.trigger, sink.delivery, sink.payload.format) == (Trigger("always"), "exactly-once", "raw")
    assert sink.mode == "update"


def test_a_star_takes_the_topic_from_the_rows() -> None:
    sink, mistakes = read("topic: '*'")
    assert mistakes == []
    assert isinstance(sink, TopicSink)
    assert sink.topic is None


def test_tables_lie_beside_the_file() -> None:
    sink, mistakes = read("delta: lake/out\npartition_by: day, hour\nmode: complete")
    assert mistakes == []
    assert isinstance(sink, TableSink)
    assert (sink.format, sink.path, sink.partition_by) == ("delta", "/pipelines/lake/out", ("day", "hour"))


def test_a_database_has_a_table_a_key_and_a_place_for_its_batches() -> None:
    sink, mistakes = read("jdbc: jdbc:sqlite:x.db\ntable: t\nkey: [a, b]\nmode: update")
    assert mistakes == []
    assert isinstance(sink, JdbcSink)
    assert (sink.key, sink.marker_table) == (("a", "b"), "millrace_batches")
    assert sink.options == {"driver": "org.sqlite.JDBC", "numPartitions": "1"}


def test_the_console_shows_some_rows_as_a_whole() -> None:
    sink, mistakes = read("console: true\nrows: 5")
    assert mistakes == []
    assert sink == ConsoleSink(name="out", mark=Mark(1), view="v", trigger=EVERY, rows=5, truncate=False)


@pytest.mark.parametrize("kind", ["topic: a", "delta: a", "parquet: a", "console: true"])
@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_each_kind_takes_the_modes_that_it_can(kind: str, mode: str) -> None:
    possible = {
        "topic: a": ("append", "update"),
        "delta: a": ("append", "complete"),
        "parquet: a": ("append",),
        "console: true": ("append", "update", "complete"),
    }[kind]
    _, mistakes = read(f"{kind}\nmode: {mode}")
    if mode in possible:
        assert mistakes == []
    else:
        name = kind.partition(":")[0]
        expected = f"sinks.out: mode {mode} is not possible for {name}; allowed: {', '.join(possible)}"
        assert mistakes == [expected]


@pytest.mark.parametrize("text, words", [
    ("topic: a\ndelta: b", "topic and delta together: one of them says where the rows go"),
    ("mode: append", "nothing says where the rows go; allowed: topic, delta, parquet, jdbc, console"),
    ("topic: a b", "'a b' is no topic's name"),
    ("topic: a\nformat: avro", "format avro needs a schema"),
    ("topic: a\npartition_by: x", "unknown key 'partition_by'"),
    ("topic: a\noptions: {batch.size: many}", "batch.size"),
    ("jdbc: jdbc:x:y", "'table' is missing"),
    ("jdbc: jdbc:x:y\ntable: t\nmode: update", "mode update needs 'key'"),
    ("console: true\nrows: none", "rows cannot be 'none'"),
])  # fmt: skip
def test_what_is_wrong_with_a_sink_is_said(text: str, words: str) -> None:
    _, mistakes = read(text)
    assert any(words in each for each in mistakes), mistakes


def test_a_misspelt_kind_is_said_once() -> None:
    sink, mistakes = read("consle: true")
    assert sink is None
    assert len(mistakes) == 1
    assert "did you mean 'console'?" in mistakes[0]
