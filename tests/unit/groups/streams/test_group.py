"""What a streams group knows from its records alone."""

from __future__ import annotations

import pytest

from millrace.coordinator.decision import Record
from millrace.groups.errors import StaleMemberEpoch, UnknownMember
from millrace.groups.streams.group import StreamsGroup, member_tombstones, target_record
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.tasks import Role
from millrace.wire.messages import streams_group_records as stored
from tests.unit.groups.streams.topologies import word_count

ACTIVE, STANDBY = (Role.ACTIVE, "0"), (Role.STANDBY, "0")


def group_of(*members: StreamsMember) -> StreamsGroup:
    group = StreamsGroup("g")
    group.apply(Record(stored.StreamsGroupTopologyKey(group_id="g"), word_count()))
    for member in members:
        group.apply(member.metadata_record("g"))
        group.apply(member.assignment_record("g"))
    return group


def test_states_follow_from_the_records() -> None:
    member = StreamsMember(member_id="m", epoch=1)
    group = StreamsGroup("g")
    states = [group.state_name]
    for record in (
        member.metadata_record("g"),
        Record(stored.StreamsGroupTopologyKey(group_id="g"), word_count()),
        Record(
            stored.StreamsGroupMetadataKey(group_id="g"),
            stored.StreamsGroupMetadataValue(epoch=2, metadata_hash=5, validated_topology_epoch=0),
        ),
        Record(
            stored.StreamsGroupTargetAssignmentMetadataKey(group_id="g"),
            stored.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=2, assignment_timestamp=9),
        ),
        StreamsMember(member_id="m", epoch=2).assignment_record("g"),
    ):
        group.apply(record)
        states.append(group.state_name)
    assert states == ["Empty", "NotReady", "NotReady", "Assigning", "Reconciling", "Stable"]
    assert "StreamsGroup g Stable 2" in repr(group)
    assert (group.type_name, group.protocol_type) == ("streams", "streams")


def test_a_task_is_kept_from_whoever_may_not_have_it_yet() -> None:
    holder = StreamsMember(
        member_id="a", process_id="p", assigned={ACTIVE: {0: 1}}, revoking={STANDBY: {1: 1}}
    )
    group = group_of(holder)
    near = StreamsMember(member_id="b", process_id="p")
    far = StreamsMember(member_id="c", process_id="q")
    assert group.holder_against(holder, ACTIVE, 0) is None, "its own"
    assert group.holder_against(far, ACTIVE, 0) == "a"
    assert group.holder_against(far, STANDBY, 0) is None
    assert group.holder_against(near, STANDBY, 0) == "a"
    assert group.holder_against(near, ACTIVE, 1) == "a", "the process still has a copy"
    assert group.holder_against(far, ACTIVE, 1) is None


def test_removing_members_releases_their_tasks() -> None:
    group = group_of(
        StreamsMember(member_id="a", assigned={STANDBY: {0: 1}}),
        StreamsMember(member_id="b", assigned={STANDBY: {0: 1}}),
    )
    for record in member_tombstones("g", "a"):
        group.apply(record)
    assert group.holders == {(STANDBY, 0): {"b": None}}
    for record in member_tombstones("g", "b") * 2:
        group.apply(record)
    assert (group.holders, group.members) == ({}, {})


def test_targets_come_and_go() -> None:
    group = StreamsGroup("g")
    tasks = {ACTIVE: frozenset({0, 2}), (Role.WARMUP, "1"): frozenset({1})}
    group.apply(target_record("g", "m", tasks))
    assert group.target_of("m") == tasks
    group.apply(Record(stored.StreamsGroupTargetAssignmentMemberKey(group_id="g", member_id="m"), None))
    assert group.target_of("m") == {}
    group.apply(Record(stored.StreamsGroupTargetAssignmentMetadataKey(group_id="g"), None))
    assert group.assignment_epoch == 1


def test_a_group_is_subscribed_while_it_has_members() -> None:
    group = group_of(StreamsMember(member_id="a", epoch=3))
    assert (group.is_subscribed("words"), group.is_subscribed("counts-changelog")) == (True, False)
    assert group_of().is_subscribed("words") is False
    assert group.check_offset_delete() is None
    assert group.offsets_age_since(5) == 5
    assert group.committed("a", 77) == ()
    assert group.last_commit_ms == {"a": 77}
    assert group.check_fetch(member_id=None, member_epoch=-1) is None
    assert isinstance(group.check_fetch(member_id="x", member_epoch=3), UnknownMember)
    assert isinstance(group.check_fetch(member_id="a", member_epoch=2), StaleMemberEpoch)
    assert group_of().check_commit(member_id="", instance_id=None, generation=-1) is None


def test_tombstones_end_with_the_group() -> None:
    group = group_of(StreamsMember(member_id="a"))
    keys = [type(record.key).__name__ for record in group.tombstones()]
    assert keys[-1] == "StreamsGroupMetadataKey"
    assert len(keys) == len(set(keys)) == 6


def test_a_record_of_another_kind_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        StreamsGroup("g").apply(Record("key", None))
