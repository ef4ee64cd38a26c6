"""How each kind of sink is written: the words that Spark's writers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.pipeline.declared.language.mistakes import Mark
from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    Payload,
    Sink,
    TableSink,
    TopicSink,
    TopicSource,
    Trigger,
)
from millrace.pipeline.declared.run.sinks import (
    start_dead_letters,
    start_stream,
    write_dead_letters_once,
    write_once,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE = Mark(1)
RAW = Payload(format="raw")


class Frame:
    """A frame and its writers in one, which keep every call."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.write = self.writeStream = self
        self.sparkSession = self.sparkContext = self

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Frame:
            if name == "option":
                self.settings[arguments[0]] = arguments[1]
            elif name == "options":
                self.settings |= named
            else:
                self.calls[name] = named or (arguments[0] if len(arguments) == 1 else arguments)
            return self

        return call

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802 - Spark's name
        return "query-id"

    def frame(self) -> DataFrame:
        return cast("DataFrame", self)


def topic(mode: str = "append", delivery: str = "exactly-once", trigger: Trigger | None = None) -> TopicSink:
    return TopicSink(
        name="out",
        mark=PLACE,
        view="v",
        mode=mode,
        topic="t",
        bootstrap="b:1",
        payload=RAW,
        delivery=delivery,
        trigger=trigger or Trigger(),
    )


def table(mode: str = "append") -> TableSink:
    return TableSink(
        name="out",
        mark=PLACE,
        view="v",
        mode=mode,
        format="delta",
        path="/lake",
        partition_by=("day",),
        options={"x": "1"},
    )


def started(sink: Sink) -> Frame:
    frame = Frame()
    start_stream(frame.frame(), sink, checkpoint="/state/out", pipeline="p")
    return frame


def written(sink: Sink) -> Frame:
    frame = Frame()
    write_once(frame.frame(), sink, job="p.out", version=7)
    return frame


@pytest.mark.parametrize("trigger, expected", [
    (Trigger(), {"processingTime": "0 seconds"}),
    (Trigger("every", 1500), {"processingTime": "1500 milliseconds"}),
    (Trigger("available-now"), {"availableNow": True}),
])  # fmt: skip
def test_a_stream_is_triggered_as_its_sink_says(trigger: Trigger, expected: dict[str, Any]) -> None:
    frame = started(topic(trigger=trigger))
    assert frame.calls["trigger"] == expected
    assert (frame.calls["queryName"], frame.calls["outputMode"]) == ("out", "append")
    assert frame.settings["checkpointLocation"] == "/state/out"


def test_a_topic_that_is_appended_to_is_written_by_the_data_source() -> None:
    frame = started(topic())
    assert frame.calls["format"] == "millrace"
    assert (frame.settings["topic"], frame.settings["delivery"]) == ("t", "exactly_once")


@pytest.mark.parametrize("delivery, marks", [
    ("exactly-once", {"txnAppId": "out-query-id", "txnVersion": "5"}),
    ("at-least-once", {}),
])  # fmt: skip
def test_rows_that_replace_others_come_in_numbered_batches(delivery: str, marks: dict[str, str]) -> None:
    write_batch = started(topic("update", delivery)).calls["foreachBatch"]
    batch = Frame()
    write_batch(batch, 5)
    assert {name: value for name, value in batch.settings.items() if name.startswith("txn")} == marks
    assert batch.calls["mode"] == "append"


def test_tables_are_started_at_their_place_in_partitions() -> None:
    frame = started(table())
    assert (frame.calls["format"], frame.calls["start"]) == ("delta", "/lake")
    assert (frame.calls["partitionBy"], frame.settings["x"]) == ("day", "1")


def test_the_console_shows_whole_rows_unless_told_otherwise() -> None:
    frame = started(ConsoleSink(name="out", mark=PLACE, view="v", rows=5))
    assert (frame.settings["numRows"], frame.settings["truncate"]) == (5, "false")


@pytest.mark.parametrize("mode, written_as", [("append", "append"), ("complete", "overwrite")])
def test_a_table_that_is_written_once_is_replaced_in_mode_complete(mode: str, written_as: str) -> None:
    frame = written(table(mode))
    assert (frame.calls["mode"], frame.calls["save"]) == (written_as, "/lake")


def test_a_topic_that_is_written_once_remembers_job_and_version() -> None:
    assert written(topic()).settings["txnVersion"] == "7"
    assert "txnAppId" not in written(topic(delivery="at-least-once")).settings


def test_dead_letters_go_to_their_topic_by_a_query_of_their_own() -> None:
    source = TopicSource(
        name="orders", mark=PLACE, topics=("a",), bootstrap="b:1", payload=RAW, dead_letters="bad"
    )
    frame = Frame()
    start_dead_letters(frame.frame(), source, checkpoint="/state/x", trigger=Trigger("every", 10))
    assert frame.calls["queryName"] == "orders.dead_letters"
    assert frame.settings["topic"] == "bad"
    once = Frame()
    write_dead_letters_once(once.frame(), source, job="p.orders", version=3)
    assert (once.settings["txnAppId"], once.settings["txnVersion"]) == ("p.orders", "3")
