"""How far share groups are, as clients ask and alter it; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.groups.test_share_groups import heartbeat, stay

NOTHING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def groups(broker: Broker) -> Broker:
    broker.create_topic("t", 2)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker


def describe(broker: Broker, topics: dict[str, list[int]] | None = None, version: int = 1) -> Any:
    wanted = (
        None
        if topics is None
        else [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
    )
    group = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=wanted)
    return broker.ask(DescribeShareGroupOffsetsRequest(groups=[group]), version).groups[0]


def found(group: Any) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
        for topic in group.topics
        for each in topic.partitions
    }


def alter(broker: Broker, offsets: dict[tuple[str, int], int], group_id: str = "g") -> Any:
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (name, number), offset in offsets.items():
        topic = topics.setdefault(name, AlterShareGroupOffsetsRequestTopic(topic_name=name))
        topic.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values()))
    return broker.ask(request, 0)


def codes(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic_name, each.partition_index): each.error_code
        for topic in response.responses
        for each in topic.partitions
    }


def delete(broker: Broker, *names: str) -> Any:
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    return broker.ask(DeleteShareGroupOffsetsRequest(group_id="g", topics=topics), 0)


def test_a_group_that_has_read_nothing_has_no_offsets(groups: Broker) -> None:
    assert found(describe(groups)) == {}
    assert found(describe(groups, {"t": [0], "nosuch": [1]})) == {("t", 0): (-1, -1), ("nosuch", 1): (-1, -1)}
    heartbeat(groups)
    assert found(describe(groups)) == {("t", 0): (-1, -1), ("t", 1): (-1, -1)}


def test_altering_makes_a_group_and_tells_its_lag(groups: Broker) -> None:
    for _ in range(3):
        groups.append("t", NOW_MS)
    answer = alter(groups, {("t", 0): 1, ("t", 7): 1, ("nosuch", 0): 1})
    assert codes(answer) == {("t", 0): 0, ("t", 7): NOTHING, ("nosuch", 0): NOTHING}
    assert found(describe(groups)) == {("t", 0): (1, 2)}
    assert [each.partitions[0].start_offset for each in describe(groups, version=0).topics] == [1]
    assert alter(groups, {("t", 0): 3}).error_code == 0
    assert found(describe(groups, {"t": [0, 1]})) == {("t", 0): (3, 0), ("t", 1): (-1, -1)}


def test_offsets_of_a_group_with_members_stay(groups: Broker) -> None:
    heartbeat(groups)
    assert alter(groups, {("t", 0): 1}).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete(groups, "t").error_code == ErrorCode.NON_EMPTY_GROUP
    stay(groups, -1)
    assert alter(groups, {("t", 0): 1}).error_code == 0
    assert alter(groups, {("t", 0): 1}, group_id="").error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_are_deleted_by_topics(groups: Broker) -> None:
    assert delete(groups, "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    groups.create_topic("u", 1)
    alter(groups, {("t", 0): 1, ("t", 1): 2})
    answer = delete(groups, "t", "u", "nosuch")
    assert {each.topic_name: each.error_code for each in answer.responses} == {
        "t": 0,
        "u": NOTHING,
        "nosuch": NOTHING,
    }
    assert found(describe(groups, {"t": [0, 1]})) == {("t", 0): (-1, -1), ("t", 1): (-1, -1)}
    (again,) = delete(groups, "t").responses
    assert again.error_message == "There is no offset information to delete."
