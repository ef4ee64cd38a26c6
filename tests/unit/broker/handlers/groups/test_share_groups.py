"""The APIs of share groups' membership as clients see them; the answers are those of Kafka 4.3.1, except that
a new group has its partitions at once."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.queues.share_partition.model import ShareKey
from millrace.queues.state.commands import StateSummary
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.delete_groups import DeleteGroupsRequest
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from millrace.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millrace.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.unit.broker.handlers.broker import Broker


@pytest.fixture
def groups(broker: Broker) -> Broker:
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker


def heartbeat(broker: Broker, **values: Any) -> Any:
    request: dict[str, Any] = {"group_id": "g", "member_id": "m", "subscribed_topic_names": ["t"]}
    return broker.ask(ShareGroupHeartbeatRequest(**{**request, **values}), 1)


def stay(broker: Broker, epoch: int, member_id: str = "m") -> Any:
    return heartbeat(broker, member_id=member_id, member_epoch=epoch, subscribed_topic_names=None)


def describe(broker: Broker, group_id: str = "g") -> Any:
    request = ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    return broker.ask(request, 1).groups[0]


def partitions(response: Any) -> list[list[int]]:
    return [each.partitions for each in response.assignment.topic_partitions]


def test_a_new_group_has_its_partitions_with_its_first_heartbeat(groups: Broker) -> None:
    joined = heartbeat(groups)
    assert (joined.error_code, joined.member_id, joined.heartbeat_interval_ms) == (0, "m", 5_000)
    assert partitions(joined) == [[0, 1, 2]]
    idle = stay(groups, joined.member_epoch)
    assert (idle.member_epoch, idle.assignment) == (joined.member_epoch, None)
    left = stay(groups, -1)
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_a_second_member_shares(groups: Broker) -> None:
    heartbeat(groups)
    heartbeat(groups, member_id="n")
    epochs = {each.member_id: each.member_epoch for each in describe(groups).members}
    stay(groups, epochs["m"])
    held = sorted(
        number
        for member in describe(groups).members
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    assert held == [0, 1, 2]


def test_a_topic_that_comes_later_comes_with_a_heartbeat(groups: Broker) -> None:
    joined = heartbeat(groups, subscribed_topic_names=["t", "later"])
    groups.create_topic("later", 2)
    found = stay(groups, joined.member_epoch)
    assert sorted(partitions(found)) == [[0, 1], [0, 1, 2]]


def test_refusals_have_the_codes_that_clients_act_on(groups: Broker) -> None:
    heartbeat(groups)
    assert stay(groups, 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert stay(groups, 1, "x").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat(groups, group_id="h", member_epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(groups, member_id="x" * 37).error_code == ErrorCode.INVALID_REQUEST
    assert heartbeat(groups, subscribed_topic_names=[]).error_code == ErrorCode.INVALID_REQUEST
    consumer = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="c",
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert groups.ask(consumer, 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_described_and_listed(groups: Broker) -> None:
    joined = heartbeat(groups, rack_id="r")
    group = describe(groups)
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
    assert group.group_epoch == group.assignment_epoch == joined.member_epoch
    (member,) = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("m", "r", joined.member_epoch)
    assert (member.client_id, member.subscribed_topic_names) == ("test", ["t"])
    assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [
        ("t", [0, 1, 2])
    ]
    (listed,) = groups.ask(ListGroupsRequest(types_filter=["Share"], states_filter=["stable"]), 5).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == ("g", "share", "share")
    assert not groups.ask(ListGroupsRequest(types_filter=["consumer"]), 5).groups
    (classic,) = groups.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_what_is_no_share_group_is_not_described(groups: Broker) -> None:
    missing = describe(groups, "other")
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group other not found.",
    )


def test_a_group_is_deleted_with_its_state_when_it_is_empty(groups: Broker) -> None:
    heartbeat(groups)

    def delete() -> int:
        (result,) = groups.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
        code: int = result.error_code
        return code

    topic = groups.metadata.image.topics["t"].topic_id

    def with_state() -> int:
        states = [groups.run(groups.persister.summary(ShareKey("g", topic, number))) for number in range(3)]
        return sum(isinstance(state, StateSummary) and state.state_epoch > 0 for state in states)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    assert with_state() == 3
    stay(groups, -1)
    assert delete() == 0
    assert (with_state(), groups.groups.find("g")) == (0, None)
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
