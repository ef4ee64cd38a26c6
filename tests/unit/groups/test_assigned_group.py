"""What groups with assignments have in common: epochs, and how they come and go with their records."""

from __future__ import annotations

from millrace.coordinator.decision import Record
from millrace.groups.assigned_group import AssignedGroup, apply_to_group, tombstones
from millrace.groups.kinds import Group
from millrace.groups.share.group import ShareGroup
from millrace.groups.streams.group import StreamsGroup
from millrace.wire.messages import share_group_records as stored
from millrace.wire.messages import streams_group_records as streams

METADATA = stored.ShareGroupMetadataKey(group_id="g")


def _apply(groups: dict[str, Group], key: object, value: object | None) -> list[str]:
    gone: list[str] = []
    apply_to_group(groups, Record(key, value), ShareGroup, stored.ShareGroupMetadataKey, gone.append)
    return gone


def test_a_group_comes_with_its_first_record_and_goes_with_its_metadata() -> None:
    groups: dict[str, Group] = {}
    assert _apply(groups, METADATA, stored.ShareGroupMetadataValue(epoch=7)) == []
    group = groups["g"]
    assert isinstance(group, ShareGroup)
    assert group.epoch == 7
    assert _apply(groups, METADATA, None) == ["g"]
    assert groups == {}


def test_a_tombstone_makes_no_group_and_touches_none_of_another_kind() -> None:
    groups: dict[str, Group] = {}
    member = stored.ShareGroupMemberMetadataKey(group_id="g", member_id="m")
    assert _apply(groups, member, None) == []
    assert groups == {}
    other = groups["g"] = StreamsGroup("g")
    assert _apply(groups, METADATA, None) == []
    assert groups == {"g": other}


def test_a_target_that_is_gone_has_the_first_epoch_of_its_kind_again() -> None:
    for group, first in ((ShareGroup("g"), 0), (StreamsGroup("g"), 1)):
        assert isinstance(group, AssignedGroup)
        group.apply_target_epoch(
            stored.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=5, assignment_timestamp=9)
        )
        assert (group.assignment_epoch, group.assigned_at_ms) == (5, 9)
        group.apply_target_epoch(None)
        assert (group.assignment_epoch, group.assigned_at_ms) == (first, 0)


def test_all_who_are_or_were_to_become_members_are_removed() -> None:
    group = StreamsGroup("g")
    group.target = {"b": {}, "a": {}}
    keys = (streams.StreamsGroupMemberMetadataKey,)
    assert group.tombstones_of_members(keys) == [
        *tombstones(keys, group_id="g", member_id="a"),
        *tombstones(keys, group_id="g", member_id="b"),
    ]
