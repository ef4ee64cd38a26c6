"""One member of a consumer group: its records give it back, those of older versions too."""

from __future__ import annotations

from millrace.core.ids import TopicId
from millrace.groups.commands import Protocol
from millrace.groups.consumer.member import NO_EPOCH, ClassicSide, ConsumerMember, MemberState
from millrace.wire.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)
MEMBER = ConsumerMember(
    member_id="m",
    instance_id="i",
    rack="r",
    client_id="c",
    client_host="/h",
    topic_names=("a", "b"),
    topic_pattern="x.*",
    rebalance_timeout_ms=10,
    server_assignor="uniform",
    classic=ClassicSide(20, (Protocol("range", b"r"), Protocol("sticky", b"s"))),
    epoch=5,
    previous_epoch=4,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned={T: {0: 3, 2: 5}},
    revoking={U: {1: 2}},
)


def restored(member: ConsumerMember) -> ConsumerMember:
    metadata, assignment = member.metadata_record("g").value, member.assignment_record("g").value
    assert isinstance(metadata, ConsumerGroupMemberMetadataValue)
    assert isinstance(assignment, ConsumerGroupCurrentMemberAssignmentValue)
    return ConsumerMember(member_id=member.member_id).with_metadata(metadata).with_assignment(assignment)


def test_both_records_of_a_member_give_it_back() -> None:
    assert restored(MEMBER) == MEMBER
    plain = ConsumerMember(member_id="n", epoch=1, previous_epoch=0)
    assert restored(plain) == plain


def test_its_metadata_is_what_it_tells_and_not_where_it_stands() -> None:
    assert MEMBER.tells_same_as(MEMBER.with_epoch(6, MemberState.STABLE, {}))
    assert not MEMBER.tells_same_as(ConsumerMember(member_id="m"))


def test_without_an_assignment_a_member_has_nothing() -> None:
    after = MEMBER.with_assignment(None)
    assert (after.epoch, after.previous_epoch, after.state) == (NO_EPOCH, NO_EPOCH, MemberState.STABLE)
    assert (after.assigned, after.revoking) == ({}, {})
    assert after.topic_names == MEMBER.topic_names


def test_older_records_that_say_not_since_when_count_from_the_members_epoch() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=9,
        assigned_partitions=[TopicPartitions(topic_id=T, partitions=[0, 1], assignment_epochs=None)],
    )
    assert MEMBER.with_assignment(value).assigned == {T: {0: 9, 1: 9}}


def test_a_state_of_a_later_version_is_unknown() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(member_epoch=9, state=42)
    assert MEMBER.with_assignment(value).state is MemberState.UNKNOWN


def test_it_has_reached_the_target_when_it_is_stable_in_its_epoch() -> None:
    stable = MEMBER.with_epoch(6, MemberState.STABLE, {})
    assert (stable.epoch, stable.previous_epoch) == (6, 5)
    assert stable.has_reached(6)
    assert not stable.has_reached(7)
    assert not MEMBER.has_reached(5)
