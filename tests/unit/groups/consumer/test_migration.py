"""Groups that change their protocol while members stay: nobody loses a partition that it may keep."""

from __future__ import annotations

import struct

import pytest

from millrace.core.errors import MillraceError
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.classic.subscriptions import format_assignment, parse_assignment
from millrace.groups.commands import (
    DONE,
    CommitOffsets,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Left,
    OffsetsCommitted,
    OffsetToCommit,
    Protocol,
    Sync,
    Synced,
)
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat, ConsumerSettings
from millrace.groups.consumer.member import MemberState
from millrace.groups.errors import (
    GroupNotFound,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from millrace.wire.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    TopicPartition,
)
from millrace.wire.schema_encoder import compile_encoder
from tests.unit.groups.consumer_lab import GROUP, Lab, stored_state

encode_subscription = compile_encoder(ConsumerProtocolSubscription, 1, flexible=False)


def subscription(owned: list[int], topics: list[str]) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=topics, owned_partitions=[TopicPartition(topic="t", partitions=owned)] if owned else []
    )
    return struct.pack(">h", 1) + encode_subscription(message)


def join(
    member_id: str = "",
    new_id: str = "",
    *,
    owned: list[int] | None = None,
    topics: tuple[str, ...] = ("t",),
    protocol: str = "cooperative-sticky",
    instance_id: str | None = None,
) -> Join:
    return Join(
        group_id=GROUP,
        member_id=member_id,
        instance_id=instance_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(Protocol(protocol, subscription(owned or [], list(topics))),),
        new_member_id=new_id,
        requires_known_member_id=False,
    )


def consumer_join(member_id: str, instance_id: str | None = None) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        GROUP, member_id, 0, instance_id, rebalance_timeout_ms=10_000, topic_names=["t"], owned=[]
    )


def synced(lab: Lab, member_id: str, generation: int) -> list[int]:
    answer = lab.submit(Sync(group_id=GROUP, generation=generation, member_id=member_id))
    assert isinstance(answer, Synced), answer
    partitions = parse_assignment(answer.assignment)
    assert partitions is not None
    return partitions.get("t", [])


@pytest.fixture
def lab() -> Lab:
    """A classic group of two members in generation 1, each with two partitions."""
    lab = Lab()
    lab.set_topic("t", 4)
    lab.submit(join(new_id="x"))
    lab.submit(join(new_id="y"))
    lab.pass_time(0)
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    generation = group.generation
    like = subscription([], [])
    lab.submit(Sync(group_id=GROUP, generation=generation, member_id="y"))
    lab.submit(
        Sync(
            group_id=GROUP,
            generation=generation,
            member_id=group.leader or "",
            assignments=[
                ("x", format_assignment({"t": [0, 1]}, like=like)),
                ("y", format_assignment({"t": [2, 3]}, like=like)),
            ],
        )
    )
    assert group.state_name == "Stable", group
    return lab


def test_a_consumer_member_converts_the_group_and_classic_members_go_on(lab: Lab) -> None:
    generation = lab.machine.groups[GROUP].generation  # type: ignore[attr-defined]
    answer = lab.submit(consumer_join("c"))
    assert isinstance(answer, Beat), answer
    assert answer.member_epoch == generation + 1
    assert answer.assignment == {}
    assert sorted(lab.group.members) == ["c", "x", "y"]
    assert stored_state(lab.group) == stored_state(lab.replayed().groups[GROUP])  # type: ignore[arg-type]

    # They may commit and fetch in their generation until they have joined again.
    commit = CommitOffsets(
        group_id=GROUP, member_id="x", generation=generation, offsets=[OffsetToCommit("t", 0, 1, -1, "")]
    )
    assert lab.submit(commit) == OffsetsCommitted([None])
    for member_id, owned in (("x", [0, 1]), ("y", [2, 3])):
        beat = Heartbeat(GROUP, generation, member_id)
        assert lab.refused(beat) is RebalanceInProgress
        joined = lab.submit(join(member_id, owned=owned))
        assert isinstance(joined, Joined), joined
        kept = synced(lab, member_id, joined.generation)
        assert set(kept) <= set(owned)
        if lab.group.members[member_id].state is MemberState.UNREVOKED_PARTITIONS:
            assert lab.refused(Heartbeat(GROUP, joined.generation, member_id)) is RebalanceInProgress
            joined = lab.submit(join(member_id, owned=kept))
            assert isinstance(joined, Joined), joined
            assert synced(lab, member_id, joined.generation) == kept
        assert lab.submit(Heartbeat(GROUP, joined.generation, member_id)) is DONE
    answer = lab.submit(ConsumerHeartbeat(GROUP, "c", generation + 1))
    assert isinstance(answer, Beat)
    assert answer.assignment is not None
    assert lab.group.state_name == "Stable"


def test_partitions_that_a_classic_member_may_not_have_given_up_yet_are_not_given_away(lab: Lab) -> None:
    """x had all of them when it joined; the newest assignment leaves it two, and one to y."""
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    lab.submit(join("x", owned=[0, 1, 2, 3]))
    lab.submit(join("y", owned=[2]))
    like = subscription([], [])
    shares = [("x", [0, 1]), ("y", [2])]
    assignments = [(member_id, format_assignment({"t": share}, like=like)) for member_id, share in shares]
    lab.submit(
        Sync(
            group_id=GROUP, generation=group.generation, member_id=group.leader or "", assignments=assignments
        )
    )
    assert group.state_name == "Stable", group

    answer = lab.submit(consumer_join("c"))
    assert isinstance(answer, Beat), answer
    assert answer.assignment == {}
    topic = lab.image.topics["t"].topic_id
    assert [lab.group.owner_of(topic, partition) for partition in range(4)] == ["x", "x", "y", "x"]
    assert stored_state(lab.group) == stored_state(lab.replayed().groups[GROUP])  # type: ignore[arg-type]

    # It joins without what it has given up, and that is free then.
    joined = lab.submit(join("x", owned=[]))
    assert isinstance(joined, Joined), joined
    answer = lab.ok(ConsumerHeartbeat(GROUP, "c", answer.member_epoch))
    assert answer.assignment is not None
    assert set(answer.assignment[topic]).isdisjoint(synced(lab, "x", joined.generation))


def test_a_group_that_is_classic_again_knows_what_its_members_have(lab: Lab) -> None:
    lab.submit(consumer_join("c"))
    lab.ok(ConsumerHeartbeat(GROUP, "c", -1))
    for machine in (lab.machine, lab.replayed()):
        group = machine.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        held = {member.member_id: parse_assignment(member.assignment) for member in group.members.values()}
        assert held == {"x": {"t": [0, 1]}, "y": {"t": [2, 3]}}
    answer = lab.submit(consumer_join("d"))
    assert isinstance(answer, Beat), answer
    assert answer.assignment == {}


def test_the_last_consumer_member_takes_the_protocol_with_it(lab: Lab) -> None:
    lab.submit(consumer_join("c"))
    epoch = lab.group.epoch
    lab.ok(ConsumerHeartbeat(GROUP, "c", -1))
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.state_name == "PreparingRebalance"
    assert group.generation == epoch
    assert sorted(group.members) == ["x", "y"]
    replayed = lab.replayed().groups[GROUP]
    assert isinstance(replayed, ClassicGroup)
    assert sorted(replayed.members) == ["x", "y"]
    assert lab.refused(Heartbeat(GROUP, epoch, "x")) is RebalanceInProgress
    lab.submit(join("x", owned=[0, 1]))
    lab.submit(join("y", owned=[2, 3]))
    assert group.state_name == "CompletingRebalance"


def test_there_and_back_again_by_time_outs(lab: Lab) -> None:
    lab.submit(consumer_join("c"))
    for _ in range(9):
        lab.pass_time(5_000)
        for member_id in ("x", "y"):
            group = lab.machine.groups[GROUP]
            if not isinstance(group, ClassicGroup):
                answer = lab.submit(join(member_id, owned=[]))
                assert isinstance(answer, Joined | MillraceError)
                if isinstance(answer, Joined):
                    synced(lab, member_id, answer.generation)
    assert isinstance(lab.machine.groups[GROUP], ClassicGroup), "c was silent for its session"


def test_a_classic_member_that_does_not_rejoin_is_dropped(lab: Lab) -> None:
    lab.submit(consumer_join("c"))
    generation = lab.group.members["x"].epoch
    for _ in range(7):
        lab.pass_time(5_000)
        if "x" in lab.group.members:
            assert lab.refused(Heartbeat(GROUP, generation, "x")) is RebalanceInProgress
        lab.submit(ConsumerHeartbeat(GROUP, "c", lab.group.members["c"].epoch))
    assert list(lab.group.members) == ["c"]


def test_classic_members_are_checked_like_in_a_classic_group(lab: Lab) -> None:
    lab.submit(consumer_join("c"))
    assert lab.refused(Heartbeat(GROUP, 77, "x")) is IllegalGeneration
    assert lab.refused(Heartbeat(GROUP, 1, "nobody")) is UnknownMember
    assert lab.refused(Heartbeat(GROUP, lab.group.members["c"].epoch, "c")) is UnknownMember
    assert lab.refused(join(new_id="z", protocol="else")) is InconsistentProtocol
    first = join(new_id="z")
    needs_id = Join(
        **{name: getattr(first, name) for name in first.__slots__} | {"requires_known_member_id": True}
    )
    assert lab.refused(needs_id) is MemberIdRequired
    answer = lab.submit(Leave(GROUP, [LeavingMember("x"), LeavingMember("nobody")]))
    assert isinstance(answer, Left)
    assert [type(error) for _, error in answer.members] == [type(None), UnknownMember]
    assert sorted(lab.group.members) == ["c", "y"]


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions() -> None:
    lab = Lab()
    lab.set_topic("t", 4)
    lab.ok(consumer_join("c", "i"))
    lab.ok(consumer_join("d"))
    lab.ok(ConsumerHeartbeat(GROUP, "c", -2, "i"))
    joined = lab.submit(join(new_id="x", instance_id="i"))
    assert isinstance(joined, Joined), joined
    assert sorted(lab.group.members) == ["d", "x"]
    assert lab.group.static_members == {"i": "x"}
    assert stored_state(lab.group) == stored_state(lab.replayed().groups[GROUP])  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_without_the_policy_a_classic_group_stays_classic(lab: Lab, policy: str) -> None:
    lab.settings = ConsumerSettings(migration_policy=policy)
    assert lab.refused(consumer_join("c")) is GroupNotFound
    assert isinstance(lab.machine.groups[GROUP], ClassicGroup)


def test_without_the_policy_a_consumer_group_stays_one(lab: Lab) -> None:
    lab.settings = ConsumerSettings(migration_policy="upgrade", assignment_interval_ms=0)
    lab.submit(consumer_join("c"))
    lab.ok(ConsumerHeartbeat(GROUP, "c", -1))
    assert sorted(lab.group.members) == ["x", "y"]


def test_members_that_wait_for_a_generation_are_called_back() -> None:
    lab = Lab()
    lab.set_topic("t", 4)
    lab.submit(join(new_id="x"))
    first = lab.token
    lab.pass_time(0)
    lab.submit(join(new_id="y"))
    second = lab.token
    assert second not in lab.answers
    answer = lab.submit(consumer_join("c"))
    assert isinstance(answer, Beat), answer
    assert isinstance(lab.answers[first], Joined)
    assert isinstance(lab.answers[second], RebalanceInProgress)
    assert sorted(lab.group.members) == ["c", "x", "y"]
    assert isinstance(lab.submit(join("y")), Joined)


def test_the_last_consumer_member_may_come_back_as_a_classic_one() -> None:
    lab = Lab()
    lab.set_topic("t", 4)
    lab.ok(consumer_join("c", "i"))
    lab.ok(ConsumerHeartbeat(GROUP, "c", -2, "i"))
    assert lab.submit(join(new_id="x", instance_id="i")) is None
    lab.pass_time(0)
    assert isinstance(lab.answers[lab.token], Joined)
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert list(group.members) == ["x"]
    assert isinstance(lab.replayed().groups[GROUP], ClassicGroup)


def test_the_last_consumer_member_may_join_the_classic_ones(lab: Lab) -> None:
    lab.submit(consumer_join("c", "i"))
    lab.ok(ConsumerHeartbeat(GROUP, "c", -2, "i"))
    lab.submit(join(new_id="z", instance_id="i"))
    token = lab.token
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    lab.submit(join("x"))
    lab.submit(join("y"))
    assert isinstance(lab.answers[token], Joined)
    assert sorted(group.members) == ["x", "y", "z"]


def test_without_any_policy_classic_members_stay_out() -> None:
    lab = Lab(ConsumerSettings(migration_policy="disabled", assignment_interval_ms=0))
    lab.set_topic("t", 4)
    lab.ok(consumer_join("c"))
    assert lab.refused(join(new_id="x")) is InconsistentProtocol
