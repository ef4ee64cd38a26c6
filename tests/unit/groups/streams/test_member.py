"""A member's records hold all that is known of it."""

from __future__ import annotations

from millrace.coordinator.decision import Record
from millrace.groups.consumer.member import MemberState
from millrace.groups.streams.commands import Endpoint
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.tasks import Role
from millrace.wire.messages.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)

MEMBER = StreamsMember(
    member_id="m",
    rack="r",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=5,
    topology_epoch=3,
    process_id="p",
    endpoint=Endpoint("here", 80),
    client_tags={"zone": "z"},
    epoch=4,
    previous_epoch=3,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned={(Role.ACTIVE, "0"): {0: 2, 1: 4}, (Role.STANDBY, "1"): {0: 4}},
    revoking={(Role.ACTIVE, "1"): {5: 1}},
)


def restored(*records: Record) -> StreamsMember:
    member = StreamsMember(member_id="m")
    for record in records:
        if isinstance(record.value, StreamsGroupMemberMetadataValue):
            member = member.with_metadata(record.value)
        else:
            assert isinstance(record.value, StreamsGroupCurrentMemberAssignmentValue)
            member = member.with_assignment(record.value)
    return member


def test_records_bring_the_member_back() -> None:
    assert restored(MEMBER.metadata_record("g"), MEMBER.assignment_record("g")) == MEMBER
    plain = StreamsMember(member_id="m", process_id="p")
    assert restored(plain.metadata_record("g"), plain.assignment_record("g")) == plain


def test_states_have_the_numbers_of_kafka() -> None:
    value = MEMBER.assignment_value()
    assert value.state == 2
    value.state = 99
    assert MEMBER.with_assignment(value).state is MemberState.UNKNOWN


def test_tasks_without_an_epoch_have_that_of_the_member() -> None:
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        state=1,
        active_tasks=[StreamsGroupCurrentMemberAssignmentTaskIds(subtopology_id="0", partitions=[2])],
    )
    assert MEMBER.with_assignment(value).assigned == {(Role.ACTIVE, "0"): {2: 7}}


def test_without_an_assignment_a_member_begins_anew() -> None:
    fresh = MEMBER.with_assignment(None)
    assert (fresh.epoch, fresh.assigned, fresh.revoking) == (0, {}, {})
    assert fresh.process_id == "p"


def test_a_new_epoch_keeps_the_one_before() -> None:
    after = MEMBER.with_epoch(9, MemberState.STABLE, {})
    assert (after.epoch, after.previous_epoch, after.has_reached(9)) == (9, 4, True)
    assert not after.has_reached(8)
