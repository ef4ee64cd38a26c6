"""What a pipeline's parts are made of is told from the tables that its queries read."""

from __future__ import annotations

from pathlib import Path

from millrace.pipeline.declared.language.mistakes import Mark
from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    FileSource,
    JdbcSource,
    Payload,
    Pipeline,
    Source,
    Step,
    TopicSink,
    TopicSource,
    Trigger,
    Watermark,
)
from millrace.pipeline.declared.language.sql_text import Query

PLACE = Mark(1)


def step(name: str, *tables: str, watermark: Watermark | None = None) -> Step:
    query = Query(tables=dict.fromkeys(tables, PLACE))
    return Step(name=name, mark=PLACE, sql="", sql_mark=PLACE, query=query, watermark=watermark)


def topic(name: str, *topics: str, pattern: str | None = None) -> TopicSource:
    return TopicSource(
        name=name, mark=PLACE, topics=topics, pattern=pattern, bootstrap="b:1", payload=Payload()
    )


def pipeline(*steps: Step) -> Pipeline:
    sources: dict[str, Source] = {
        "orders": topic("orders", "orders"),
        "People": FileSource(name="People", mark=PLACE, path="p.csv", format="csv"),
        "rates": JdbcSource(name="rates", mark=PLACE, url="jdbc:x:y", table="rates"),
    }
    return Pipeline(
        name="p",
        path=Path("p.yaml"),
        sources=sources,
        functions={},
        steps={each.name: each for each in steps},
        sinks={"s": ConsoleSink(name="s", mark=PLACE, view=steps[-1].name)},
    )


def test_upstream_names_each_part_once_in_the_order_of_the_queries() -> None:
    found = pipeline(step("a", "orders", "people"), step("b", "ORDERS", "rates"), step("c", "a", "b"))
    assert found.inputs_of("a") == ["orders", "People"]
    assert found.inputs_of("orders") == []
    assert found.upstream("c") == ["c", "a", "orders", "People", "b", "rates"]
    assert [each.name for each in found.sources_of("b")] == ["orders", "rates"]


def test_tables_that_are_not_the_pipelines_are_no_inputs() -> None:
    assert pipeline(step("a", "elsewhere", "rates")).upstream("a") == ["a", "rates"]


def test_a_view_streams_if_anything_below_it_does() -> None:
    found = pipeline(step("still", "people", "rates"), step("moving", "still", "orders"))
    assert not found.is_streaming("still")
    assert found.is_streaming("moving")
    assert found.is_streaming("orders")


def test_a_watermark_counts_for_all_that_lies_behind_it() -> None:
    late = Watermark("at", 1000)
    found = pipeline(step("a", "orders", watermark=late), step("b", "a"), step("c", "orders"))
    assert (found.has_watermark("b"), found.has_watermark("c")) == (True, False)


def test_parts_are_described_in_words() -> None:
    assert topic("x", "a").what == "topic a"
    assert topic("x", "b", "a").what == "topics b, a"
    assert topic("x", pattern="o.*").what == "topics like o.*"
    assert str(Trigger("every", 1500)) == "every 1.5 s"
    assert str(Trigger("available-now")) == "available-now"
    sink = TopicSink(name="s", mark=PLACE, view="v", topic=None, bootstrap="b:1", payload=Payload())
    assert sink.what == "the topic in the column topic"


def test_the_order_of_topics_does_not_change_which_source_it_is() -> None:
    assert topic("x", "b", "a").identity() == topic("y", "a", "b").identity() == "topics a, b"
    assert topic("x", pattern="a").identity() != topic("x", "a").identity()
