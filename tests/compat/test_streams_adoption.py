"""Streams groups move from Apache Kafka to Millrace and back, and Kafka's tool reads what both have written.

Both brokers are asked in Kafka's own messages, so nothing of Millrace's own codecs takes part."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.millrace import MillraceProcess
from tests.harness.process import BrokerProcess
from tests.harness.raw import FIND_COORDINATOR, Plain, RawConnection
from tests.harness.topics import create_topic

pytestmark = [pytest.mark.java, pytest.mark.millrace_only, pytest.mark.slow]

HEARTBEAT: Final = 88
DESCRIBE: Final = 89
GROUP: Final = "application"
DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.num.standby.replicas": "1",
}
BUSY: Final = ("coordinator_load_in_progress", "not_coordinator", "coordinator_not_available")


def topic(name: str, **configs: str) -> Plain:
    settings = [{"key": key, "value": value} for key, value in configs.items()]
    return {"name": name, "partitions": 0, "replication_factor": 1, "topic_configs": settings}


TOPOLOGY: Final[Plain] = {
    "epoch": 0,
    "subtopologies": [
        {
            "subtopology_id": "0",
            "source_topics": ["words"],
            "source_topic_regex": [],
            "state_changelog_topics": [],
            "repartition_sink_topics": ["application-regrouped"],
            "repartition_source_topics": [],
            "copartition_groups": [],
        },
        {
            "subtopology_id": "1",
            "source_topics": [],
            "source_topic_regex": [],
            "state_changelog_topics": [topic("application-changelog", **{"cleanup.policy": "compact"})],
            "repartition_sink_topics": [],
            "repartition_source_topics": [topic("application-regrouped")],
            "copartition_groups": [],
        },
    ],
}


class Member:
    """A thread of Kafka Streams, as far as the protocol goes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.tasks: dict[str, list[Plain]] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}

    def beat(self, connection: RawConnection) -> Plain:
        is_joining = self.epoch == 0
        request: Plain = {
            "group_id": GROUP,
            "member_id": self.name,
            "member_epoch": self.epoch,
            "endpoint_information_epoch": -1,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 60_000 if is_joining else -1,
            "topology": TOPOLOGY if is_joining else None,
            "process_id": f"process of {self.name}" if is_joining else None,
            "user_endpoint": {"host": self.name, "port": 80} if is_joining else None,
            "client_tags": [{"key": "zone", "value": "z"}] if is_joining else None,
            "task_offsets": None,
            "task_end_offsets": None,
            "shutdown_application": False,
            **self.tasks,
        }
        end = time.monotonic() + 60
        while True:
            answer = connection.call(HEARTBEAT, 0, request)
            if answer["error_code"] not in BUSY:
                break
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        assert answer["error_code"] == "none", answer
        self.epoch = answer["member_epoch"]
        if answer["active_tasks"] is not None:
            self.tasks = {name: list(answer[name]) for name in self.tasks}
        return answer

    def count(self, kind: str) -> int:
        return sum(len(each["partitions"]) for each in self.tasks[kind])


@pytest.fixture
def running() -> Iterator[list[BrokerProcess]]:
    brokers: list[BrokerProcess] = []
    yield brokers
    for broker in brokers:
        broker.end()


def connected(broker: BrokerProcess) -> RawConnection:
    connection = RawConnection((broker.host, broker.port))
    end = time.monotonic() + 60
    while True:
        asked = {"key_type": 0, "coordinator_keys": [GROUP]}
        (found,) = connection.call(FIND_COORDINATOR, 6, asked)["coordinators"]
        if found["error_code"] == "none":
            return connection
        assert time.monotonic() < end, found
        time.sleep(0.1)


def settle(connection: RawConnection, *members: Member) -> None:
    """Send heartbeats until everybody is in one epoch with all tasks."""
    end = time.monotonic() + 60
    while True:
        for member in members:
            member.beat(connection)
        is_whole = sum(member.count("active_tasks") for member in members) == 4
        if is_whole and described(connection)["group_state"] == "Stable":
            return
        assert time.monotonic() < end, [member.tasks for member in members]
        time.sleep(0.1)


def described(connection: RawConnection) -> Plain:
    end = time.monotonic() + 60
    while True:
        asked = {"group_ids": [GROUP], "include_authorized_operations": False}
        (group,) = connection.call(DESCRIBE, 0, asked)["groups"]
        if group["error_code"] not in BUSY:
            assert group["error_code"] == "none", group
            group["members"].sort(key=lambda member: member["member_id"])
            found: Plain = group
            return found
        assert time.monotonic() < end, group
        time.sleep(0.05)


def kinds_of_records(java: JavaHost, directory: Path) -> set[str]:
    (path,) = directory.glob("data/__consumer_offsets-0/00000000000000000000.log")
    answer: Any = java.tool(DUMP, ["--offsets-decoder", "--files", str(path)])
    lines = [line for line in answer["stdout"].splitlines() if GROUP in line]
    assert lines, answer
    assert not [line for line in lines if "Error" in line]
    return {json.loads(found)["type"] for line in lines for found in re.findall(r"key: (\{.*?\}\})", line)}


def test_a_streams_group_moves_to_millrace_and_back(
    tmp_path: Path, java: JavaHost, running: list[BrokerProcess]
) -> None:
    kafka, millrace = KafkaProcess(tmp_path, SETTINGS), MillraceProcess(tmp_path, SETTINGS)
    running += [kafka, millrace]
    first, second, third = Member("a"), Member("b"), Member("c")
    kafka.start()
    create_topic(kafka.bootstrap, "words", 2)
    with connected(kafka) as connection:
        settle(connection, first, second)
        before = described(connection)
    kafka.stop()

    millrace.start()
    with connected(millrace) as connection:
        after = described(connection)
        assert after == before, "what Kafka has written is all there"
        assert first.beat(connection)["active_tasks"] is None, "nobody has to join again"
        settle(connection, first, second, third)
        assert sorted(member.count("active_tasks") for member in (first, second, third)) == [1, 1, 2]
        before = described(connection)
    assert millrace.stop() == 0
    # Group, members, target and its epoch, present assignments, and the topology.
    assert kinds_of_records(java, tmp_path) == {"17", "19", "20", "21", "22", "23"}

    kafka.start()
    with connected(kafka) as connection:
        after = described(connection)
        # Kafka knows the numbers of partitions only after the first heartbeat.
        assert {**after, "topology": None} == {**before, "topology": None}, "what Millrace has written too"
        settle(connection, first, second, third)
    kafka.stop()
