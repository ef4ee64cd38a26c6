"""`millrace topic`: what is asked of a broker, what is shown, and what counts as a failure."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError

from millrace.cli import clients, settings
from millrace.cli.settings import Setting
from millrace.cli.topic import topic
from tests.unit.cli.fakes import done, failed


def partition(number: int, *, leader: int = 1) -> SimpleNamespace:
    return SimpleNamespace(id=number, leader=leader, replicas=[1, 2], isrs=[1] if leader >= 0 else [])


class Admin:
    def __init__(self) -> None:
        self.outcomes: dict[str, Future[Any]] = {}
        self.created: list[Any] = []
        self.asked_bounds: list[list[int]] = []
        self.topics = {
            "orders": SimpleNamespace(
                topic="orders", partitions={1: partition(1, leader=-1), 0: partition(0)}
            ),
            "__consumer_offsets": SimpleNamespace(topic="__consumer_offsets", partitions={}),
        }

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics)

    def create_topics(self, wanted: list[Any], operation_timeout: float) -> dict[str, Future[Any]]:
        self.created += wanted
        return {each.topic: self.outcomes.get(each.topic, done()) for each in wanted}

    def delete_topics(self, wanted: list[str], operation_timeout: float) -> dict[str, Future[Any]]:
        return {name: self.outcomes.get(name, done()) for name in wanted}

    def create_partitions(self, wanted: list[Any]) -> dict[str, Future[Any]]:
        self.created += wanted
        return {each.topic: done() for each in wanted}

    def list_offsets(self, wanted: dict[Any, Any]) -> dict[Any, Future[Any]]:
        self.asked_bounds.append([key.partition for key in wanted])
        # First the start is asked for, then the end.
        bound = 10 if len(self.asked_bounds) % 2 else 15
        return {key: done(SimpleNamespace(offset=bound)) for key in wanted}

    def describe_topics(self, _names: object) -> dict[str, Future[Any]]:
        return {"orders": done(SimpleNamespace(topic_id="the-id"))}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    fake = Admin()
    own = Setting(name="retention.ms", value="5", source="DYNAMIC_TOPIC", read_only=False, sensitive=False)
    default = Setting(name="segment.ms", value="6", source="DEFAULT", read_only=False, sensitive=False)
    monkeypatch.setattr(clients, "admin_client", lambda _address: fake)
    monkeypatch.setattr(settings, "describe", lambda *_: [own, default])
    return fake


def run(*words: str) -> Result:
    return CliRunner().invoke(topic, words)


def test_topics_are_created_once_each_with_the_brokers_defaults(admin: Admin) -> None:
    result = run("create", "a", "b", "a", "-c", "retention.ms=5")
    assert result.output == "created a\ncreated b\n"
    assert [(each.topic, each.num_partitions, each.replication_factor) for each in admin.created] == [
        ("a", -1, -1),
        ("b", -1, -1),
    ]
    assert admin.created[0].config == {"retention.ms": "5"}
    run("create", "c", "-p", "3", "-r", "2")
    assert (admin.created[-1].num_partitions, admin.created[-1].replication_factor) == (3, 2)


def test_a_topic_that_is_there_is_a_failure_unless_it_may_be(admin: Admin) -> None:
    admin.outcomes["a"] = failed(KafkaError.TOPIC_ALREADY_EXISTS, "exists")
    result = run("create", "a", "b")
    assert result.exit_code == 1
    assert "created b\n" in result.output
    assert "a: exists (TOPIC_ALREADY_EXISTS)" in result.output
    result = run("create", "a", "--if-not-exists")
    assert result.exit_code == 0
    assert result.output == "a: is there already\n"


def test_a_topic_that_is_not_there_cannot_be_deleted_unless_it_may_be(admin: Admin) -> None:
    admin.outcomes["a"] = failed(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown")
    assert run("delete", "a", "-y").exit_code == 1
    result = run("delete", "a", "b", "-y", "--if-exists")
    assert result.exit_code == 0
    assert result.output == "a: is not there\ndeleted b\n"


@pytest.mark.usefixtures("admin")
def test_internal_topics_are_listed_only_on_request() -> None:
    lines = [line.split() for line in run("list").output.splitlines()]
    assert lines == [["TOPIC", "PARTITIONS", "REPLICAS"], ["orders", "2", "2"]]
    found = [orjson.loads(line) for line in run("list", "--internal", "--json").output.splitlines()]
    assert [each["topic"] for each in found] == ["__consumer_offsets", "orders"]
    assert found[0]["replication_factor"] == 0


def test_a_topic_is_described_and_a_partition_without_leader_has_no_offsets(admin: Admin) -> None:
    description = orjson.loads(run("describe", "orders", "--json").output)
    assert (description["topic_id"], description["configs"]) == ("the-id", {"retention.ms": "5"})
    first, second = description["partitions"]
    assert (first["leader"], first["start_offset"], first["end_offset"]) == (1, 10, 15)
    assert (second["leader"], second["start_offset"], second["end_offset"]) == (None, None, None)
    # One without leader is not even asked about: the answer would never come.
    assert admin.asked_bounds == [[0], [0]]
    text = run("describe", "orders").output
    assert "Settings:  retention.ms=5\n" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["0", "1", "1,2", "1", "10", "15", "5"],
        ["1", "none", "1,2"],
    ]


@pytest.mark.usefixtures("admin")
def test_topics_that_are_not_there_are_told_before_any_is_described() -> None:
    result = run("describe", "orders", "x", "y")
    assert result.exit_code == 1
    assert result.output == "Error: no such topic: x, y\n"


def test_partitions_are_added_and_settings_changed(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    altered: list[tuple[object, ...]] = []
    monkeypatch.setattr(settings, "alter", lambda *call: altered.append((call[2].name, *call[3:])))
    result = run("alter", "orders", "-p", "6", "-c", "a=1", "--delete-config", "b")
    assert result.output == "orders has 6 partitions\nchanged the settings of orders\n"
    assert [(each.topic, each.new_total_count) for each in admin.created] == [("orders", 6)]
    assert altered == [("orders", {"a": "1"}, ("b",))]
