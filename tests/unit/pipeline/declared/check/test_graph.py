"""Rules between the parts of a pipeline: what reads what, in which order, and what streams allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.declared.check.graph import (
    check_graph,
    check_names,
    check_tables,
    check_view,
    in_order,
    label,
)
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    JdbcSink,
    Payload,
    Pipeline,
    Sink,
    Step,
    TableSink,
    TopicSink,
    TopicSource,
    Watermark,
)
from millrace.pipeline.declared.language.sql_text import Query

LATE = Watermark("at", 1000)


def step(
    name: str,
    *tables: str,
    line: int = 1,
    watermark: Watermark | None = None,
    deduplicate: tuple[str, ...] = (),
    aggregates: bool = False,
    joins: int = 0,
) -> Step:
    query = Query(tables=dict.fromkeys(tables, Mark(line)), aggregates=aggregates, joins=joins)
    return Step(
        name=name,
        mark=Mark(line),
        sql="",
        sql_mark=Mark(line),
        query=query,
        watermark=watermark,
        deduplicate=deduplicate,
    )


def source(name: str, *, line: int = 1, streaming: bool = True) -> TopicSource:
    return TopicSource(
        name=name,
        mark=Mark(line),
        topics=(name,),
        bootstrap="b:1",
        payload=Payload(),
        streaming=streaming,
    )


def graph(sources: list[TopicSource], steps: list[Step], sinks: list[Sink]) -> list[tuple[str, bool]]:
    """What is said about such a pipeline, and whether it is only a warning."""
    mistakes = Mistakes()
    check_graph(
        Pipeline(
            name="p",
            path=Path("p.yaml"),
            sources={each.name: each for each in sources},
            functions={},
            steps={each.name: each for each in steps},
            sinks={each.name: each for each in sinks},
        ),
        mistakes,
    )
    return [(each.what, each.warning) for each in mistakes.in_order()]


def console(view: str, mode: str = "append") -> ConsoleSink:
    return ConsoleSink(name="out", mark=Mark(9), view=view, mode=mode)


def test_a_name_is_there_once_whatever_its_case() -> None:
    mistakes = Mistakes()
    check_names({"orders": source("orders"), "broken": None}, {"Orders": step("Orders", line=4)}, mistakes)
    (found,) = mistakes.found
    assert (found.mark.line, found.what.partition(":")[0]) == (4, "'Orders' has the name of 'orders'")


def test_a_table_that_is_no_part_of_the_pipeline_is_said_where_it_is_read() -> None:
    mistakes = Mistakes()
    steps = {"a": step("a", "ORDERS", "ordres", line=6), "sink:x": step("sink:x", "nowhere", line=8)}
    check_tables(["orders", "a", "sink:x"], steps, mistakes)
    first, second = mistakes.found
    assert (first.what, first.meant, first.allowed) == (
        "steps.a: there is no source or step 'ordres'",
        "orders",
        "orders",
    )
    assert (second.what, second.mark.line) == ("sinks.x.sql: there is no source or step 'nowhere'", 8)


def test_a_sink_of_a_view_that_is_not_there_is_said_with_the_views() -> None:
    mistakes = Mistakes()
    check_view("out", "BIG", ["big", "sink:out"], Mark(2), mistakes)
    assert mistakes.found == []
    check_view("out", "bgi", ["big", "sink:out"], Mark(2), mistakes)
    assert mistakes.found[0].text() == (
        "sinks.out: there is no source or step 'bgi'; did you mean 'big'? allowed: big"
    )


@given(st.data())
def test_steps_that_read_no_circle_come_each_behind_those_it_reads(data: st.DataObject) -> None:
    names = [f"s{number}" for number in range(data.draw(st.integers(1, 6)))]
    steps = [
        step(name, *data.draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else ())
        for place, name in enumerate(names)
    ]
    mistakes = Mistakes()
    shuffled = data.draw(st.permutations(steps))
    ordered = list(in_order({each.name: each for each in shuffled}, mistakes))
    assert mistakes.found == []
    assert sorted(ordered) == sorted(names)
    for each in steps:
        assert all(ordered.index(table) < ordered.index(each.name) for table in each.query.tables)


def test_steps_that_read_each_other_are_said_as_the_circle_they_are() -> None:
    mistakes = Mistakes()
    steps = {"a": step("a", "B"), "b": step("b", "c"), "c": step("c", "b")}
    assert set(in_order(steps, mistakes)) == {"a", "b", "c"}
    assert [each.what for each in mistakes.found] == ["steps read each other in a circle: b -> c -> b"]


def test_a_sinks_own_query_is_named_by_the_sink() -> None:
    assert (label("big"), label("sink:out")) == ("steps.big", "sinks.out.sql")


def test_a_pipeline_that_fits_together_has_no_mistakes() -> None:
    steps = [step("big", "orders", watermark=LATE, aggregates=True)]
    assert graph([source("orders")], steps, [console("big")]) == []


def test_append_of_an_aggregation_needs_a_watermark() -> None:
    counted = step("counted", "orders", aggregates=True)
    (found,) = graph([source("orders")], [counted], [console("counted")])
    assert "mode append of an aggregation (in steps.counted) needs a watermark" in found[0]
    assert graph([source("orders")], [counted], [console("counted", "update")]) == []
    assert graph([source("orders", streaming=False)], [counted], [console("counted")]) == []


def test_complete_needs_an_aggregation_in_a_stream() -> None:
    (found,) = graph([source("orders")], [], [console("orders", "complete")])
    assert "mode complete needs an aggregation" in found[0]
    assert graph([source("orders", streaming=False)], [], [console("orders", "complete")]) == []


def topic_sink(topic: str) -> TopicSink:
    return TopicSink(name="out", mark=Mark(9), view="orders", topic=topic, bootstrap="b:1", payload=Payload())


def test_a_stream_must_not_write_to_the_topic_it_reads() -> None:
    ((what, _),) = graph([source("orders")], [], [topic_sink("orders")])
    assert what.startswith("sinks.out: writes to the topic 'orders' that sources.orders reads")
    assert graph([source("orders")], [], [topic_sink("others")]) == []
    assert graph([source("orders", streaming=False)], [], [topic_sink("orders")]) == []


@pytest.mark.parametrize("one, other", [
    (
        TableSink(name="a", mark=Mark(1), view="orders", format="delta", path="/lake/x"),
        TableSink(name="b", mark=Mark(2), view="orders", format="parquet", path="/lake/x/"),
    ),
    (
        JdbcSink(name="a", mark=Mark(1), view="orders", url="jdbc:x:y", table="T"),
        JdbcSink(name="b", mark=Mark(2), view="orders", url="jdbc:x:y", table="t"),
    ),
])  # fmt: skip
def test_two_sinks_have_places_of_their_own(one: Sink, other: Sink) -> None:
    ((what, _),) = graph([source("orders")], [], [one, other])
    assert what == f"sinks.b: writes to {other.what}, as sinks.a does"


def test_parts_that_nobody_uses_are_warned_of() -> None:
    found = graph([source("orders"), source("spare", line=3)], [step("idle", "orders")], [console("orders")])
    assert found == [
        ("steps.idle: no sink uses this step", True),
        ("sources.spare: no sink uses this source", True),
    ]


def test_what_remembers_every_row_for_ever_is_warned_of() -> None:
    once = step("once", "orders", deduplicate=("id",))
    joined = step("joined", "orders", "people", joins=1)
    sources = [source("orders"), source("people")]
    ((what, is_warning),) = graph(sources[:1], [once], [console("once")])
    assert (what[:42], is_warning) == ("steps.once: deduplication without a waterm", True)
    ((what, _),) = graph(sources, [joined], [console("joined")])
    assert what.startswith("steps.joined: a join of streams without a watermark")
    assert graph([sources[0], source("people", streaming=False)], [joined], [console("joined")]) == []


def test_a_watermark_where_nothing_streams_is_warned_of() -> None:
    found = graph([source("orders", streaming=False)], [step("a", "orders", watermark=LATE)], [console("a")])
    assert found == [("steps.a: a watermark has no effect: nothing here is a stream", True)]


def test_parts_that_rest_on_a_mistake_are_left_alone() -> None:
    broken = step("broken", "missing", deduplicate=("id",), aggregates=True)
    assert graph([source("orders")], [broken, step("b", "orders", "broken")], [console("b")]) == []
