"""`millrace delayed`: what is shown, and what is refused in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from millrace.cli.delayed import figures, reading, writing
from millrace.cli.delayed.commands import delayed
from millrace.queues.delayed.codec import StoredMessage
from tests.unit.queues.delayed.messages import TOPIC_ID, record, stored


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages = [
            stored(record(1, 60_000)),
            stored(record(2, 120_000)),
            stored(record(3, 180_000)),
        ]
        self.end_ms: int | None = None
        self.status: figures.DelayedStatus | None = None
        self.written: list[Any] = []
        self.failures: list[str] = []
        monkeypatch.setattr(reading, "topic_names", lambda _: {TOPIC_ID: "reminders"})
        monkeypatch.setattr(reading, "read_store", self._read)
        monkeypatch.setattr(reading, "read_first", lambda address, wanted, _: self._read(address, wanted))
        monkeypatch.setattr(writing, "require_delayed", lambda _, topics: self.written.append(topics))
        monkeypatch.setattr(writing, "cancel", self._cancel)
        monkeypatch.setattr(writing, "replace", self._replace)
        monkeypatch.setattr(figures, "urls_of", lambda _: ["http://a"])
        monkeypatch.setattr(figures, "status_at", lambda _: self.status)
        monkeypatch.setattr(time, "time", lambda: 1_000.0)

    def _read(self, _address: object, wanted: Callable[[StoredMessage], bool]) -> reading.Found:
        return reading.Found(list(filter(wanted, self.messages)), len(self.messages), self.end_ms)

    def _cancel(self, _address: object, ids: list[writing.DelayedId]) -> list[str]:
        self.written += ids
        return self.failures

    def _replace(
        self, _address: object, old: writing.DelayedId, by: writing.Replacement
    ) -> writing.DelayedId:
        self.written += [old, by]
        return old._replace(offset=99)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def run(*words: str) -> Result:
    return CliRunner().invoke(delayed, words)


@pytest.mark.usefixtures("world")
def test_messages_are_listed_with_their_ids_and_times() -> None:
    lines = run("list").output.splitlines()
    assert lines[0].split()[:3] == ["ID", "DUE", "PRODUCED"]
    assert [line.split()[0] for line in lines[1:]] == ["reminders:0:1", "reminders:0:2", "reminders:0:3"]
    assert "1970-01-01" in lines[1]
    (found,) = map(orjson.loads, run("list", "--json", "--limit", "1").stdout.splitlines())
    assert (found["id"], found["due_ms"], found["topic"]) == ("reminders:0:1", 60_000, "reminders")


@pytest.mark.usefixtures("world")
def test_a_list_is_of_a_topic_and_a_stretch_of_time() -> None:
    assert len(run("list", "-t", "other").output.splitlines()) == 1
    words = ["--due-after", "1970-01-01T00:02", "--due-before", "1970-01-01T00:03"]
    lines = run("list", "-t", "reminders", *words).output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["reminders:0:2"]
    assert "'--due-after'" in run("list", "--due-after", "soon").output


def test_what_is_left_out_is_said(world: World) -> None:
    assert "there are more than these 2" in run("list", "--limit", "2").stderr
    world.end_ms = 500_000
    assert "there are more than these 3" in run("list").stderr


def test_messages_are_cancelled_by_id(world: World) -> None:
    assert run("cancel", "t:0:1", "t:0:1", "u:2:7").output == "cancelled 2 of 2\n"
    assert world.written == [["t", "u"], ("t", 0, 1), ("u", 2, 7)]
    world.failures = ["t:0:1: no"]
    failed = run("cancel", "t:0:1")
    assert failed.exit_code == 1
    assert "t:0:1: no" in failed.output
    assert "TOPIC:PARTITION:OFFSET" in run("cancel", "7").output


def test_a_message_is_replaced_by_another(world: World) -> None:
    answer = run("replace", "t:0:1", "--in", "2s", "--value", "v", "--key", "k", "-H", "a=b")
    assert answer.output == "t:0:99 takes the place of t:0:1\n"
    assert world.written[1:] == [("t", 0, 1), (1_002_000, b"k", b"v", [("a", b"b")])]


def test_without_a_value_the_message_itself_gets_another_time(world: World) -> None:
    answer = run("replace", "reminders:0:2", "--at", "2030-01-01T00:00:00Z", "--json")
    assert orjson.loads(answer.output)["id"] == "reminders:0:99"
    due_ms, key, value, headers = world.written[-1]
    original = record(2)
    assert (due_ms, key, value) == (1_893_456_000_000, original.key, original.value)
    assert tuple(headers) == original.headers
    missing = run("replace", "reminders:0:77", "--in", "1m")
    assert "does not wait" in str(missing.exception)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "words, said",
    [
        (["replace", "t:0:1"], "either --at or --in"),
        (["replace", "t:0:1", "--at", "2030-01-01", "--in", "1m"], "either --at or --in"),
        (["replace", "t:0:1", "--in", "1m", "--key", "k"], "need --value"),
        (["replace", "t:0:1", "--in", "soon"], "'--in'"),
    ],
)
def test_wrong_usage_is_said(words: list[str], said: str) -> None:
    answer = run(*words)
    assert (answer.exit_code, said in answer.output) == (2, True)


def test_status_is_from_the_brokers_or_from_the_store(world: World) -> None:
    assert orjson.loads(run("status", "--json").output) == {"pending": 3, "next_due_ms": 60_000}
    world.status = figures.DelayedStatus(7, None, 5, 1, 0, (0.1, None))
    document = orjson.loads(run("status", "--json").output)
    assert (document["pending"], document["late_p50_at_most_s"], document["late_p99_at_most_s"]) == (
        7,
        0.1,
        None,
    )
    assert "pending" in run("status").output
