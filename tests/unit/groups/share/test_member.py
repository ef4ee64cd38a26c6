"""A member of a share group and its records."""

from __future__ import annotations

from millrace.core.ids import TopicId
from millrace.groups.consumer.member import NO_EPOCH
from millrace.groups.share.member import ShareMember
from millrace.wire.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
)

MEMBER = ShareMember(
    member_id="m",
    rack="r",
    client_id="c",
    client_host="/h",
    topic_names=("t", "u"),
    epoch=3,
    previous_epoch=2,
    assigned={TopicId(b"t" * 16): frozenset({0, 2})},
)


def test_two_records_tell_all_of_a_member() -> None:
    metadata, assignment = (MEMBER.metadata_record("g").value, MEMBER.assignment_record("g").value)
    assert isinstance(metadata, ShareGroupMemberMetadataValue)
    assert isinstance(assignment, ShareGroupCurrentMemberAssignmentValue)
    assert ShareMember(member_id="m").with_assignment(assignment).with_metadata(metadata) == MEMBER


def test_without_its_assignment_a_member_has_no_epoch() -> None:
    bare = MEMBER.with_assignment(None)
    assert (bare.epoch, bare.previous_epoch, bare.assigned) == (NO_EPOCH, NO_EPOCH, {})
    assert bare.topic_names == ("t", "u")
