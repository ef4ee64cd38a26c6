"""What a share group answers to those who do not care for its kind."""

from __future__ import annotations

import pytest

from millrace.coordinator.decision import Record
from millrace.groups.errors import GroupNotFound
from millrace.groups.share.group import ShareGroup
from millrace.groups.share.member import ShareMember
from millrace.wire.messages import share_group_records as stored


def test_a_group_is_empty_or_stable() -> None:
    group = ShareGroup("g")
    assert (group.type_name, group.protocol_type, group.state_name) == ("share", "share", "Empty")
    group.apply(ShareMember(member_id="m", topic_names=("t",)).metadata_record("g"))
    assert (group.is_empty, group.state_name, group.topic_names) == (False, "Stable", ["t"])
    assert group.is_subscribed("t")
    assert not group.is_subscribed("u")


def test_it_has_no_committed_offsets() -> None:
    group = ShareGroup("g")
    assert isinstance(group.check_commit(member_id="", instance_id=None, generation=-1), GroupNotFound)
    assert isinstance(group.check_fetch(member_id=None, member_epoch=-1), GroupNotFound)
    assert isinstance(group.check_offset_delete(), GroupNotFound)
    assert group.committed("m", 1) == ()


def test_a_compacted_log_may_tell_of_an_assignment_first() -> None:
    member = ShareMember(member_id="m", topic_names=("t",), epoch=2, previous_epoch=1)
    group = ShareGroup("g")
    group.apply(member.assignment_record("g"))
    group.apply(member.metadata_record("g"))
    assert group.members == {"m": member}


def test_tombstones_of_what_is_not_there_are_harmless() -> None:
    group = ShareGroup("g")
    for key in (
        stored.ShareGroupMemberMetadataKey(member_id="m"),
        stored.ShareGroupCurrentMemberAssignmentKey(member_id="m"),
        stored.ShareGroupTargetAssignmentMemberKey(member_id="m"),
        stored.ShareGroupTargetAssignmentMetadataKey(),
        stored.ShareGroupStatePartitionMetadataKey(),
    ):
        group.apply(Record(key, None))
    assert (group.members, group.target, group.assignment_epoch) == ({}, {}, 0)


def test_a_record_of_another_kind_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        ShareGroup("g").apply(Record(stored.TopicInfo(), None))
