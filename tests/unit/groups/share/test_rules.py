"""Share groups by example: joining, sharing, fencing, state that comes and goes, topics that change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.coordinator.decision import Record
from millrace.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    FetchOffsets,
    Heartbeat,
    TopicsDeleted,
)
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat
from millrace.groups.errors import (
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    InvalidHeartbeat,
    UnknownMember,
)
from millrace.groups.share.commands import (
    AlterShareOffsets,
    BeatBeforeState,
    BeginStateDeletion,
    ShareGroupSettings,
    ShareHeartbeat,
    StateDeleted,
    StateInitialized,
    StateNotInitialized,
    StateToDelete,
    StateToInitialize,
)
from millrace.groups.share.group import ShareGroup
from tests.unit.groups.share_lab import GROUP, ShareLab, joining, numbers, stored_share


@pytest.fixture
def lab() -> ShareLab:
    lab = ShareLab()
    lab.set_topic("t", 4)
    return lab


def test_a_new_group_asks_for_state_and_gets_its_partitions_with_the_next_step(lab: ShareLab) -> None:
    first = lab.submit(joining("a"))
    assert isinstance(first, BeatBeforeState)
    assert (first.beat.member_epoch, numbers(first.beat)) == (1, [])
    topic = lab.image.topics["t"].topic_id
    assert first.missing == StateToInitialize(1, {topic: frozenset(range(4))})
    lab.submit(StateInitialized(GROUP, first.missing.partitions))
    second = lab.submit(ShareHeartbeat(GROUP, "a", 1))
    assert isinstance(second, Beat)
    assert (second.member_epoch, numbers(second)) == (2, [0, 1, 2, 3])
    assert numbers(lab.stay("a")) is None, "nothing has changed since"


def test_the_first_partitions_do_not_wait_for_the_interval_of_assignments() -> None:
    lab = ShareLab(ShareGroupSettings(assignment_interval_ms=1_000))
    lab.set_topic("t", 2)
    assert numbers(lab.join("a")) == [0, 1]
    assert numbers(lab.join("b")) == [], "the next assignment is not due yet"
    lab.pass_time(1_000)
    assert numbers(lab.stay("b")) == [1]
    assert numbers(lab.stay("a")) == [0]


def test_members_share_partitions_when_there_are_more_of_them(lab: ShareLab) -> None:
    names = [f"m{number}" for number in range(6)]
    for name in names:
        lab.join(name)
    for _ in range(2):
        for name in names:
            lab.stay(name)
    held = [sorted(p for ps in lab.shares.members[name].assigned.values() for p in ps) for name in names]
    assert sorted(len(each) for each in held) == [1, 1, 1, 1, 2, 2]
    assert {number for each in held for number in each} == {0, 1, 2, 3}


def test_a_lost_answer_is_no_reason_to_be_fenced(lab: ShareLab) -> None:
    lab.join("a")
    lab.join("b")
    old = lab.shares.members["a"].epoch
    new = lab.stay("a").member_epoch
    assert new > old
    again = lab.beat(ShareHeartbeat(GROUP, "a", old))
    assert again.member_epoch == new
    for epoch in (old - 1, new + 1):
        assert lab.refused(ShareHeartbeat(GROUP, "a", epoch)) is FencedMemberEpoch


def test_a_member_joins_again_with_what_it_has(lab: ShareLab) -> None:
    lab.join("a")
    assert numbers(lab.join("a")) == [0, 1, 2, 3]
    assert list(lab.shares.members) == ["a"]


@pytest.mark.parametrize(
    "command",
    [
        ShareHeartbeat(GROUP, "", 0, topic_names=["t"]),
        ShareHeartbeat(GROUP, "x" * 37, 0, topic_names=["t"]),
        ShareHeartbeat("", "a", 0, topic_names=["t"]),
        ShareHeartbeat(GROUP, "a", 0, rack="", topic_names=["t"]),
        ShareHeartbeat(GROUP, "a", 0, topic_names=[]),
        ShareHeartbeat(GROUP, "a", 0),
        ShareHeartbeat(GROUP, "a", -2),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(lab: ShareLab, command: ShareHeartbeat) -> None:
    assert lab.refused(command) is InvalidHeartbeat
    assert not lab.machine.groups


def test_who_is_not_there_is_unknown(lab: ShareLab) -> None:
    for epoch in (1, -1):
        assert lab.refused(ShareHeartbeat(GROUP, "a", epoch)) is GroupNotFound
    lab.join("a")
    for epoch in (1, -1):
        assert lab.refused(ShareHeartbeat(GROUP, "b", epoch)) is UnknownMember


def test_a_full_group_takes_nobody_more(lab: ShareLab) -> None:
    lab.share_settings = ShareGroupSettings(size_max=1)
    lab.join("a")
    assert lab.refused(joining("b")) is GroupFull
    lab.stay("a")
    lab.join("a")


def test_members_leave_or_time_out_and_the_others_take_over(lab: ShareLab) -> None:
    lab.join("a")
    lab.join("b")
    assert numbers(lab.stay("a")) == [0, 1]
    assert lab.submit(ShareHeartbeat(GROUP, "b", -1)) == Beat("b", -1, 0)
    assert numbers(lab.stay("a")) == [0, 1, 2, 3]
    lab.pass_time(44_999)
    assert list(lab.shares.members) == ["a"]
    lab.pass_time(1)
    assert (lab.shares.is_empty, lab.shares.state_name) == (True, "Empty")


def test_sessions_go_on_after_a_restart(lab: ShareLab) -> None:
    lab.join("a")
    lab.restart()
    assert numbers(lab.stay("a")) is None
    lab.pass_time(45_000)
    assert lab.shares.is_empty


def test_a_topic_that_comes_later_is_assigned(lab: ShareLab) -> None:
    assert numbers(lab.join("a", "later")) == []
    lab.set_topic("later", 2)
    assert numbers(lab.stay("a")) == [0, 1]
    lab.set_topic("later", 3)
    assert numbers(lab.stay("a")) == [0, 1, 2], "and so are its new partitions"


def test_a_deleted_topic_is_forgotten_with_its_state(lab: ShareLab) -> None:
    gone = lab.image.topics["t"].topic_id
    lab.join("a")
    lab.delete_topic("t")
    lab.submit(TopicsDeleted(["t"], [gone]))
    assert lab.shares.state.initialized == {}
    assert numbers(lab.stay("a")) == []
    lab.set_topic("t", 1)
    assert numbers(lab.stay("a")) == [0], "a topic of the same name is another one"
    assert gone not in lab.shares.members["a"].assigned


def test_state_that_could_not_be_stored_is_tried_again_at_once(lab: ShareLab) -> None:
    first = lab.submit(joining("a"))
    assert isinstance(first, BeatBeforeState)
    assert isinstance(lab.submit(ShareHeartbeat(GROUP, "a", 1)), Beat), "it is under way"
    lab.submit(StateNotInitialized(GROUP, first.missing.partitions))
    assert isinstance(lab.submit(ShareHeartbeat(GROUP, "a", 1)), BeatBeforeState)


def test_state_that_nobody_hears_of_is_tried_again_after_a_while(lab: ShareLab) -> None:
    lab.submit(joining("a"))
    for _ in range(3):
        lab.pass_time(9_999)
        assert isinstance(lab.submit(ShareHeartbeat(GROUP, "a", 1)), Beat)
    lab.pass_time(3)
    assert isinstance(lab.submit(ShareHeartbeat(GROUP, "a", 1)), BeatBeforeState)


def test_a_new_coordinator_does_not_wait_for_the_old_ones_attempt(lab: ShareLab) -> None:
    lab.submit(joining("a"))
    lab.restart()
    assert isinstance(lab.submit(ShareHeartbeat(GROUP, "a", 1)), BeatBeforeState)


def test_a_group_is_of_one_kind(lab: ShareLab) -> None:
    lab.join("a")
    consumer = ConsumerHeartbeat(GROUP, "c", 0, rebalance_timeout_ms=1, topic_names=["t"], owned=[])
    assert lab.refused(consumer) is GroupNotFound
    assert lab.refused(Heartbeat(GROUP, 1, "a")) is UnknownMember
    assert lab.refused(CommitOffsets(group_id=GROUP)) is GroupNotFound
    assert lab.refused(FetchOffsets(GROUP, None)) is GroupNotFound
    assert lab.refused(DeleteOffsets(GROUP, [("t", 0)])) is GroupNotFound
    other = ConsumerHeartbeat("other", "c", 0, rebalance_timeout_ms=1, topic_names=["t"], owned=[])
    lab.ok(other)
    assert lab.refused(joining("a", group_id="other")) is GroupNotFound
    assert lab.refused(ShareHeartbeat("other", "a", -1)) is GroupNotFound
    assert lab.refused(AlterShareOffsets("other", {})) is GroupNotFound


def test_offsets_are_altered_for_an_empty_group_alone_and_under_a_new_epoch(lab: ShareLab) -> None:
    topic = lab.image.topics["t"].topic_id
    some = {topic: frozenset({1})}
    lab.submit(AlterShareOffsets(GROUP, {}))
    assert not lab.machine.groups, "nothing was altered"
    assert lab.submit(AlterShareOffsets(GROUP, some)) == StateToInitialize(1, some), "it makes the group"
    assert lab.shares.state.initializing[topic].partitions == {1}
    lab.submit(StateInitialized(GROUP, some))
    assert lab.shares.state.assignable() == some
    assert numbers(lab.join("a")) == [0, 1, 2, 3], "the others follow"
    assert lab.refused(AlterShareOffsets(GROUP, some)) is GroupNotEmpty
    lab.submit(ShareHeartbeat(GROUP, "a", -1))
    epoch = lab.shares.epoch
    assert lab.submit(AlterShareOffsets(GROUP, some)) == StateToInitialize(epoch + 1, some)


def test_a_paused_group_is_moved_with_its_members(lab: ShareLab) -> None:
    topic = lab.image.topics["t"].topic_id
    some = {topic: frozenset({1})}
    lab.join("a")
    lab.share_settings = replace(lab.share_settings, is_paused=True)
    epoch = lab.shares.epoch
    assert lab.submit(AlterShareOffsets(GROUP, some)) == StateToInitialize(epoch + 1, some)
    lab.submit(StateInitialized(GROUP, some))
    assert lab.shares.state.assignable() == {topic: frozenset(range(4))}


def test_state_is_deleted_before_the_group(lab: ShareLab) -> None:
    topic = lab.image.topics["t"].topic_id
    lab.join("a")
    assert lab.refused(BeginStateDeletion(GROUP, None)) is GroupNotEmpty
    assert lab.refused(DeleteGroup(GROUP)) is GroupNotEmpty
    lab.submit(ShareHeartbeat(GROUP, "a", -1))
    everything = StateToDelete({topic: frozenset(range(4))})
    assert lab.submit(BeginStateDeletion(GROUP, None)) == everything
    assert lab.shares.state.deleting == {topic: "t"}
    assert lab.submit(BeginStateDeletion(GROUP, [topic])) == everything, "a second attempt begins anew"
    lab.submit(StateDeleted(GROUP, [topic]))
    assert lab.submit(BeginStateDeletion(GROUP, [topic])) == StateToDelete({})
    lab.submit(DeleteGroup(GROUP))
    assert not lab.machine.groups
    assert not lab.replayed(is_compacted=True).groups


def test_an_empty_group_does_not_expire(lab: ShareLab) -> None:
    lab.join("a")
    lab.submit(ShareHeartbeat(GROUP, "a", -1))
    lab.submit(ExpireOffsets())
    assert lab.shares.is_empty


def test_an_idle_heartbeat_has_a_ready_answer(lab: ShareLab) -> None:
    lab.join("a")
    epoch = lab.stay("a").member_epoch
    first = lab.machine.decide(ShareHeartbeat(GROUP, "a", epoch), lab.now_ms, 1)
    assert lab.machine.decide(ShareHeartbeat(GROUP, "a", epoch), lab.now_ms, 2) is first
    lab.set_topic("other", 1)
    assert lab.machine.decide(ShareHeartbeat(GROUP, "a", epoch), lab.now_ms, 3) is not first
    lab.share_settings = ShareGroupSettings(heartbeat_interval_ms=7)
    answer = lab.stay("a")
    assert answer.heartbeat_interval_ms == 7


def test_what_is_live_is_what_a_restart_reads(lab: ShareLab) -> None:
    lab.join("a")
    lab.join("b", "t", "u")
    lab.set_topic("u", 3)
    for name in ("a", "b", "a", "b"):
        lab.stay(name)
    lab.submit(ShareHeartbeat(GROUP, "a", -1))
    lab.stay("b")
    for is_compacted in (False, True):
        replayed = lab.replayed(is_compacted=is_compacted).groups[GROUP]
        assert isinstance(replayed, ShareGroup)
        assert stored_share(replayed) == stored_share(lab.shares)


def test_tombstones_of_a_group_that_is_gone_are_harmless(lab: ShareLab) -> None:
    lab.join("a")
    tombstones = lab.shares.tombstones()
    for _ in range(2):
        for record in tombstones:
            lab.machine.apply(Record(*record))
    assert not lab.machine.groups
