"""`millrace group` as people use it, against a running broker: Millrace, or Kafka where it has no say."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import confluent_kafka
import pytest

from tests.compat.groups.conftest import SETTINGS
from tests.compat.groups.feed import write_numbered
from tests.compat.groups.group import GroupMaker
from tests.compat.groups.offset_clients import Committed, ConfluentOffsets
from tests.conftest import StartBroker
from tests.harness.millrace import MillraceProcess, run_millrace
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name


class Command:
    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_millrace("group", *words, "-b", self._broker.bootstrap)

    def ok(self, *words: str) -> str:
        answer = self.run(*words)
        assert answer.returncode == 0, answer
        return answer.stdout

    def documents(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]


@pytest.fixture(scope="module")
def command(broker: BrokerProcess) -> Command:
    return Command(broker)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """Two partitions, ten records each, one a minute until a minute ago."""
    name = create_topic(broker.bootstrap, unique_name("command"), 2)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = int(time.time() * 1000)
    for number in range(20):
        age_ms = (10 - number // 2) * 60_000
        producer.produce(name, value=f"{name} {number}", partition=number % 2, timestamp=now_ms - age_ms)
    assert producer.flush(20) == 0
    return name


def commit(broker: BrokerProcess, topic: str, offset: int) -> str:
    group = unique_name("command")
    ConfluentOffsets().commit(broker.bootstrap, group, topic, Committed(offset))
    return group


def offset_of(broker: BrokerProcess, group: str, topic: str) -> int | None:
    found = ConfluentOffsets().committed(broker.bootstrap, group, topic)
    return None if found is None else found.offset


def test_list_shows_state_and_type(
    command: Command, broker: BrokerProcess, make_group: GroupMaker, topic: str
) -> None:
    empty, active = commit(broker, topic, 1), make_group("command-active", 1)
    active.wait_balanced(active.confluent())
    lines = command.ok("list").splitlines()
    assert lines[0].split() == ["GROUP", "STATE", "TYPE"]
    assert [empty, "Empty", "classic"] in [line.split() for line in lines]
    assert [active.name, "Stable", "classic"] in [line.split() for line in lines]
    listed = {each["group"] for each in command.documents("list", "--state", "stable")}
    assert active.name in listed
    assert empty not in listed
    wrong = command.run("list", "--state", "asleep")
    assert wrong.returncode == 2
    assert "Stable" in wrong.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_describe_shows_members_offsets_and_lag(
    command: Command, make_group: GroupMaker, protocol: str
) -> None:
    group = make_group("command-described", 2)
    write_numbered(make_group.bootstrap, group.topic, 2, 20)
    member = group.confluent() if protocol == "classic" else group.confluent_consumer()
    group.wait_balanced(member)
    group.wait_processed(set(range(20)))
    eventually(lambda: command.documents("describe", group.name)[0]["lag"] == 0)
    (document,) = command.documents("describe", group.name)
    assert (document["state"], document["type"]) == ("Stable", protocol)
    assert document["assignor"] == ("range" if protocol == "classic" else "uniform")
    (found,) = document["members"]
    assert (found["client"], found["host"]) == ("rdkafka", "127.0.0.1")
    assert found["partitions"] == [{"topic": group.topic, "partition": number} for number in (0, 1)]
    assert [
        (each["committed_offset"], each["end_offset"], each["lag"]) for each in document["partitions"]
    ] == [
        (10, 10, 0),
        (10, 10, 0),
    ]
    text = command.ok("describe", group.name)
    assert "Lag:          0 messages" in text
    assert "rdkafka" in text


@pytest.mark.millrace_only
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_describe_shows_lag_in_seconds_and_the_health_of_members(
    command: Command, broker: BrokerProcess, make_group: GroupMaker, topic: str, protocol: str
) -> None:
    assert isinstance(broker, MillraceProcess)
    # The fifth record is six minutes old.
    idle = commit(broker, topic, 4)
    (document,) = command.documents("describe", idle)
    (partition,) = document["partitions"]
    assert partition["lag"] == 6
    assert 360_000 <= partition["lag_ms"] < 400_000
    assert "6 messages, 36" in command.ok("describe", idle)

    group = make_group("command-health", 1)
    write_numbered(make_group.bootstrap, group.topic, 1, 5)
    member = group.confluent() if protocol == "classic" else group.confluent_consumer()
    group.wait_balanced(member)
    group.wait_processed(set(range(5)))
    eventually(lambda: command.documents("describe", group.name)[0]["lag"] == 0)
    (document,) = command.documents("describe", group.name)
    (found,) = document["members"]
    now_ms = time.time() * 1000
    for moment in ("last_heartbeat_ms", "last_fetch_ms", "last_commit_ms"):
        assert now_ms - 30_000 < found[moment] <= now_ms, moment
    assert document["partitions"][0]["lag_ms"] == 0
    url = f"http://127.0.0.1:{broker.http_port}"
    assert "s ago" in command.ok("describe", group.name, "--metrics-url", url)
    # Without an answer there the rest is shown all the same.
    assert "s ago" not in command.ok("describe", group.name, "--metrics-url", "http://127.0.0.1:1")


def test_describe_names_a_group_that_is_not_there(command: Command) -> None:
    answer = command.run("describe", unique_name("nobody"))
    assert answer.returncode == 1
    assert "no such group: nobody" in answer.stderr


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-current",), 4),
        (("--to-offset", "7"), 7),
        (("--to-offset", "700"), 10),
        (("--shift-by", "3"), 7),
        (("--shift-by", "-200"), 0),
        (("--by-duration", "5m30s"), 5),
        (("--by-duration", "PT5M30S"), 5),
        (("--to-datetime", "2020-01-31T08:00"), 0),
        (("--to-datetime", "2100-01-31T08:00"), 10),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_offsets_are_reset_only_on_request(
    command: Command, broker: BrokerProcess, topic: str, words: tuple[str, ...], expected: int
) -> None:
    group = commit(broker, topic, 4)
    (planned,) = command.documents("reset-offsets", group, "--topic", f"{topic}:0", *words)
    assert (planned["old_offset"], planned["new_offset"], planned["executed"]) == (4, expected, False)
    assert offset_of(broker, group, topic) == 4
    (done,) = command.documents("reset-offsets", group, "--all-topics", *words, "--execute")
    assert (done["new_offset"], done["executed"]) == (expected, True)
    assert offset_of(broker, group, topic) == expected


def test_a_new_group_can_be_placed_before_it_starts(
    command: Command, broker: BrokerProcess, topic: str
) -> None:
    group = unique_name("command-new")
    planned = command.documents("reset-offsets", group, "-t", topic, "--to-latest", "--execute")
    assert [(each["partition"], each["old_offset"], each["new_offset"]) for each in planned] == [
        (0, None, 10),
        (1, None, 10),
    ]
    assert offset_of(broker, group, topic) == 10


def test_an_active_group_is_neither_reset_nor_deleted(command: Command, make_group: GroupMaker) -> None:
    group = make_group("command-active", 1)
    write_numbered(make_group.bootstrap, group.topic, 1, 5)
    member = group.confluent()
    group.wait_balanced(member)
    group.wait_processed(set(range(5)))
    for words in (
        ("reset-offsets", group.name, "-t", group.topic, "--to-earliest", "--execute"),
        ("delete", group.name),
    ):
        answer = command.run(*words)
        assert answer.returncode == 1, answer
        assert "while it is in use: there is 1 member" in answer.stderr
    answer = command.run("delete-offsets", group.name, "-t", group.topic)
    assert answer.returncode == 1
    assert "subscribed" in answer.stderr
    planned = command.run("reset-offsets", group.name, "-t", group.topic, "--to-earliest")
    assert planned.returncode == 0
    assert "cannot be reset while it is in use" in planned.stderr


def test_groups_and_offsets_are_deleted(command: Command, broker: BrokerProcess, topic: str) -> None:
    group = commit(broker, topic, 3)
    assert command.ok("delete-offsets", group, "-t", f"{topic}:0") == f"deleted the offset of {topic}:0\n"
    assert offset_of(broker, group, topic) is None
    group = commit(broker, topic, 3)
    assert command.ok("delete", group) == f"deleted {group}\n"
    assert offset_of(broker, group, topic) is None
    again = command.run("delete", group)
    assert again.returncode == 1
    assert "GROUP_ID_NOT_FOUND" in again.stderr
    assert command.run("delete", group, "--if-exists").returncode == 0


@pytest.mark.parametrize(
    "words, complaint",
    [
        (("g", "-t", "t"), "exactly one of"),
        (("g", "-t", "t", "--to-earliest", "--to-latest"), "exactly one of"),
        (("g", "--to-earliest"), "--all-topics"),
        (("g", "-t", "t", "--all-topics", "--to-earliest"), "--all-topics"),
        (("g", "-t", "t", "--by-duration", "soon"), "1h30m"),
        (("g", "-t", "t", "--to-datetime", "soon"), "ISO time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_wrong_usage_is_explained(command: Command, words: tuple[str, ...], complaint: str) -> None:
    answer = command.run("reset-offsets", *words)
    assert answer.returncode == 2
    assert complaint in answer.stderr


def test_unknown_topics_and_partitions_are_named(command: Command, topic: str) -> None:
    absent = command.run("reset-offsets", "g", "-t", f"{topic}-x", "--to-latest")
    assert absent.returncode == 1
    assert f"no such topic: {topic}-x" in absent.stderr
    absent = command.run("reset-offsets", "g", "-t", f"{topic}:0,7", "--to-latest")
    assert absent.returncode == 1
    assert f"{topic} has no partition 7" in absent.stderr


def test_the_first_question_about_groups_is_answered(start_broker: StartBroker) -> None:
    """It makes the broker create its topic of offsets; librdkafka crashes on some questions meanwhile."""
    fresh = start_broker(SETTINGS)
    create_topic(fresh.bootstrap, "first")
    command = Command(fresh)
    (planned,) = command.documents("reset-offsets", "nobody-yet", "-t", "first", "--to-latest")
    assert (planned["old_offset"], planned["new_offset"]) == (None, 0)
    assert command.ok("list").split() == ["GROUP", "STATE", "TYPE"]
