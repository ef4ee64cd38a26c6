"""Consumer groups by example: joining, reconciling, fencing, static members, patterns, topics that change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    OffsetsCommitted,
    OffsetToCommit,
)
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat, ConsumerSettings, PatternsResolved
from millrace.groups.consumer.member import MemberState
from millrace.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    GroupNotEmpty,
    GroupNotFound,
    InvalidHeartbeat,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from tests.unit.groups.consumer_lab import GROUP, Lab

Owned = list[tuple[TopicId, Sequence[int]]]


def join(
    member_id: str,
    names: Sequence[str] | None = ("t",),
    *,
    instance_id: str | None = None,
    assignor: str | None = None,
    pattern: str | None = None,
    resolved: dict[str, frozenset[str]] | None = None,
    rack: str | None = None,
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        GROUP,
        member_id,
        0,
        instance_id,
        rack,
        rebalance_timeout_ms=10_000,
        topic_names=names,
        topic_pattern=pattern,
        server_assignor=assignor,
        owned=[],
        resolved=resolved,
    )


def beat(
    member_id: str, epoch: int, owned: Owned | None = None, *, instance_id: str | None = None
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(GROUP, member_id, epoch, instance_id, owned=owned)


def partitions(answer: Beat) -> list[int] | None:
    if answer.assignment is None:
        return None
    return [partition for numbers in answer.assignment.values() for partition in numbers]


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    lab.set_topic("t", 4)
    return lab


def test_the_first_member_has_everything_at_once(lab: Lab) -> None:
    answer = lab.ok(join("a"))
    assert answer.member_epoch == 1
    assert partitions(answer) == [0, 1, 2, 3]
    assert answer.heartbeat_interval_ms == 5_000
    idle = lab.ok(beat("a", 1))
    assert idle.assignment is None, "nothing has changed"
    assert lab.group.state_name == "Stable"


def test_a_second_member_waits_until_the_first_has_given_up_its_share(lab: Lab) -> None:
    t = lab.image.topics["t"].topic_id
    lab.ok(join("a"))
    second = lab.ok(join("b"))
    assert (second.member_epoch, partitions(second)) == (2, [])
    assert lab.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    told = lab.ok(beat("a", 1))
    assert (told.member_epoch, partitions(told)) == (1, [0, 1]), "it stays in its epoch while it revokes"
    assert lab.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    still = lab.ok(beat("a", 1, [(t, [0, 1, 2, 3])]))
    assert still.member_epoch == 1
    assert partitions(lab.ok(beat("b", 2))) is None, "nobody gets what another may still consume"
    assert lab.group.state_name == "Reconciling"
    done = lab.ok(beat("a", 1, [(t, [0, 1])]))
    assert done.member_epoch == 2
    assert partitions(lab.ok(beat("b", 2))) == [2, 3]
    assert lab.group.state_name == "Stable"


def test_a_member_that_does_not_give_up_in_time_is_fenced(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.ok(join("b"))
    lab.ok(beat("a", 1))
    for _ in range(3):
        lab.pass_time(5_000)
        if "a" in lab.group.members:
            lab.ok(beat("a", 1))
        lab.ok(beat("b", lab.group.members["b"].epoch))
    assert list(lab.group.members) == ["b"]
    assert lab.refused(beat("a", 1)) is UnknownMember
    lab.ok(beat("b", lab.group.members["b"].epoch))
    assert lab.group.state_name == "Stable"


def test_a_member_that_is_silent_for_its_session_is_gone(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.pass_time(44_000)
    lab.ok(beat("a", 1))
    lab.pass_time(44_000)
    assert list(lab.group.members) == ["a"]
    lab.pass_time(2_000)
    assert lab.group.state_name == "Empty"


def test_a_groups_own_settings_go_before_the_brokers(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.ok(beat("a", 1))
    lab.group_configs[GROUP] = {
        "consumer.session.timeout.ms": "2000",
        "consumer.heartbeat.interval.ms": "700",
    }
    assert lab.ok(beat("a", 1)).heartbeat_interval_ms == 700
    lab.pass_time(2_001)
    assert lab.group.is_empty


def test_epochs_fence_members_that_know_too_much_or_too_little(lab: Lab) -> None:
    t = lab.image.topics["t"].topic_id
    lab.ok(join("a"))
    assert lab.refused(beat("a", 7)) is FencedMemberEpoch
    lab.set_topic("t", 5)
    assert lab.ok(beat("a", 1)).member_epoch == 2
    assert lab.refused(beat("a", 1)) is FencedMemberEpoch, "it does not say what it owns"
    assert lab.refused(beat("a", 1, [(t, [9])])) is FencedMemberEpoch
    lost = lab.ok(beat("a", 1, [(t, [0, 1])]))
    assert lost.member_epoch == 2, "the answer with the new epoch was lost"
    assert partitions(lab.ok(join("a"))) == [0, 1, 2, 3, 4], "to join anew is always allowed"


def test_requests_that_make_no_sense_are_refused(lab: Lab) -> None:
    assert lab.refused(join("a")._replace(rebalance_timeout_ms=-1)) is InvalidHeartbeat
    assert lab.refused(join("a")._replace(owned=None)) is InvalidHeartbeat
    assert lab.refused(join("a", None)) is InvalidHeartbeat
    assert lab.refused(join("")) is InvalidHeartbeat
    assert lab.refused(beat("a", -2)) is InvalidHeartbeat
    assert lab.refused(beat("a", -3)) is InvalidHeartbeat
    assert lab.refused(join("a", assignor="roundrobin")) is UnsupportedAssignor
    assert lab.refused(beat("a", 3)) is GroupNotFound
    lab.ok(join("a"))
    assert lab.refused(beat("b", 3)) is UnknownMember
    assert lab.refused(beat("b", -1)) is UnknownMember
    assert list(lab.group.members) == ["a"]


def test_a_full_group_takes_no_more_members() -> None:
    lab = Lab(ConsumerSettings(size_max=1, assignment_interval_ms=0))
    lab.ok(join("a"))
    assert lab.refused(join("b")) is GroupFull
    lab.ok(join("a"))


def test_many_joins_at_once_cost_few_assignments() -> None:
    lab = Lab()
    lab.settings = ConsumerSettings()
    lab.set_topic("t", 100)
    for number in range(20):
        lab.ok(join(f"m{number}"))
        lab.pass_time(10)
    assert lab.group.assignment_epoch == 1
    assert lab.group.state_name == "Assigning"
    lab.pass_time(1_000)
    lab.ok(beat("m3", lab.group.members["m3"].epoch))
    assert lab.group.assignment_epoch == lab.group.epoch == 20


def test_leaving_frees_the_partitions_at_once(lab: Lab) -> None:
    lab.ok(join("a"))
    assert lab.ok(beat("a", -1)).member_epoch == -1
    assert partitions(lab.ok(join("b"))) == [0, 1, 2, 3]


def test_a_group_without_members_can_be_deleted(lab: Lab) -> None:
    lab.ok(join("a"))
    assert lab.refused(DeleteGroup(GROUP)) is GroupNotEmpty
    lab.ok(beat("a", -1))
    lab.submit(DeleteGroup(GROUP))
    assert GROUP not in lab.machine.groups
    assert GROUP not in lab.replayed().groups
    assert GROUP not in lab.replayed(is_compacted=True).groups


# Static members.


def test_a_static_member_that_comes_back_gets_its_partitions_without_a_rebalance(lab: Lab) -> None:
    t = lab.image.topics["t"].topic_id
    lab.ok(join("a", instance_id="i"))
    lab.ok(join("b"))
    lab.ok(beat("a", 1, [(t, [0, 1])], instance_id="i"))
    lab.ok(beat("a", 1, [(t, [0, 1])], instance_id="i"))
    lab.ok(beat("b", 2))
    epoch = lab.group.epoch
    assert lab.refused(join("c", instance_id="i")) is UnreleasedInstance
    assert lab.ok(beat("a", -2, instance_id="i")).member_epoch == -2
    assert partitions(lab.ok(beat("b", 2))) is None
    back = lab.ok(join("c", instance_id="i"))
    assert (back.member_epoch, partitions(back)) == (2, [0, 1])
    assert lab.group.epoch == epoch, "nobody else has noticed"
    assert lab.group.static_members == {"i": "c"}
    assert lab.refused(beat("a", 2, instance_id="i")) is FencedInstance


def test_a_static_member_that_stays_away_loses_its_partitions(lab: Lab) -> None:
    lab.ok(join("a", instance_id="i"))
    lab.ok(beat("a", -2, instance_id="i"))
    lab.pass_time(45_001)
    assert lab.group.is_empty
    assert not lab.group.static_members


# Topics and patterns.


def test_new_partitions_and_topics_are_assigned_with_the_next_heartbeat(lab: Lab) -> None:
    lab.ok(join("a", ["t", "u"]))
    lab.set_topic("t", 6)
    assert partitions(lab.ok(beat("a", 1))) == [0, 1, 2, 3, 4, 5]
    u = lab.set_topic("u", 2)
    answer = lab.ok(beat("a", 2))
    assert answer.assignment is not None
    assert answer.assignment[u] == [0, 1]
    lab.set_topic("other", 2)
    assert lab.ok(beat("a", 3)).assignment is None
    assert lab.group.epoch == 3, "what nobody is subscribed to changes nothing"


def test_a_topic_created_anew_under_its_name_is_another_topic(lab: Lab) -> None:
    old = lab.image.topics["t"].topic_id
    lab.ok(join("a"))
    new = lab.set_topic("t", 2, is_new=True)
    answer = lab.ok(beat("a", 1))
    assert answer.assignment == {}
    answer = lab.ok(beat("a", 1, []))
    assert answer.assignment is not None
    assert new in answer.assignment
    assert old not in answer.assignment


def test_a_pattern_follows_the_topics_that_it_matches(lab: Lab) -> None:
    answer = lab.ok(join("a", [], pattern="t.*", resolved={"t.*": frozenset({"t"})}))
    assert partitions(answer) == [0, 1, 2, 3]
    t2 = lab.set_topic("t2", 1)
    lab.submit(PatternsResolved(GROUP, {"t.*": frozenset({"t", "t2"}), "unused": frozenset()}))
    answer = lab.ok(beat("a", 1))
    assert answer.assignment is not None
    assert t2 in answer.assignment
    assert set(lab.group.patterns) == {"t.*"}
    epoch = lab.group.epoch
    lab.submit(PatternsResolved(GROUP, {"t.*": frozenset({"t", "t2"})}))
    assert lab.group.epoch == epoch
    # A pattern that nobody has any more is forgotten.
    lab.ok(beat("a", epoch)._replace(topic_names=["t"], topic_pattern="", rebalance_timeout_ms=1, owned=[]))
    assert not lab.group.patterns


def test_patterns_are_matched_anew_after_a_restart(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.restart()
    assert lab.patterns_loaded == 0
    lab.ok(join("b", [], pattern="t.*", resolved={"t.*": frozenset({"t"})}))
    lab.restart()
    assert lab.patterns_loaded == 1


def test_the_assignor_is_what_most_members_ask_for(lab: Lab) -> None:
    lab.set_topic("u", 4)
    lab.ok(join("a", ["t", "u"], assignor="range"))
    lab.ok(join("b", ["t", "u"], assignor="range"))
    lab.ok(join("c", ["t", "u"], assignor="uniform"))
    numbers = [[sorted(run) for run in target.values()] for target in lab.group.target.values()]
    assert [[0, 1], [0, 1]] in numbers


def test_members_get_what_their_rack_has(lab: Lab) -> None:
    lab.settings = ConsumerSettings()
    lab.set_racks({0: "x", 1: "y", 2: "z"})
    lab.set_topic("t", 6)
    for name, rack in (("a", "z"), ("b", "y"), ("c", "x")):
        lab.ok(join(name, rack=rack))
    lab.pass_time(1_000)
    lab.ok(beat("a", 1))
    for name, rack_number in (("a", 2), ("b", 1), ("c", 0)):
        (numbers,) = lab.group.target[name].values()
        assert {number % 3 for number in numbers} == {rack_number}


# Offsets.


def commit(member_id: str, epoch: int, numbers: Sequence[int]) -> CommitOffsets:
    return CommitOffsets(
        group_id=GROUP,
        member_id=member_id,
        generation=epoch,
        offsets=[OffsetToCommit("t", number, 5, -1, "", NO_TOPIC_ID) for number in numbers],
    )


def test_commits_are_taken_from_members_in_their_epoch(lab: Lab) -> None:
    lab.ok(join("a"))
    assert lab.submit(commit("a", 1, [0])) == OffsetsCommitted([None])
    assert lab.refused(commit("a", 2, [0])) is StaleMemberEpoch
    assert lab.refused(commit("b", 1, [0])) is UnknownMember
    assert lab.refused(commit("", -1, [0])) is UnknownMember
    lab.ok(beat("a", -1))
    assert lab.submit(commit("", -1, [0])) == OffsetsCommitted([None]), "an administrator, while all are away"


def test_a_commit_in_flight_while_the_epoch_grows_counts_for_what_the_member_had_before(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.set_topic("t", 5)
    assert lab.ok(beat("a", 1)).member_epoch == 2
    answer = lab.submit(commit("a", 1, [0, 4]))
    assert isinstance(answer, OffsetsCommitted)
    assert answer.errors[0] is None
    assert isinstance(answer.errors[1], StaleMemberEpoch), "partition 4 has come with epoch 2"
    assert lab.refused(commit("a", 1, [4])) is StaleMemberEpoch


def test_a_group_that_only_has_offsets_becomes_a_consumer_group(lab: Lab) -> None:
    lab.submit(commit("", -1, [0]))
    assert isinstance(lab.machine.groups[GROUP], ClassicGroup)
    lab.ok(join("a"))
    assert lab.group.epoch == 1
    assert lab.replayed().groups[GROUP].type_name == "consumer"
    lab.ok(beat("a", -1))
    lab.submit(DeleteGroup(GROUP))
    assert GROUP not in lab.machine.groups


def test_members_live_on_after_a_restart_of_the_coordinator(lab: Lab) -> None:
    lab.ok(join("a"))
    lab.ok(join("b"))
    lab.ok(beat("a", 1))
    lab.restart()
    assert lab.ok(beat("b", 2)).assignment is None
    lab.pass_time(10_001)
    assert list(lab.group.members) == ["b"], "the time to give partitions up goes on"


def test_a_large_assignment_may_fill_several_batches(lab: Lab) -> None:
    lab.ok(join("a", instance_id="i"))
    changes = lab.machine.decide(join("b"), lab.now_ms, 0)
    assert not changes.is_atomic
    kinds = [type(record.key).__name__ for record in changes.records]
    assert kinds.index("ConsumerGroupTargetAssignmentMetadataKey") > max(
        place for place, kind in enumerate(kinds) if kind == "ConsumerGroupTargetAssignmentMemberKey"
    ), "until the epoch is stored the old assignment counts"
    lab.ok(beat("a", -2, instance_id="i"))
    back = lab.machine.decide(join("c", instance_id="i"), lab.now_ms, 0)
    assert back.is_atomic, "a member must not vanish between its old id and its new one"
