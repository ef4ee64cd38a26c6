"""Declared topics in the words of the data source."""

from __future__ import annotations

import dataclasses

import pytest

from millrace.pipeline.declared.language.mistakes import Mark
from millrace.pipeline.declared.language.model import Payload, TopicSink, TopicSource
from millrace.pipeline.declared.language.topic_options import (
    dead_letter_options,
    sink_options,
    source_options,
)

SOURCE = TopicSource(
    name="s", mark=Mark(1), topics=("a", "b"), bootstrap="b:1", payload=Payload(), dead_letters="bad"
)
SINK = TopicSink(name="t", mark=Mark(1), view="v", topic="out", bootstrap="b:2", payload=Payload())


def test_a_source_subscribes_to_its_topics_or_its_pattern() -> None:
    assert source_options(SOURCE) == {
        "bootstrap.servers": "b:1",
        "subscribe": "a,b",
        "startingOffsets": "earliest",
    }
    found = source_options(dataclasses.replace(SOURCE, topics=(), pattern="a.*", group="g"))
    assert (found["subscribePattern"], found["commitGroup"]) == ("a.*", "g")
    assert "subscribe" not in found


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00", "2026-01-31T08:00:00Z", "2026-01-31T09:00:00+01:00"])
def test_a_time_without_a_zone_is_one_of_utc(text: str) -> None:
    found = source_options(dataclasses.replace(SOURCE, starting=text))
    assert found["startingTimestamp"] == "1769846400000"
    assert found["startingOffsetsByTimestampStrategy"] == "latest"
    assert "startingOffsets" not in found


def test_offsets_go_to_the_data_source_as_they_are() -> None:
    text = '{"a":{"0":42}}'
    assert source_options(dataclasses.replace(SOURCE, starting=text))["startingOffsets"] == text


def test_options_overrule_what_the_other_keys_say() -> None:
    given = {"StartingTimestamp": "5", "subscribe": "c"}
    found = source_options(dataclasses.replace(SOURCE, options=given))
    assert found == {"bootstrap.servers": "b:1", "subscribe": "c", "StartingTimestamp": "5"}


def test_a_sink_names_its_delivery_and_its_topic_unless_rows_do() -> None:
    expected = {"bootstrap.servers": "b:2", "delivery": "exactly_once", "topic": "out", "x": "1"}
    assert sink_options(dataclasses.replace(SINK, options={"x": "1"})) == expected
    assert "topic" not in sink_options(dataclasses.replace(SINK, topic=None))


def test_dead_letters_take_only_the_security_of_their_source_with_them() -> None:
    given = {"sasl.username": "u", "kafka.ssl.ca.location": "ca", "maxOffsetsPerTrigger": "5", "topic": "x"}
    assert dead_letter_options(dataclasses.replace(SOURCE, options=given)) == {
        "sasl.username": "u",
        "kafka.ssl.ca.location": "ca",
        "bootstrap.servers": "b:1",
        "topic": "bad",
    }
