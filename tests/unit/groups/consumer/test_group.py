"""The stored state of a consumer group: what each record changes, and that one partition has one owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.consumer.changes import target_epoch_record, target_record
from millrace.groups.consumer.group import ConsumerGroup, ResolvedPattern
from millrace.groups.consumer.member import ClassicSide, ConsumerMember, MemberState
from millrace.groups.errors import IllegalGeneration, StaleMemberEpoch, UnknownMember
from millrace.wire.messages import group_records as stored

T = TopicId(b"t" * 16)


def epoch_record(epoch: int) -> Record:
    return Record(
        stored.ConsumerGroupMetadataKey(group_id="g"), stored.ConsumerGroupMetadataValue(epoch=epoch)
    )


def member(member_id: str, *partitions: int, epoch: int = 1, **values: object) -> ConsumerMember:
    base = ConsumerMember(member_id=member_id, epoch=epoch, topic_names=("t",))
    return replace(base, assigned={T: dict.fromkeys(partitions, epoch)} if partitions else {}, **values)  # type: ignore[arg-type]


def with_members(*members: ConsumerMember, epoch: int = 1) -> ConsumerGroup:
    group = ConsumerGroup("g")
    group.apply(epoch_record(epoch))
    for each in members:
        group.apply(each.metadata_record("g"))
        group.apply(each.assignment_record("g"))
    group.apply(target_epoch_record("g", epoch, 5))
    return group


def test_a_partition_that_is_being_given_up_still_has_its_owner() -> None:
    group = with_members(member("a", 0, 1))
    assert [group.owner_of(T, partition) for partition in range(3)] == ["a", "a", None]
    going = replace(member("a", 0), state=MemberState.UNREVOKED_PARTITIONS, revoking={T: {1: 1}})
    group.apply(going.assignment_record("g"))
    assert group.owner_of(T, 1) == "a"
    group.apply(member("a", 0).assignment_record("g"))
    assert group.owner_of(T, 1) is None
    group.apply(Record(stored.ConsumerGroupMemberMetadataKey(group_id="g", member_id="a"), None))
    assert not group.owners


def test_the_tombstones_of_a_group_leave_nothing_of_it() -> None:
    group = with_members(member("a", 0, instance_id="i"), member("b", 1))
    group.apply(target_record("g", "a", {T: frozenset({0})}))
    pattern = stored.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="x.*")
    group.apply(Record(pattern, stored.ConsumerGroupRegularExpressionValue(topics=["x1"], version=3)))
    assert group.patterns == {"x.*": ResolvedPattern(frozenset({"x1"}), 3, 0)}
    group.apply(Record(stored.ConsumerGroupPartitionMetadataKey(group_id="g"), object()))
    *inner, last = group.tombstones()
    assert last == Record(stored.ConsumerGroupMetadataKey(group_id="g"), None), "the group itself goes last"
    for record in inner:
        assert record.value is None
        group.apply(record)
    assert not any((group.members, group.static_members, group.target, group.owners, group.patterns))
    assert (group.assignment_epoch, group.has_partition_metadata) == (0, False)


def test_a_copy_can_be_changed_alone() -> None:
    group = with_members(member("a", 0))
    twin = group.copy()
    twin.apply(Record(stored.ConsumerGroupMemberMetadataKey(group_id="g", member_id="a"), None))
    assert (list(group.members), list(twin.members)) == (["a"], [])
    assert (group.owner_of(T, 0), twin.owner_of(T, 0)) == ("a", None)
    assert twin.epoch == group.epoch


def test_ready_answers_do_not_outlive_a_change() -> None:
    group = with_members(member("a", 0))
    group.idle["a"] = None  # type: ignore[assignment]
    group.apply(epoch_record(2))
    assert not group.idle


@pytest.mark.parametrize(
    "group, state",
    [
        (with_members(), "Empty"),
        (with_members(member("a", 0)), "Stable"),
        (with_members(member("a", 0), member("b", epoch=0)), "Reconciling"),
    ],
)
def test_the_state_is_told_from_the_epochs(group: ConsumerGroup, state: str) -> None:
    assert group.state_name == state
    assert group.is_empty == (state == "Empty")


def test_a_group_whose_epoch_has_grown_is_being_assigned() -> None:
    group = with_members(member("a", 0))
    group.apply(epoch_record(2))
    assert group.state_name == "Assigning"


def test_commits_are_refused_in_the_words_of_the_members_protocol() -> None:
    group = with_members(
        member("a", 0, epoch=3), member("x", 1, epoch=3, classic=ClassicSide(10, ())), epoch=3
    )
    assert group.check_commit(member_id="a", instance_id=None, generation=3) is None
    assert isinstance(group.check_epoch("a", 2), StaleMemberEpoch)
    assert isinstance(group.check_epoch("x", 2), IllegalGeneration)
    assert isinstance(group.check_epoch("nobody", 3), UnknownMember)
    assert isinstance(group.check_commit(member_id="", instance_id=None, generation=-1), UnknownMember)
    assert with_members().check_commit(member_id="", instance_id=None, generation=-1) is None


def test_a_commit_with_an_earlier_epoch_counts_for_what_the_member_had_then() -> None:
    group = ConsumerGroup("g")
    group.apply(member("a").metadata_record("g"))
    group.apply(replace(member("a", epoch=5), assigned={T: {0: 3, 1: 5}}).assignment_record("g"))

    def refused(partition: int, epoch: int) -> bool:
        found = group.check_commit_of(member_id="a", generation=epoch, topic_id=T, partition=partition)
        return found is not None

    assert [refused(0, epoch) for epoch in (2, 3, 4, 5, 6)] == [True, False, False, False, True]
    assert [refused(1, epoch) for epoch in (4, 5)] == [True, False]
    assert refused(2, 4)


def test_topics_come_from_names_and_from_patterns_that_are_resolved() -> None:
    group = with_members(member("a", topic_pattern="x.*"))
    assert not group.is_subscribed("x1")
    group.patterns["x.*"] = ResolvedPattern(frozenset({"x1"}), 1, 0)
    assert group.is_subscribed("x1")
    assert group.is_subscribed("t")
    assert group.subscribers_of_pattern("x.*") == ["a"]
    assert group.subscribers_of_pattern("y.*") == []
