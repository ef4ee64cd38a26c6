"""Kafka's own kafka-consumer-groups, unchanged: its tables are read back and compared with the truth."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka
import pytest

from tests.compat.groups.feed import write_numbered
from tests.compat.groups.group import GroupMaker
from tests.compat.groups.offset_clients import Committed, ConfluentOffsets
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name

MAIN = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
Row = dict[str, str]


class Tool:
    def __init__(self, java: JavaHost, bootstrap: str) -> None:
        self._java = java
        self._bootstrap = bootstrap

    def run(self, *words: str) -> str:
        """All that the tool has to say, its complaints included."""
        answer = self._answer(words)
        return str(answer["stdout"]) + str(answer["stderr"]) + (answer["thrown"] or "")

    def table(self, *words: str) -> list[Row]:
        """The rows of the table that the tool printed, by heading."""
        return parse_table(str(self._answer(words)["stdout"]))

    def _answer(self, words: tuple[str, ...]) -> Any:
        return self._java.tool(MAIN, ["--bootstrap-server", self._bootstrap, *words])


def parse_table(output: str) -> list[Row]:
    lines = [line for line in output.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("GROUP")]
    assert starts, output
    # The columns of one heading are at least a blank apart, and some headings hold one themselves.
    heading = re.sub(r"COORDINATOR \(ID\)", "COORDINATOR", lines[starts[0]]).split()
    rows = []
    for line in lines[starts[0] + 1 :]:
        cells = re.sub(r"(\S+:\d+)\s+\(\d+\)", r"\1", line).split(None, len(heading) - 1)
        rows.append(dict(zip(heading, [cell.strip() for cell in cells], strict=False)))
    return rows


@pytest.fixture(scope="module")
def tool(java: JavaHost, broker: BrokerProcess) -> Tool:
    return Tool(java, broker.bootstrap)


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """Two partitions, ten records each, one a minute until a minute ago."""
    name = create_topic(broker.bootstrap, unique_name("tool-topic"), 2)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = int(time.time() * 1000)
    for number in range(20):
        age_ms = (10 - number // 2) * 60_000
        producer.produce(name, value=f"{name} {number}", partition=number % 2, timestamp=now_ms - age_ms)
    assert producer.flush(20) == 0
    return name


def commit(broker: BrokerProcess, topic: str, offset: int) -> str:
    """A group without members and one offset, on partition 0; its name."""
    group = unique_name("tool")
    ConfluentOffsets().commit(broker.bootstrap, group, topic, Committed(offset))
    return group


def offset_of(broker: BrokerProcess, group: str, topic: str) -> int | None:
    found = ConfluentOffsets().committed(broker.bootstrap, group, topic)
    return None if found is None else found.offset


def test_groups_are_listed_with_state_and_type(
    tool: Tool, broker: BrokerProcess, make_group: GroupMaker, topic: str
) -> None:
    empty = commit(broker, topic, 1)
    classic, consumer = make_group("tool-classic", 2), make_group("tool-consumer", 2)
    classic.wait_balanced(classic.confluent())
    consumer.wait_balanced(consumer.confluent_consumer())
    assert {empty, classic.name, consumer.name} <= set(tool.run("--list").split())
    states = {row["GROUP"]: row["STATE"] for row in tool.table("--list", "--state")}
    assert states[empty] == "Empty"
    assert states[classic.name] == states[consumer.name] == "Stable"
    types = {row["GROUP"]: row["TYPE"] for row in tool.table("--list", "--type")}
    assert (types[classic.name], types[consumer.name]) == ("Classic", "Consumer")
    only = {row["GROUP"] for row in tool.table("--list", "--type", "consumer")}
    assert consumer.name in only
    assert classic.name not in only
    only = {row["GROUP"] for row in tool.table("--list", "--state", "empty")}
    assert empty in only
    assert classic.name not in only


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described(tool: Tool, make_group: GroupMaker, protocol: str) -> None:
    group = make_group("tool-describe", 3)
    write_numbered(make_group.bootstrap, group.topic, 3, 30)
    member = group.confluent() if protocol == "classic" else group.confluent_consumer()
    group.wait_balanced(member)
    group.wait_processed(set(range(30)))
    member.wait_for(lambda: _committed_sum(member.told("committed")) == 30)

    rows = tool.table("--describe", "--group", group.name)
    assert {row["PARTITION"] for row in rows} == {"0", "1", "2"}
    for row in rows:
        assert (row["TOPIC"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == (
            group.topic,
            "10",
            "10",
            "0",
        )
        assert row["CONSUMER-ID"] != "-"
        assert row["HOST"] == "/127.0.0.1"

    output = tool.run("--describe", "--group", group.name, "--members", "--verbose")
    assert re.search(rf"{group.topic}(\(0,1,2\)|:0,1,2)", output), output
    (row,) = tool.table("--describe", "--group", group.name, "--members")
    assert row["#PARTITIONS"] == "3"
    assert row["CLIENT-ID"] == "rdkafka"

    (row,) = tool.table("--describe", "--group", group.name, "--state")
    assert (row["STATE"], row["#MEMBERS"]) == ("Stable", "1")
    assert row["ASSIGNMENT-STRATEGY"] == ("range" if protocol == "classic" else "uniform")

    member.stop()
    eventually(lambda: "has no active members" in tool.run("--describe", "--group", group.name))
    (row,) = tool.table("--describe", "--group", group.name, "--state")
    assert (row["STATE"], row["#MEMBERS"]) == ("Empty", "0")


def _committed_sum(events: list[dict[str, Any]]) -> int:
    newest: dict[tuple[str, int], int] = {}
    for event in events:
        for topic, partition, offset in event["offsets"]:
            newest[topic, partition] = offset
    return sum(newest.values())


def test_an_unknown_group_is_named_as_such(tool: Tool) -> None:
    name = unique_name("tool-nobody")
    assert f"Group {name} not found" in tool.run("--describe", "--group", name)


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "7"), 7),
        (("--to-offset", "700"), 10),
        (("--shift-by", "3"), 7),
        (("--shift-by", "-2"), 2),
        (("--shift-by", "-200"), 0),
        (("--to-current",), 4),
        (("--by-duration", "PT5M30S"), 5),
        (("--to-datetime", "minus 3.5 minutes"), 7),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_offsets_are_reset(
    tool: Tool, broker: BrokerProcess, topic: str, words: tuple[str, ...], expected: int
) -> None:
    if words[0] == "--to-datetime":
        moment = datetime.now(UTC) - timedelta(minutes=3.5)
        words = (words[0], moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"))
    group = commit(broker, topic, 4)
    scope = ("--reset-offsets", "--group", group, "--topic", f"{topic}:0", *words)
    (row,) = tool.table(*scope, "--dry-run")
    assert (row["TOPIC"], row["PARTITION"], row["NEW-OFFSET"]) == (topic, "0", str(expected))
    assert offset_of(broker, group, topic) == 4, "a dry run changed something"
    (row,) = tool.table(*scope, "--execute")
    assert row["NEW-OFFSET"] == str(expected)
    assert offset_of(broker, group, topic) == expected


def test_offsets_of_an_active_group_are_not_reset(tool: Tool, make_group: GroupMaker) -> None:
    group = make_group("tool-active", 1)
    write_numbered(make_group.bootstrap, group.topic, 1, 5)
    member = group.confluent()
    group.wait_balanced(member)
    group.wait_processed(set(range(5)))
    output = tool.run("--reset-offsets", "--group", group.name, "--all-topics", "--to-earliest", "--execute")
    assert "only be reset if the group" in output
    assert "inactive" in output


def test_groups_are_deleted(tool: Tool, broker: BrokerProcess, make_group: GroupMaker, topic: str) -> None:
    group = commit(broker, topic, 3)
    assert "was successful" in tool.run("--delete", "--group", group)
    assert group not in tool.run("--list").split()
    assert offset_of(broker, group, topic) is None
    assert "does not exist" in tool.run("--delete", "--group", group) or "not found" in tool.run(
        "--delete", "--group", group
    )
    active = make_group("tool-active", 1)
    active.wait_balanced(active.confluent())
    assert "GroupNotEmptyException" in tool.run("--delete", "--group", active.name)


def test_offsets_are_deleted(tool: Tool, broker: BrokerProcess, make_group: GroupMaker, topic: str) -> None:
    group = commit(broker, topic, 3)
    output = tool.run("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert "Successful" in output
    assert offset_of(broker, group, topic) is None
    active = make_group("tool-subscribed", 1)
    write_numbered(make_group.bootstrap, active.topic, 1, 5)
    member = active.confluent()
    active.wait_balanced(member)
    active.wait_processed(set(range(5)))
    output = tool.run("--delete-offsets", "--group", active.name, "--topic", f"{active.topic}:0")
    assert "actively subscribed" in output
