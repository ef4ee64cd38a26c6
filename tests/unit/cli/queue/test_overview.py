"""What is put together about a queue, with and without brokers that tell more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.group import health, other_kinds
from millrace.cli.queue import overview
from millrace.core.ids import TopicPartition
from tests.unit.cli.fakes import ADDRESS
from tests.unit.cli.queue.conftest import KnownGroup
from tests.unit.cli.queue.fakes import letter


def report(**partition: Any) -> dict[str, Any]:
    told = {"topic": "t", "partition": 0, "in_flight": 5, "dead_letters_waiting": 0, "is_delivering": True}
    return {"counts": {"redelivered": 2, "accepted": 3}, "partitions": [told | partition]}


def test_a_queue_is_known_without_http(known: KnownGroup) -> None:
    known.settings = {"errors.deadletterqueue.topic.name": "dlq"}
    known.cluster.add(TopicPartition("dlq", 0), letter(0), letter(1))
    found = overview.look(ADDRESS, "g", ())
    assert (found.depth, found.oldest_ms, found.in_flight, found.dead_letters) == (2, 1_000, None, 2)
    first, second = found.partitions
    assert (first.start, first.end, first.depth) == (1, 3, 2)
    assert (second.start, second.depth, second.oldest_ms) == (None, None, None)
    assert found.stopped == ""
    known.settings["errors.deadletterqueue.topic.name"] = "not made yet"
    assert overview.look(ADDRESS, "g", ()).dead_letters == 0
    with pytest.raises(RequestFailed, match="no such share group: h"):
        overview.look(ADDRESS, "h", ())


def test_brokers_add_what_is_in_flight_and_what_they_counted(
    known: KnownGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"http://a": report(), "http://b": report(partition=1, in_flight=1), "http://c": None}
    monkeypatch.setattr(health, "fetched", lambda url, *_: answers[url])
    found = overview.look(ADDRESS, "g", answers)
    assert (found.in_flight, found.counts) == (6, {"redelivered": 4, "accepted": 6})
    assert found.stopped == ""
    answers["http://b"] = report(partition=1, is_delivering=False)
    assert overview.look(ADDRESS, "g", answers).stopped == "stopped by its dead letters"
    known.settings = {"share.delivery.pause": "true"}
    assert overview.look(ADDRESS, "g", answers).stopped == "paused"


def test_share_groups_and_http_ports_are_found(known: KnownGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [SimpleNamespace(group=name, type=kind) for name, kind in (("b", "share"), ("s", "streams"))]
    monkeypatch.setattr(
        other_kinds, "list_others", lambda _: [*listed, SimpleNamespace(group="a", type="share")]
    )
    assert overview.names(ADDRESS) == ["a", "b"]
    monkeypatch.setattr(health, "url_of", lambda _admin, _address, node_id, host: f"http://{host}:{node_id}")
    assert overview.urls(cast("Any", None), ADDRESS) == ["http://h:1"]
    assert known.altered == {}
