"""Kafka's own kafka-share-groups and kafka-configs, unchanged, with share groups."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest

from tests.compat.groups.test_consumer_groups_tool import parse_table
from tests.harness.java import JavaHost
from tests.harness.millrace import run_millrace
from tests.harness.process import BrokerProcess, eventually
from tests.harness.raw import FIND_COORDINATOR, RawConnection
from tests.harness.topics import create_topic, unique_name

pytestmark = [pytest.mark.java, pytest.mark.slow]

SHARES: Final = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
HEARTBEAT: Final = 76
RECORDS: Final = 10
Row = dict[str, str]


class Tools:
    def __init__(self, java: JavaHost, bootstrap: str) -> None:
        self._java = java
        self._bootstrap = bootstrap

    def run(self, *words: str, main: str = SHARES) -> str:
        """All that the tool has to say, its complaints included."""
        answer = self._java.tool(main, ["--bootstrap-server", self._bootstrap, *words])
        return str(answer["stdout"]) + str(answer["stderr"]) + (answer["thrown"] or "")

    def table(self, *words: str) -> list[Row]:
        return parse_table(self.run(*words))


class Member:
    """A member of a share group that sends heartbeats when it is told to, and reads nothing."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str) -> None:
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.group = group
        self._topic = topic
        self._connection = RawConnection((broker.host, broker.port))
        eventually(self._is_found)

    def _is_found(self) -> bool:
        asked = {"key_type": 0, "coordinator_keys": [self.group]}
        (found,) = self._connection.call(FIND_COORDINATOR, 6, asked)["coordinators"]
        return bool(found["error_code"] == "none")

    def beat(self, *, is_joining: bool = False) -> Any:
        answer = self._connection.call(
            HEARTBEAT,
            1,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": self.epoch,
                "rack_id": None,
                "subscribed_topic_names": [self._topic] if is_joining else None,
            },
        )
        assert answer["error_code"] == "none", answer
        self.epoch = answer["member_epoch"]
        return answer

    def leave(self) -> None:
        self.epoch = -1
        self.beat()
        self.close()

    def close(self) -> None:
        self._connection.socket.close()


@pytest.fixture(scope="module")
def tools(java: JavaHost, broker: BrokerProcess) -> Tools:
    return Tools(java, broker.bootstrap)


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    name = create_topic(broker.bootstrap, unique_name("shared"), 2)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(2 * RECORDS):
        producer.produce(name, value=b"x", partition=number % 2)
    assert producer.flush(20) == 0
    return name


@pytest.fixture
def member(broker: BrokerProcess, topic: str) -> Iterator[Member]:
    """The only member of a new group, with both partitions."""
    member = Member(broker, unique_name("share"), topic)

    def has_partitions() -> bool:
        answer = member.beat(is_joining=True)
        return bool(answer["assignment"] and answer["assignment"]["topic_partitions"])

    eventually(has_partitions)
    yield member
    member.close()


@pytest.mark.millrace_only
def test_a_new_group_has_its_partitions_with_its_first_heartbeat(broker: BrokerProcess, topic: str) -> None:
    member = Member(broker, unique_name("share"), topic)
    (assigned,) = member.beat(is_joining=True)["assignment"]["topic_partitions"]
    assert sorted(assigned["partitions"]) == [0, 1]
    assert member.beat()["assignment"] is None
    member.leave()


def test_a_group_with_members_is_listed_and_described(tools: Tools, member: Member, topic: str) -> None:
    group = member.group
    assert group in tools.run("--list").split()
    states = {row["GROUP"]: row["STATE"] for row in tools.table("--list", "--state")}
    assert states[group] == "Stable"
    (row,) = tools.table("--describe", "--group", group, "--members", "--verbose")
    assert (row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"]) == (member.member_id, "/127.0.0.1", "raw")
    assert (row["#PARTITIONS"], row["ASSIGNMENT"]) == ("2", f"{topic}:0,1")
    (row,) = tools.table("--describe", "--group", group, "--state")
    assert (row["STATE"], row["#MEMBERS"]) == ("Stable", "1")
    rows = tools.table("--describe", "--group", group, "--offsets")
    assert [(row["PARTITION"], row["START-OFFSET"], row["LAG"]) for row in rows] == [
        ("0", "-", "-"),
        ("1", "-", "-"),
    ]
    assert "is not EMPTY" in tools.run("--delete", "--group", group)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert "is not empty" in tools.run(*reset)


def test_the_offsets_of_an_empty_group_are_reset_and_deleted(
    tools: Tools, member: Member, topic: str
) -> None:
    group = member.group
    member.leave()

    def offsets() -> list[tuple[str, str, str]]:
        rows = tools.table("--describe", "--group", group, "--offsets")
        return sorted((row["PARTITION"], row["START-OFFSET"], row["LAG"]) for row in rows)

    scope = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    assert [row["NEW-OFFSET"] for row in tools.table(*scope, "--dry-run")] == ["0", "0"]
    assert offsets() == [("0", "-", "-"), ("1", "-", "-")], "a dry run changed something"
    tools.run(*scope, "--execute")
    assert offsets() == [("0", "0", str(RECORDS)), ("1", "0", str(RECORDS))]
    tools.run("--reset-offsets", "--group", group, "--all-topics", "--to-latest", "--execute")
    assert offsets() == [("0", str(RECORDS), "0"), ("1", str(RECORDS), "0")]
    assert "Successful" in tools.run("--delete-offsets", "--group", group, "--topic", topic)
    assert "has no offset information" in tools.run("--describe", "--group", group, "--offsets")
    assert "was successful" in tools.run("--delete", "--group", group)
    assert group not in tools.run("--list").split()


@pytest.mark.millrace_only
def test_the_settings_of_a_group_are_altered_and_described(tools: Tools) -> None:
    group = unique_name("share-settings")
    place = ("--entity-type", "groups", "--entity-name", group)
    changed = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "7200000",
        "share.retry.backoff.ms": "100",
        "errors.deadletterqueue.topic.name": "dead",
    }
    words = ",".join(f"{name}={value}" for name, value in changed.items())
    assert "Completed" in tools.run("--alter", *place, "--add-config", words, main=CONFIGS)
    described = tools.run("--describe", *place, main=CONFIGS)
    for name, value in changed.items():
        assert f"  {name}={value} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:" in described
    everything = tools.run("--describe", *place, "--all", main=CONFIGS)
    assert "DEFAULT_CONFIG:group.share.delivery.count.limit=5" in everything
    refused = tools.run("--alter", *place, "--add-config", "share.order=value", main=CONFIGS)
    assert "share.order=value: not allowed (allowed: none, key)" in refused
    deleted = ",".join(changed)
    assert "Completed" in tools.run("--alter", *place, "--delete-config", deleted, main=CONFIGS)
    assert "DYNAMIC_GROUP_CONFIG" not in tools.run("--describe", *place, main=CONFIGS)


@pytest.mark.millrace_only
def test_our_own_command_knows_share_groups(broker: BrokerProcess, member: Member, topic: str) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_millrace("group", *words, "-b", broker.bootstrap)

    group = member.group
    listed = [line.split() for line in run("list", "--type", "share").stdout.splitlines()]
    assert [group, "Stable", "share"] in listed
    shown = json.loads(run("describe", group, "--json").stdout)
    assert (shown["type"], shown["state"], shown["assignor"]) == ("share", "Stable", "simple")
    assert [len(each["partitions"]) for each in shown["members"]] == [2]
    assert "there is 1 member" in run("delete", group, "-y").stderr
    member.leave()
    reset = ("reset-offsets", group, "--all-topics", "--to-offset", "4")
    assert "nothing was changed" in run(*reset).stderr
    assert run(*reset, "--execute").returncode == 0
    shown = json.loads(run("describe", group, "--json").stdout)
    assert [(each["start_offset"], each["lag"]) for each in shown["partitions"]] == [(4, 6), (4, 6)]
    assert f"deleted the offsets of {topic}" in run("delete-offsets", group, "-t", topic, "-y").stdout
    assert run("delete", group, "-y").stdout.split() == ["deleted", group]
