"""Delayed messages are cancelled and replaced by records with headers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import pytest
from confluent_kafka import KafkaError

from millrace.cli import clients, settings
from millrace.cli.delayed import writing
from millrace.cli.delayed.writing import DelayedId, Replacement
from tests.unit.cli.fakes import ADDRESS


class FakeProducer:
    def __init__(self, errors: dict[int, KafkaError]) -> None:
        self._errors = errors
        self.records: list[tuple[Any, ...]] = []
        self._told: list[Callable[[Any, Any], None]] = []

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **record: Any) -> None:
        self.records.append((topic, record["partition"], record["key"], record["value"], record["headers"]))
        self._told.append(on_delivery)

    def poll(self, _timeout: float) -> None:
        pass

    def flush(self, _timeout: float) -> None:
        for number, told in enumerate(self._told):
            told(self._errors.get(number), SimpleNamespace(offset=lambda number=number: 70 + number))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    fake = FakeProducer({})
    monkeypatch.setattr(clients, "producer", lambda *_: fake)
    return fake


def test_a_cancellation_names_the_offset(producer: FakeProducer) -> None:
    assert writing.cancel(ADDRESS, [DelayedId("t", 3, 42)]) == []
    assert producer.records == [("t", 3, None, None, [("millrace-delay-cancel", b"42")])]


def test_what_is_refused_is_told_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProducer({1: KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)})
    monkeypatch.setattr(clients, "producer", lambda *_: fake)
    (failure,) = writing.cancel(ADDRESS, [DelayedId("t", 0, 1), DelayedId("t", 0, 2)])
    assert failure.startswith("t:0:2: ")


def test_a_replacement_has_its_time_and_the_headers_of_the_message(producer: FakeProducer) -> None:
    new = writing.replace(ADDRESS, DelayedId("t", 3, 42), Replacement(9_000, b"k", b"v", [("a", b"b")]))
    assert new == DelayedId("t", 3, 70)
    headers = [("a", b"b"), ("millrace-deliver-at", b"9000"), ("millrace-delay-replace", b"42")]
    assert producer.records == [("t", 3, b"k", b"v", headers)]


def test_a_replacement_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProducer({0: KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)})
    monkeypatch.setattr(clients, "producer", lambda *_: fake)
    with pytest.raises(clients.RequestFailed, match="t:3:42: "):
        writing.replace(ADDRESS, DelayedId("t", 3, 42), Replacement(9_000, None, b"v", []))


@pytest.mark.parametrize("word", ["t", "t:0", ":0:1", "t:x:1", "t:0:-1"])
def test_an_id_has_three_parts(word: str) -> None:
    with pytest.raises(click.BadParameter, match="TOPIC:PARTITION:OFFSET"):
        writing.parse_id(word)
    assert str(writing.parse_id("t:0:1")) == "t:0:1"


def test_topics_that_take_no_delayed_messages_get_no_such_records(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"t": "true", "u": "false"}
    monkeypatch.setattr(clients, "admin_client", lambda _: None)
    monkeypatch.setattr(settings, "topic_resource", lambda name: name)
    monkeypatch.setattr(
        settings,
        "describe",
        lambda _admin, _address, name: [SimpleNamespace(name="delayed.delivery.enable", value=values[name])],
    )
    writing.require_delayed(ADDRESS, ["t"])
    with pytest.raises(clients.RequestFailed, match=r"u takes no delayed messages"):
        writing.require_delayed(ADDRESS, ["t", "u"])
