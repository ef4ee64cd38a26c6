"""The APIs of classic groups as clients of every version see them; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.handlers.groups.membership import heartbeat
from millrace.broker.network.context import RequestContext
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_groups import DeleteGroupsRequest
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.wire.messages.list_groups import ListGroupsRequest
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.unit.broker.handlers.broker import DIALLED, NODE_ID, Broker
from tests.unit.groups.worlds import subscription

ALL_GROUP_OPERATIONS = 3_400


@pytest.fixture
def groups(broker: Broker) -> Broker:
    """A broker that has been asked for a coordinator, and the topic `t` with three partitions."""
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker


def join(broker: Broker, version: int = 9, **values: Any) -> Any:
    request: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    }
    if version >= 1:
        request["rebalance_timeout_ms"] = 20_000
    return broker.ask(JoinGroupRequest(**{**request, **values}), version)


def member(broker: Broker, **values: Any) -> str:
    """A member of the Stable group `g` in generation 1."""
    first = join(broker, **values)
    joined = first if not first.error_code else join(broker, member_id=first.member_id, **values)
    assert joined.error_code == ErrorCode.NONE, joined
    member_id = str(joined.member_id)
    synced = broker.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=member_id,
            group_instance_id=values.get("group_instance_id"),
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
        ),
        5,
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    return member_id


def commit(broker: Broker, version: int = 9, topic: str = "t", partition: int = 0, **values: Any) -> int:
    known = broker.metadata.image.topics.get(topic)
    wanted = OffsetCommitRequestTopic(
        partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)]
    )
    if version < 10:
        wanted.name = topic
    else:
        wanted.topic_id = known.topic_id if known is not None else bytes(range(16))
    request = OffsetCommitRequest(**{"group_id": "g", **values}, topics=[wanted])
    return int(broker.ask(request, version).topics[0].partitions[0].error_code)


# Coordinators.


@pytest.mark.parametrize("version", range(4))
def test_a_coordinator_for_one_key(broker: Broker, version: int) -> None:
    found = broker.ask(FindCoordinatorRequest(key="g"), version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, NODE_ID, "broker.test", 9092)
    if version >= 1:
        assert found.error_message == "NONE"


@pytest.mark.parametrize("version", [4, 5, 6])
def test_coordinators_for_several_keys(broker: Broker, version: int) -> None:
    found = broker.ask(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version).coordinators
    assert [(each.key, each.node_id, each.error_code) for each in found] == [
        ("a", NODE_ID, 0),
        ("b", NODE_ID, 0),
    ]


def test_the_topic_of_the_offsets_comes_with_the_first_question(broker: Broker) -> None:
    assert "__consumer_offsets" not in broker.metadata.image.topics
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    topic = broker.metadata.image.topics["__consumer_offsets"]
    assert topic.internal
    assert broker.log_config("__consumer_offsets").cleanup_compact


@pytest.mark.parametrize(
    "key_type, version, error",
    [
        (2, 5, ErrorCode.INVALID_REQUEST),
        (9, 6, ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_kinds_of_coordinators(broker: Broker, key_type: int, version: int, error: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
    (found,) = broker.ask(request, version).coordinators
    assert (found.error_code, found.node_id, found.port) == (error, -1, -1)


def test_before_there_is_a_coordinator_nobody_is_served(broker: Broker) -> None:
    assert join(broker).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# Members.


@pytest.mark.parametrize("version", range(10))
def test_joining_in_every_version(groups: Broker, version: int) -> None:
    answer = join(groups, version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        answer = join(groups, version, member_id=answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id
    assert answer.member_id.startswith("test-")
    assert [each.metadata for each in answer.members] == [subscription("t")]


@pytest.mark.parametrize(
    "values, error",
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(groups: Broker, values: dict[str, Any], error: ErrorCode) -> None:
    answer = join(groups, 7, **values)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (error, -1, None)


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_in_every_version(groups: Broker, version: int) -> None:
    member_id = member(groups)

    def beat(**values: Any) -> int:
        request = HeartbeatRequest(**{"group_id": "g", "generation_id": 1, "member_id": member_id, **values})
        return int(groups.ask(request, version).error_code)

    assert beat() == ErrorCode.NONE
    assert beat(generation_id=2) == ErrorCode.ILLEGAL_GENERATION
    assert beat(member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(group_id="absent") == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(group_id="") == ErrorCode.INVALID_GROUP_ID


def test_a_heartbeat_that_changes_nothing_is_answered_without_waiting(groups: Broker) -> None:
    member_id = member(groups)
    context = RequestContext(4, "test", DIALLED, groups.services)

    async def beat() -> object:
        return heartbeat(context, HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id))

    assert type(groups.run(beat())).__name__ == "HeartbeatResponse"


def test_syncs_that_are_refused(groups: Broker) -> None:
    member_id = member(groups)

    def sync(**values: Any) -> int:
        request: dict[str, Any] = {
            "group_id": "g",
            "generation_id": 1,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        return int(groups.ask(SyncGroupRequest(**{**request, **values}), 5).error_code)

    assert sync() == ErrorCode.NONE
    assert sync(generation_id=7) == ErrorCode.ILLEGAL_GENERATION
    assert sync(member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync(group_id="absent") == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync(protocol_name="other") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(protocol_name=None) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(group_instance_id="i") == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3))
def test_one_member_leaves(groups: Broker, version: int) -> None:
    member_id = member(groups)
    assert groups.ask(LeaveGroupRequest(group_id="g", member_id="stranger"), version).error_code == 25
    assert groups.ask(LeaveGroupRequest(group_id="g", member_id=member_id), version).error_code == 0


@pytest.mark.parametrize("version", [3, 4, 5])
def test_several_members_leave(groups: Broker, version: int) -> None:
    member_id = member(groups)
    members = [
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="stranger"),
        MemberIdentity(member_id=member_id),
    ]
    left = groups.ask(LeaveGroupRequest(group_id="g", members=members), version)
    assert left.error_code == 0
    assert [each.error_code for each in left.members] == [25, 25, 0]
    absent = groups.ask(LeaveGroupRequest(group_id="absent", members=members[1:2]), version)
    assert (absent.error_code, absent.members[0].error_code) == (0, 25)


# Offsets.


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_version(groups: Broker, version: int) -> None:
    assert commit(groups, version) == ErrorCode.NONE
    assert commit(groups, version, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(groups, version, topic="absent") == unknown
    missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert commit(groups, version, group_id="absent", generation_id_or_member_epoch=3) == missing


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group(groups: Broker, version: int) -> None:
    commit(groups)
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    answer = groups.ask(OffsetFetchRequest(group_id="g", topics=topics), version)
    found = [(each.committed_offset, each.metadata, each.error_code) for each in answer.topics[0].partitions]
    assert found == [(5, "", 0), (-1, "", 0)]
    if version >= 2:
        every = groups.ask(OffsetFetchRequest(group_id="g", topics=None), version)
        assert [[each.partition_index for each in topic.partitions] for topic in every.topics] == [[0]]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_several_groups(groups: Broker, version: int) -> None:
    commit(groups)
    topic = OffsetFetchRequestTopics(partition_indexes=[0, 1])
    if version < 10:
        topic.name = "t"
    else:
        topic.topic_id = groups.metadata.image.topics["t"].topic_id
    wanted = [
        OffsetFetchRequestGroup(group_id="g", topics=[topic]),
        OffsetFetchRequestGroup(group_id="absent", topics=[topic]),
        OffsetFetchRequestGroup(group_id="g", topics=None),
    ]
    answer = groups.ask(OffsetFetchRequest(groups=wanted), version)
    assert [each.error_code for each in answer.groups] == [0, 0, 0]
    offsets = [[p.committed_offset for p in each.topics[0].partitions] for each in answer.groups]
    assert offsets == [[5, -1], [-1, -1], [5]]


def test_an_unknown_topic_id_has_no_offsets(groups: Broker) -> None:
    topic = OffsetFetchRequestTopics(topic_id=bytes(range(16)), partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[topic])])
    (found,) = groups.ask(request, 10).groups[0].topics[0].partitions
    assert (found.committed_offset, found.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


def test_deleting_offsets(groups: Broker) -> None:
    member_id = member(groups)
    groups.create_topic("u")
    commit(groups, 8, member_id=member_id, generation_id_or_member_epoch=1)
    commit(groups, 8, topic="u", member_id=member_id, generation_id_or_member_epoch=1)

    def delete(group: str, *topics: str) -> Any:
        wanted = [
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for topic in topics
        ]
        return groups.ask(OffsetDeleteRequest(group_id=group, topics=wanted), 0)

    answer = delete("g", "t", "u", "absent")
    assert [topic.partitions[0].error_code for topic in answer.topics] == [86, 0, 3]
    assert delete("absent", "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_topic_is_forgotten_by_groups(groups: Broker) -> None:
    commit(groups)
    groups.run(groups.metadata.delete_topics(["t"]))
    answer = groups.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
    assert answer.topics == []


@pytest.mark.parametrize("version", [7, 9, 10])
def test_offsets_of_a_former_topic_of_the_same_name_are_not_those_of_the_new_one(
    groups: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F29: the broker dies between deleting the topic and its offsets.
    commit(groups)
    monkeypatch.setattr(groups.groups.runtime, "submit", lambda index, command: None)
    groups.run(groups.metadata.delete_topics(["t"]))
    monkeypatch.undo()
    groups.create_topic("t", 3)
    if version < 8:
        asked = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        (found,) = groups.ask(OffsetFetchRequest(group_id="g", topics=[asked]), version).topics[0].partitions
        assert groups.ask(OffsetFetchRequest(group_id="g", topics=None), version).topics == []
    else:
        topic = OffsetFetchRequestTopics(partition_indexes=[0])
        if version < 10:
            topic.name = "t"
        else:
            topic.topic_id = groups.metadata.image.topics["t"].topic_id
        wanted = [OffsetFetchRequestGroup(group_id="g", topics=[topic])]
        (found,) = groups.ask(OffsetFetchRequest(groups=wanted), version).groups[0].topics[0].partitions
    assert found.committed_offset == -1


# Operators.


@pytest.mark.parametrize("version", range(7))
def test_describing_groups(groups: Broker, version: int) -> None:
    member_id = member(groups)
    request = DescribeGroupsRequest(groups=["g", "absent"], include_authorized_operations=version >= 3)
    there, absent = groups.ask(request, version).groups
    assert (there.group_state, there.protocol_type, there.protocol_data) == ("Stable", "consumer", "range")
    (described,) = there.members
    assert (described.member_id, described.client_id, described.client_host) == (
        member_id,
        "test",
        "/client.test",
    )
    assert (described.member_metadata, described.member_assignment) == (subscription("t"), b"mine")
    assert absent.group_state == "Dead"
    if version >= 3:
        assert there.authorized_operations == ALL_GROUP_OPERATIONS
    if version >= 6:
        assert (absent.error_code, absent.error_message) == (69, "Group absent not found.")


@pytest.mark.parametrize("version", range(6))
def test_listing_groups(groups: Broker, version: int) -> None:
    member(groups)
    commit(groups, group_id="simple")
    listed = {each.group_id: each for each in groups.ask(ListGroupsRequest(), version).groups}
    assert {name: each.protocol_type for name, each in listed.items()} == {"g": "consumer", "simple": ""}
    if version >= 4:
        only = groups.ask(ListGroupsRequest(states_filter=["stable"]), version).groups
        assert [(each.group_id, each.group_state) for each in only] == [("g", "Stable")]
    if version >= 5:
        assert groups.ask(ListGroupsRequest(types_filter=["consumer"]), version).groups == []
        assert len(groups.ask(ListGroupsRequest(types_filter=["Classic"]), version).groups) == 2


@pytest.mark.parametrize("version", range(3))
def test_deleting_groups(groups: Broker, version: int) -> None:
    member(groups)
    commit(groups, group_id="simple")
    results = groups.ask(DeleteGroupsRequest(groups_names=["g", "simple", "absent"]), version).results
    assert [each.error_code for each in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        0,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
