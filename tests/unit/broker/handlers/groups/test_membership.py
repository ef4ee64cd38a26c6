"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as clients of every version see them; the answers are those
of Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.handlers.groups.membership import heartbeat
from millrace.broker.network.context import RequestContext
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.heartbeat import HeartbeatRequest
from millrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.wire.messages.sync_group import SyncGroupRequest
from tests.unit.broker.handlers.broker import DIALLED, Broker, anybody
from tests.unit.broker.handlers.groups.members import join, member
from tests.unit.groups.worlds import subscription


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
    context = RequestContext(4, "test", DIALLED, groups.services, anybody(groups.services))

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
