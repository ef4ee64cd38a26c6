"""The APIs of the consumer protocol as clients see them; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.core import patterns
from millrace.replica.partition import Partition
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from tests.unit.broker.handlers.broker import NODE_ID, Broker

GROUP_RESOURCE = 32
GROUP_CONFIG_SOURCE = 8


@pytest.fixture
def groups(broker: Broker) -> Broker:
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker


def heartbeat(broker: Broker, version: int = 1, **values: Any) -> Any:
    request: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return broker.ask(ConsumerGroupHeartbeatRequest(**{**request, **values}), version)


def describe(broker: Broker, group_id: str = "g", version: int = 1) -> Any:
    response = broker.ask(
        ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True), version
    )
    return response.groups[0]


def test_a_member_joins_stays_and_leaves(groups: Broker) -> None:
    joined = heartbeat(groups)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
    assert joined.heartbeat_interval_ms == 5_000
    assert [each.partitions for each in joined.assignment.topic_partitions] == [[0, 1, 2]]
    idle = groups.ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1), 1)
    assert (idle.member_epoch, idle.assignment) == (1, None)
    left = groups.ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1), 1)
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_the_first_version_draws_an_id_for_a_member_without_one(groups: Broker) -> None:
    joined = heartbeat(groups, version=0, member_id="")
    assert joined.error_code == 0
    assert joined.member_id
    refused = heartbeat(groups, version=1, member_id="")
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_refusals_have_the_codes_that_clients_act_on(groups: Broker) -> None:
    heartbeat(groups)
    assert heartbeat(groups, server_assignor="none").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert heartbeat(groups, member_epoch=9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert heartbeat(groups, member_id="x", member_epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat(groups, group_id="h", member_epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(groups, rebalance_timeout_ms=-1).error_code == ErrorCode.INVALID_REQUEST
    broken = heartbeat(groups, subscribed_topic_regex="(")
    assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing" in broken.error_message


def test_a_pattern_is_resolved_with_the_first_heartbeat(groups: Broker) -> None:
    groups.create_topic("t2", 1)
    joined = heartbeat(groups, subscribed_topic_names=[], subscribed_topic_regex="t[0-9]?")
    assert sorted(len(each.partitions) for each in joined.assignment.topic_partitions) == [1, 3]
    assert describe(groups).members[0].subscribed_topic_regex == "t[0-9]?"


def test_topics_that_come_later_are_found_without_asking(groups: Broker) -> None:
    heartbeat(groups, subscribed_topic_names=[], subscribed_topic_regex="t[0-9]?")
    groups.create_topic("t7", 2)
    groups.run(asyncio.sleep(0.01))
    told = heartbeat(groups, member_epoch=1, subscribed_topic_names=None, rebalance_timeout_ms=-1)
    assert sorted(len(each.partitions) for each in told.assignment.topic_partitions) == [2, 3]


def load_anew(broker: Broker) -> None:
    """Let the coordinator lose the partitions of committed offsets, and lead them again."""
    for partition in broker.services.partitions.by_name["__consumer_offsets"].values():

        async def lose_and_lead(partition: Partition) -> None:
            epoch = partition.leader_epoch
            partition.follow(-1, epoch + 1)
            broker.groups.runtime.leadership_changed(partition)
            partition.lead(NODE_ID, epoch + 2)
            broker.groups.runtime.leadership_changed(partition)
            await asyncio.sleep(0.01)

        broker.run(lose_and_lead(partition))


def test_a_stored_pattern_that_cannot_be_read_matches_nothing_and_harms_nobody(
    groups: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As another version or Kafka may have stored it: here, one with other limits."""
    strange = "t|" + "x" * 50
    heartbeat(groups, member_id="strange", subscribed_topic_names=[], subscribed_topic_regex=strange)
    heartbeat(groups, group_id="h", subscribed_topic_names=[], subscribed_topic_regex="t[0-9]?")
    monkeypatch.setattr(patterns, "LENGTH_MAX", 40)
    assert groups.groups.consumers is not None
    groups.groups.consumers._patterns.keep_only({})
    load_anew(groups)
    groups.create_topic("t7", 2)
    groups.run(asyncio.sleep(0.01))
    groups.create_topic("t8", 1)
    groups.run(asyncio.sleep(0.01))
    unchanged: dict[str, Any] = {"subscribed_topic_names": None, "rebalance_timeout_ms": -1}
    told = heartbeat(groups, group_id="h", member_epoch=1, **unchanged)
    assert sorted(len(each.partitions) for each in told.assignment.topic_partitions) == [1, 2, 3]
    told = heartbeat(groups, member_id="strange", member_epoch=1, **unchanged)
    assert told.assignment.topic_partitions == []
    assert describe(groups).members[0].subscribed_topic_regex == strange
    (complaint,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "group g" in complaint.getMessage()


def test_a_group_is_described_and_listed(groups: Broker) -> None:
    heartbeat(groups, rack_id="r")
    group = describe(groups)
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "uniform")
    assert (group.group_epoch, group.assignment_epoch) == (1, 1)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.rack_id, member.member_type) == ("m", 1, "r", 1)
    assert member.subscribed_topic_names == ["t"]
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])
    assert describe(groups, "h").error_code == ErrorCode.GROUP_ID_NOT_FOUND

    (listed,) = groups.ask(ListGroupsRequest(types_filter=["Consumer"]), 5).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("g", "consumer", "Stable")
    assert listed.protocol_type == "consumer"
    assert not groups.ask(ListGroupsRequest(types_filter=["classic"]), 5).groups
    (classic,) = groups.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_a_groups_settings_are_altered_described_and_listed(groups: Broker) -> None:
    def alter(value: str) -> Any:
        config = AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g", configs=[config])
        return groups.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]

    def described() -> dict[str, tuple[str, int]]:
        resource = DescribeConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g")
        (result,) = groups.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        return {each.name: (each.value, each.config_source) for each in result.configs}

    default = 5
    assert described()["consumer.session.timeout.ms"] == ("45000", default)
    assert alter("50000").error_code == 0
    assert described()["consumer.heartbeat.interval.ms"] == ("5000", default)
    assert described()["consumer.session.timeout.ms"] == ("50000", GROUP_CONFIG_SOURCE)
    assert alter("1").error_code == ErrorCode.INVALID_CONFIG
    listed = groups.ask(ListConfigResourcesRequest(resource_types=[GROUP_RESOURCE]), 1).config_resources
    assert [(each.resource_name, each.resource_type) for each in listed] == [("g", GROUP_RESOURCE)]
