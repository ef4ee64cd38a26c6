"""`millrace queue` as it is typed: what it prints, what it asks, and what it refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millrace.cli import clients
from millrace.cli.group import health
from millrace.cli.queue import letters, overview
from millrace.cli.queue import redrive as driving
from millrace.cli.queue.commands import CAUSES, COMMAND
from millrace.core.ids import TopicPartition
from tests.unit.cli.queue.conftest import KnownGroup
from tests.unit.cli.queue.fakes import letter


@pytest.fixture(autouse=True)
def no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "admin_client", lambda _: None)
    monkeypatch.setattr(overview, "urls", lambda *_: ["http://a"])
    monkeypatch.setattr(overview, "names", lambda _: ["g"])
    told = {"topic": "t", "partition": 0, "in_flight": 5, "dead_letters_waiting": 0, "is_delivering": True}
    monkeypatch.setattr(health, "fetched", lambda *_: {"counts": {"redelivered": 2}, "partitions": [told]})


def typed(*words: str, **more: Any) -> Result:
    return CliRunner().invoke(COMMAND, words, **more)


def test_queues_are_listed(known: KnownGroup) -> None:
    heading, row = typed("list").stdout.splitlines()
    assert "OLDEST (S)  IN FLIGHT  REDELIVERED  DEAD LETTERS" in heading
    cells = row.split()
    assert (cells[:4], cells[5:]) == (["g", "Stable", "0", "2"], ["5", "2", "-"])
    known.settings = {"share.delivery.pause": "true"}
    document = json.loads(typed("list", "--json").stdout)
    assert (document["depth"], document["stopped"], document["counts"]) == (2, "paused", {"redelivered": 2})


def test_a_queue_is_described(known: KnownGroup) -> None:
    known.members = [
        SimpleNamespace(member_id="m", client_id="c", client_host="/h", subscribed_topic_names=["t"])
    ]
    known.settings = {"share.order": "key"}
    text = typed("describe", "g").stdout
    for line in ("Delivery:      on", "Depth:         2 messages", "Redelivered:   2"):
        assert line in text
    assert "share.order  key" in text
    document = json.loads(typed("describe", "g", "--json").stdout)
    assert document["members"] == [{"member": "m", "client": "c", "host": "h", "topics": ["t"]}]
    assert [each["in_flight"] for each in document["partitions"]] == [5, None]
    known.members, known.settings = [], {}
    text = typed("describe", "g").stdout
    assert "no members" in text
    assert "all settings are at their defaults" in text


def test_a_peek_prints_messages(known: KnownGroup) -> None:
    first, second = typed("peek", "g").stdout.splitlines()
    assert first.split("\t") == ["t", "1970-01-01T00:00:01.000Z", "0:1", "", "k", "1"]
    assert json.loads(typed("peek", "g", "--json", "-n", "1").stdout)["value"] == "1"
    assert second.endswith("2")
    assert known.altered == {}


def test_a_purge_wants_to_be_confirmed(known: KnownGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "say --yes" in typed("purge", "g").stderr
    assert known.altered == {}
    monkeypatch.setattr(
        "millrace.cli.queue.commands.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    assert typed("purge", "g", input="x\n").exit_code == 1
    assert known.altered == {}
    assert "passed over 2 messages of g" in typed("purge", "g", input="g\n").stdout
    assert known.altered == {("t", 0): 3, ("t", 1): 3}


def test_a_group_is_paused_and_resumed(known: KnownGroup) -> None:
    assert typed("pause", "g").stdout == "paused g\n"
    assert known.settings == {"share.delivery.pause": "true"}
    assert typed("resume", "g").stdout == "resumed g\n"
    assert known.settings == {}
    assert isinstance(typed("pause", "h").exception, clients.RequestFailed)


def test_dead_letters_are_counted(known: KnownGroup) -> None:
    known.settings = {"errors.deadletterqueue.topic.name": "dlq"}
    known.cluster.add(TopicPartition("dlq", 0), letter(0), letter(1), letter(2, group="other"))
    _, row = typed("dead-letters", "g").stdout.splitlines()
    assert row.split()[:4] == ["g", "jobs", "rejected", "2"]
    assert typed("dead-letters", "g", "--cause", "expired", "--json").stdout == ""
    assert len(typed("dead-letters", "g", "--all-groups", "--json").stdout.splitlines()) == 2
    known.settings = {}
    assert "name one with --topic" in typed("dead-letters", "g").stderr


def test_a_redrive_counts_first_and_then_does_it(known: KnownGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    known.cluster.add(TopicPartition("dlq", 0), letter(0), letter(1))
    monkeypatch.setattr(driving, "read_marker", lambda *_: None)
    asked: list[driving.Redrive] = []

    def drive(_client: object, wanted: driving.Redrive, done: Any, **_more: Any) -> int:
        asked.append(wanted)
        done(2)
        return 2

    monkeypatch.setattr(driving, "redrive", drive)
    words = ("redrive", "g", "--topic", "dlq")
    assert typed(*words, "--dry-run").stdout == "2 dead letters would go to where they came from\n"
    assert asked == []
    told = typed(*words, "--to", "else", "--rate", "5", "--cause", "expired").stderr
    assert told == "2 dead letters of g went to else\n"
    assert asked == [driving.Redrive(group="g", topic="dlq", causes=("expired",), target="else", rate=5)]
    assert isinstance(typed(*words, "--to", "dlq").exception, clients.RequestFailed)


def test_the_causes_are_those_of_letters() -> None:
    assert letters.CAUSE_NAMES == CAUSES
