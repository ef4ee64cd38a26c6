"""The groups of one partition: each command finds its rules, and groups change their kind by records."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from millrace.coordinator.decision import Decision, Record, SetTimer, Timer, Token, Unstored
from millrace.core.override import override
from millrace.groups.classic.group import ClassicGroup, State
from millrace.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    ExpireOffsets,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    Left,
    OffsetToCommit,
    Protocol,
    Sync,
)
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.errors import GroupNotEmpty, GroupNotFound, InconsistentProtocol, UnknownMember
from millrace.groups.kinds import Group, GroupRules
from millrace.groups.machine import GroupMachine
from millrace.wire.messages.group_records import GroupMetadataKey
from millrace.wire.messages.share_group_records import ShareGroupMetadataKey, ShareGroupMetadataValue
from tests.unit.groups.consumer.test_rules import join as consumer_joins
from tests.unit.groups.consumer_lab import GROUP, Lab
from tests.unit.groups.worlds import World, error_of, subscription


def classic_join(protocols: tuple[Protocol, ...] = (Protocol("range", subscription("t")),)) -> Join:
    return Join(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=protocols,
        new_member_id="new",
        requires_known_member_id=False,
    )


def test_members_of_a_group_that_is_not_there_are_unknown() -> None:
    world = World()
    for command in (
        Heartbeat("g", 1, "m"),
        Sync(group_id="g", generation=1, member_id="m"),
        world.join_command("m"),
    ):
        assert error_of(world.ask(command)) is UnknownMember
    left = world.ask(Leave("g", [LeavingMember("m")]))
    assert isinstance(left, Left)
    assert [error_of(error) for _, error in left.members] == [UnknownMember]
    assert not world.machine.groups, "nobody who was refused makes a group"


def test_a_member_without_protocols_makes_no_group() -> None:
    world = World()
    assert error_of(world.ask(world.join_command(protocols=()))) is InconsistentProtocol
    assert not world.machine.groups


def test_a_group_with_members_is_not_deleted() -> None:
    world = World()
    assert error_of(world.ask(DeleteGroup("g"))) is GroupNotFound
    world.make_stable(world.join())
    assert error_of(world.ask(DeleteGroup("g"))) is GroupNotEmpty


def test_a_group_whose_offsets_have_expired_is_gone_with_its_record() -> None:
    world = World()
    world.ask(CommitOffsets(group_id="g", offsets=[OffsetToCommit("t", 0, 5, 0, "")]))
    (member,) = world.make_stable(world.join())
    world.ask(Leave("g", [LeavingMember(member.member_id)]))
    world.ask(ExpireOffsets())
    assert list(world.machine.groups) == ["g"]
    world.now_ms += world.settings.offsets_retention_ms
    world.ask(ExpireOffsets())
    assert not world.machine.groups
    assert not world.replayed().groups


@pytest.mark.parametrize("has_offsets", [False, True])
def test_an_empty_consumer_group_begins_anew_as_a_classic_one(has_offsets: bool) -> None:
    lab = Lab()
    lab.set_topic("t", 2)
    lab.ok(consumer_joins("m"))
    if has_offsets:
        lab.submit(
            CommitOffsets(
                group_id=GROUP,
                member_id="m",
                generation=lab.group.members["m"].epoch,
                offsets=[OffsetToCommit("t", 0, 5, 0, "")],
            )
        )
    lab.pass_time(lab.settings.session_timeout_ms)
    assert lab.group.is_empty
    assert lab.submit(classic_join(protocols=())) is not None
    assert isinstance(lab.machine.groups[GROUP], ConsumerGroup), "who is refused changes nothing"
    assert lab.submit(classic_join()) is None
    group = lab.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert (group.state, list(group.members)) == (State.PREPARING, ["new"]), "its join is still open"
    replayed = lab.replayed().groups[GROUP]
    assert isinstance(replayed, ClassicGroup)
    assert (replayed.stored, list(replayed.members)) == (group.stored, []), "which no record tells"
    assert bool(lab.machine.offsets.by_group) == has_offsets


def test_what_a_group_brings_unstored_keeps_the_record_that_came_before() -> None:
    world = World()
    world.make_stable(world.join())
    stored = world.group().stored
    assert stored is not None
    bringing = ClassicGroup("g", world.settings)
    world.machine.apply(Unstored(bringing))
    assert world.group() is bringing
    assert bringing.stored is stored
    world.machine.apply(Record(GroupMetadataKey(group="g"), None))
    assert "g" not in world.machine.groups


class OtherGroup(ConsumerGroup):
    """A group of a kind that keeps apart."""


class Sing(NamedTuple):
    group_id: str


class OtherRules(GroupRules):
    group_type: type = OtherGroup
    command_types: tuple[type, ...] = (Sing,)
    key_types: tuple[type, ...] = (ShareGroupMetadataKey,)

    def __init__(self, machine: GroupMachine, *, may_become_classic: bool) -> None:
        self.machine = machine
        self.may_become_classic = may_become_classic

    @override
    def decide(self, command: object, now_ms: int, token: Token) -> Decision[object]:
        return Decision(response="la")

    @override
    def apply(self, record: Record) -> None:
        assert isinstance(record.key, ShareGroupMetadataKey)
        self.machine.groups[record.key.group_id] = OtherGroup(record.key.group_id)

    @override
    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        return (SetTimer("song", 1, Sing(group.group_id)),)


@pytest.mark.parametrize("may_become_classic", [False, True])
def test_rules_of_another_kind_get_their_commands_records_and_groups(may_become_classic: bool) -> None:
    machine = GroupMachine(
        GroupSettings(), None, [lambda machine: OtherRules(machine, may_become_classic=may_become_classic)]
    )
    machine.apply(Record(ShareGroupMetadataKey(group_id=GROUP), ShareGroupMetadataValue(epoch=1)))
    assert isinstance(machine.groups[GROUP], OtherGroup)
    assert machine.decide(Sing(GROUP), 0, Token(1)).response == "la"
    assert SetTimer("song", 1, Sing(GROUP)) in machine.resume(0).timers
    assert error_of(machine.decide(Heartbeat(GROUP, 1, "m"), 0, Token(2)).error) is UnknownMember
    joined = machine.decide(classic_join(), 0, Token(3))
    if may_become_classic:
        assert isinstance(joined.unstored[0].fact, ClassicGroup)
    else:
        assert error_of(joined.error) is InconsistentProtocol
