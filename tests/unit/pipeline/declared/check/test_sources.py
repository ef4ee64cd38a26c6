"""Sources of a pipeline: which keys each kind has, and what they may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.pipeline.declared.check.sources import (
    Surroundings,
    check_bootstrap,
    check_topic,
    read_source,
)
from millrace.pipeline.declared.language.fields import Fields
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import (
    ArchiveSource,
    FileSource,
    JdbcSource,
    Payload,
    Source,
    TopicSource,
    Watermark,
)
from millrace.pipeline.declared.language.yaml_file import read_yaml


def read(folder: Path, text: str) -> tuple[Source | None, list[str]]:
    mistakes = Mistakes()
    table = read_yaml(text, mistakes)
    assert table is not None, mistakes.found
    around = Surroundings(folder, "pipelines:9092", mistakes)
    source = read_source("s", Fields(table, "sources.s", mistakes, {}), around)
    return source, [each.text() for each in mistakes.found]


def test_a_topic_has_the_pipelines_broker_unless_it_names_its_own(tmp_path: Path) -> None:
    source, mistakes = read(tmp_path, "topic: a, b\nstarting: latest\ngroup: g")
    assert mistakes == []
    assert source == TopicSource(
        name="s",
        mark=Mark(1),
        topics=("a", "b"),
        bootstrap="pipelines:9092",
        payload=Payload(),
        starting="latest",
        group="g",
        streaming=True,
    )
    source, _ = read(tmp_path, "topic: a\nbootstrap.servers: other:1")
    assert isinstance(source, TopicSource)
    assert source.bootstrap == "other:1"


def test_a_schema_comes_from_the_file_or_from_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "order.ddl").write_text("id bigint, at timestamp")
    source, mistakes = read(
        tmp_path, "pattern: o.*\nformat: json\nschema_file: order.ddl\nwatermark: at 1 minute"
    )
    assert mistakes == []
    assert isinstance(source, TopicSource)
    assert source.payload == Payload(
        format="json", schema="id bigint, at timestamp", schema_file=tmp_path / "order.ddl"
    )
    assert (source.pattern, source.watermark) == ("o.*", Watermark("at", 60_000))


def test_what_protoc_has_made_of_a_schema_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "order.desc").write_bytes(b"\xff\x00")
    source, mistakes = read(
        tmp_path, "topic: a\nformat: protobuf\nschema_file: order.desc\nmessage: shop.Order"
    )
    assert mistakes == []
    assert isinstance(source, TopicSource)
    assert (source.payload.schema, source.payload.message) == (None, "shop.Order")


@pytest.mark.parametrize("name, form", [
    ("a.csv", "csv"),
    ("a.JSONL", "json"),
    ("a.txt", "text"),
    ("folder/*.parquet", "parquet"),
])  # fmt: skip
def test_the_format_of_files_is_told_by_their_name(name: str, form: str, tmp_path: Path) -> None:
    source, mistakes = read(tmp_path, f"files: '{name}'")
    assert mistakes == []
    assert isinstance(source, FileSource)
    assert (source.format, source.path) == (form, str(tmp_path / name))


def test_paths_are_beside_the_file_and_urls_themselves(tmp_path: Path) -> None:
    around = Surroundings(tmp_path, "b:1", Mistakes())
    assert around.location("lake") == str(tmp_path / "lake")
    assert around.location("/lake") == "/lake"
    assert around.location("s3://bucket/x") == "s3a://bucket/x"
    assert around.location("hdfs://name/x") == "hdfs://name/x"


def test_an_archive_is_read_at_rest_unless_it_is_to_stream(tmp_path: Path) -> None:
    source, mistakes = read(tmp_path, "archive: s3://b/lake")
    assert (source, mistakes) == (ArchiveSource(name="s", mark=Mark(1), path="s3a://b/lake"), [])
    source, _ = read(tmp_path, "archive: lake\nstream: true")
    assert isinstance(source, ArchiveSource)
    assert source.streaming


def test_a_database_has_a_table_or_a_query_and_its_driver(tmp_path: Path) -> None:
    source, mistakes = read(
        tmp_path, "jdbc: jdbc:postgresql://db/x\ntable: t\nuser: u\noptions: {fetchsize: 5, user: v}"
    )
    assert mistakes == []
    assert isinstance(source, JdbcSource)
    assert source.options == {"driver": "org.postgresql.Driver", "user": "v", "fetchsize": "5"}
    assert not source.streaming


@pytest.mark.parametrize("text, words", [
    ("topic: a\nfiles: b", "topic and files together"),
    ("starting: earliest", "nothing says where the rows come from"),
    ("topic: ''", "'topic' is empty"),
    ("topic: a b", "'a b' is no topic's name"),
    ("topics: [a, ..]", "'..' is no topic's name"),
    ("topic: a\nstarting: yesterday", "starting cannot be 'yesterday'"),
    ("topic: a\nbootstrap.servers: 'b:1,c'", "'c' is not an address"),
    ("pattern: 'a('", "is no regular expression"),
    ("topic: a\nformat: json\nschema: a int\nschema_file: x", "schema and schema_file together"),
    ("topic: a\nformat: json\nschema_file: none.ddl", "schema_file none.ddl: No such file or directory"),
    ("topic: a\nschema: id int", "a schema has no use with format raw"),
    ("topic: a\nformat: avro\nschema: '{'", "not an Avro schema in JSON"),
    ("topic: a\nformat: protobuf\nschema: enum X {}", "it defines no message"),
    ("topic: a\nmessage: M", "'message' is for format protobuf only"),
    ("topic: a\ndead_letters: bad", "dead_letters with format raw, which always parses"),
    ("topic: a\nformat: json\nschema: a int\ndead_letters: a", "dead_letters is the topic that is read"),
    ("topic: a\nwatermark: tmestamp 1 s", "the watermark's column 'tmestamp' is not in the schema"),
    ("topic: a\noptions: {startingOffset: latest}", "startingOffset"),
    ("files: a.xls", "the format of a.xls is not clear from its name"),
    ("files: a\nformat: parket", "format cannot be 'parket'; did you mean 'parquet'?"),
    ("files: a.csv\nstream: true", "files read as a stream need a schema"),
    ("jdbc: jdbc:x:y\ntable: t\nquery: SELECT 1", "table and query together"),
    ("jdbc: 'x:y'\ntable: t", "'x:y' is no JDBC address"),
])  # fmt: skip
def test_what_is_wrong_with_a_source_is_said(text: str, words: str, tmp_path: Path) -> None:
    _, mistakes = read(tmp_path, text)
    assert any(words in each for each in mistakes), mistakes


def test_a_misspelt_kind_is_said_once(tmp_path: Path) -> None:
    source, mistakes = read(tmp_path, "topik: a")
    assert source is None
    assert len(mistakes) == 1
    assert "did you mean 'topic'?" in mistakes[0]


@pytest.mark.parametrize("text, wrong", [
    ("a:1, b:65535,[::1]:9092", []),
    ("a:0", ["a:0"]),
    ("a:65536,b:1", ["a:65536"]),
    ("a,b:c", ["a", "b:c"]),
    ("", [""]),
])  # fmt: skip
def test_each_address_that_is_none_is_named(text: str, wrong: list[str]) -> None:
    mistakes = Mistakes()
    check_bootstrap(text, Mark(1), "w", mistakes)
    assert [each.what for each in mistakes.found] == [f"w: {each!r} is not an address" for each in wrong]


@pytest.mark.parametrize("name, is_right", [
    ("a.b_c-D9", True),
    ("x" * 249, True),
    ("x" * 250, False),
    ("ä", False),
])  # fmt: skip
def test_names_of_topics_are_those_that_brokers_take(name: str, is_right: bool) -> None:
    mistakes = Mistakes()
    check_topic(name, Mark(1), "w", mistakes)
    assert (mistakes.found == []) is is_right
