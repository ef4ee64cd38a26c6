"""The face of groups: commands reach the group, deleted topics are forgotten, ids are never given twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.commands import CommitOffsets, FetchOffsets, OffsetsFetched, OffsetToCommit
from millrace.groups.machine import GroupMachine
from millrace.groups.service import OFFSETS_TOPIC, OffsetsTopic
from tests.unit.broker.handlers.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    yield made
    made.stop()


def commit(broker: Broker, group_id: str, topic: str) -> None:
    command = CommitOffsets(group_id=group_id, offsets=[OffsetToCommit(topic, 0, 5, 0, "")])

    async def submit() -> object:
        return broker.groups.submit(group_id, command)

    assert not isinstance(broker.run(submit()), Exception)


def offsets(broker: Broker, group_id: str) -> list[str]:
    outcome = broker.groups.submit(group_id, FetchOffsets(group_id, None))
    assert isinstance(outcome, OffsetsFetched), outcome
    return [topic for topic, _, _ in outcome.offsets]


def test_without_its_topic_there_are_no_groups(broker: Broker) -> None:
    groups = broker.groups
    assert groups.partition_of("g") is None
    assert isinstance(groups.submit("g", FetchOffsets("g", None)), CoordinatorNotAvailable)
    assert isinstance(groups.machine_of("g"), CoordinatorNotAvailable)
    assert groups.find("g") is None
    assert list(groups.machines()) == []


def test_a_group_is_found_in_the_machine_of_its_partition(broker: Broker) -> None:
    broker.run(broker.groups.topic.ensure())
    # Of two partitions the one has "a", the other "b".
    for group_id in ("a", "b"):
        commit(broker, group_id, "t")
    groups = broker.groups
    assert {groups.partition_of("a"), groups.partition_of("b")} == {0, 1}
    assert [list(machine.groups) for machine in groups.machines()] in ([["a"], ["b"]], [["b"], ["a"]])
    machine = groups.machine_of("a")
    assert isinstance(machine, GroupMachine)
    assert groups.find("a") is machine.groups["a"]
    assert isinstance(groups.find("a"), ClassicGroup)
    assert groups.find("absent") is None


def test_all_groups_forget_a_topic_that_is_deleted(broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_topic("u")
    broker.run(broker.groups.topic.ensure())
    for group_id in ("a", "b"):
        commit(broker, group_id, "t")
        commit(broker, group_id, "u")
    broker.run(broker.metadata.delete_topics(["t"]))
    assert [offsets(broker, group_id) for group_id in ("a", "b")] == [["u"], ["u"]]


def test_a_members_id_begins_readably_and_is_never_given_twice(broker: Broker) -> None:
    ids = [broker.groups.new_member_id("app") for _ in range(100)]
    assert len(set(ids)) == 100
    pattern = r"app-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(pattern, each) for each in ids), "behind the prefix it is a random UUID"


def test_the_topic_of_offsets_is_compacted_and_keeps_what_producers_compress() -> None:
    assert OFFSETS_TOPIC == "__consumer_offsets"
    assert OffsetsTopic(segment_bytes=7).configs(1) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "7",
    }
