"""A classic group under clients that join, stall, crash and come back in any order, and a coordinator that
restarts: what must hold whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.override import override
from millrace.groups.classic.group import ClassicGroup, State
from millrace.groups.commands import (
    CommitOffsets,
    Heartbeat,
    Joined,
    Leave,
    LeavingMember,
    OffsetsCommitted,
    OffsetToCommit,
    Sync,
    Synced,
)
from millrace.groups.errors import (
    FencedInstance,
    GroupNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMember,
)
from tests.unit.groups.worlds import World, stored_state

PARTITIONS = 5
MUST_JOIN_AGAIN = (UnknownMember, IllegalGeneration, FencedInstance, GroupNotFound)


@dataclass
class Client:
    """A consumer: does the next step of the protocol when it is told to go on."""

    instance_id: str | None = None
    member_id: str = ""
    joined: Joined | None = None
    waiting: int | None = None
    wants_to_join: bool = True
    owned: frozenset[int] = field(default_factory=frozenset)
    owned_in: int = -1

    def forget(self) -> None:
        self.member_id, self.joined, self.waiting = "", None, None
        self.owned, self.owned_in = frozenset(), -1
        self.wants_to_join = True


class ClassicGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients = [Client(), Client(), Client(), Client("static-a"), Client("static-b")]
        self.committed: dict[int, int] = {}
        self.given: dict[int, dict[int, str]] = {}
        """For each generation, who was given which partition."""

    def group(self) -> ClassicGroup | None:
        group = self.world.machine.groups.get("g")
        return group if isinstance(group, ClassicGroup) else None

    # What clients do.

    @rule(number=st.integers(0, 4))
    def go_on(self, number: int) -> None:
        self.step(self.clients[number])

    @rule(number=st.integers(0, 4))
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None or client.waiting is not None:
            return
        outcome = self.world.ask(
            Heartbeat("g", client.joined.generation, client.member_id, client.instance_id)
        )
        self.heed(client, outcome)

    @rule(number=st.integers(0, 4), partition=st.integers(0, PARTITIONS - 1))
    def commit(self, number: int, partition: int) -> None:
        client = self.clients[number]
        if client.joined is None or partition not in client.owned:
            return
        offset = self.committed.get(partition, 0) + 1
        outcome = self.world.ask(
            CommitOffsets(
                group_id="g",
                member_id=client.member_id,
                instance_id=client.instance_id,
                generation=client.joined.generation,
                offsets=[OffsetToCommit("t", partition, offset, 0, "")],
            )
        )
        if isinstance(outcome, OffsetsCommitted):
            group = self.group()
            assert group is not None
            assert client.joined.generation == group.generation, "only the present generation commits"
            self.committed[partition] = offset
        else:
            self.heed(client, outcome)

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.member_id:
            self.world.ask(Leave("g", [LeavingMember(client.member_id, client.instance_id)]))
        client.forget()

    @rule(number=st.integers(0, 4))
    def crash(self, number: int) -> None:
        """It forgets everything and says nothing; a static one keeps its name."""
        self.clients[number].forget()

    @rule(number=st.integers(0, 4))
    def drop_connection(self, number: int) -> None:
        """The answer that it waits for is lost; it asks again with what it knows."""
        self.clients[number].waiting = None

    @rule(ms=st.sampled_from([1, 1_000, 4_000, 11_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.world.advance(ms)

    @rule()
    def coordinator_crashes(self) -> None:
        self.world.restart()
        for client in self.clients:
            # Their connections broke, and they have to look for the coordinator.
            client.waiting = None

    @precondition(lambda self: self.group() is not None)
    @rule()
    def nobody_waits_in_a_stable_group(self) -> None:
        group = self.group()
        if group is not None and group.state in (State.STABLE, State.EMPTY):
            assert all(not member.is_waiting for member in group.members.values())

    # The protocol, step by step.

    def step(self, client: Client) -> None:
        world = self.world
        if client.waiting is not None:
            if world.is_waiting(client.waiting):
                return
            outcome = world.outcomes[client.waiting]
            client.waiting = None
            if isinstance(outcome, Joined):
                client.joined, client.member_id = outcome, outcome.member_id
                client.wants_to_join = False
                if outcome.skip_assignment or not outcome.members:
                    self.send_sync(client, {})
                else:
                    self.send_sync(client, self.assignment(outcome))
            elif isinstance(outcome, Synced):
                self.received(client, outcome)
            else:
                self.heed(client, outcome)
        elif client.wants_to_join:
            client.waiting = world.join(client.member_id, instance_id=client.instance_id)
        elif client.joined is not None and client.owned_in != client.joined.generation:
            self.send_sync(client, self.assignment(client.joined) if client.joined.members else {})

    def send_sync(self, client: Client, assignments: dict[str, bytes]) -> None:
        assert client.joined is not None
        client.waiting = self.world.submit(
            Sync(
                group_id="g",
                generation=client.joined.generation,
                member_id=client.member_id,
                instance_id=client.instance_id,
                assignments=tuple(assignments.items()),
            )
        )

    def assignment(self, joined: Joined) -> dict[str, bytes]:
        """The leader deals the partitions in turn."""
        members = sorted(member.member_id for member in joined.members)
        return {
            member: bytes(partition for partition in range(PARTITIONS) if partition % len(members) == place)
            for place, member in enumerate(members)
        }

    def received(self, client: Client, synced: Synced) -> None:
        assert client.joined is not None
        generation = client.joined.generation
        client.owned, client.owned_in = frozenset(synced.assignment), generation
        owners = self.given.setdefault(generation, {})
        for partition in client.owned:
            owner = owners.setdefault(partition, client.instance_id or client.member_id)
            assert owner == (client.instance_id or client.member_id), "a partition has two owners"

    def heed(self, client: Client, outcome: object) -> None:
        if isinstance(outcome, RebalanceInProgress):
            client.wants_to_join = True
        elif isinstance(outcome, MUST_JOIN_AGAIN):
            client.forget()

    # What must hold.

    @invariant()
    def committed_offsets_stand(self) -> None:
        stored = {
            partition: committed.offset
            for _, partition, committed in self.world.machine.offsets.of_group("g")
        }
        assert stored == self.committed

    @invariant()
    def a_restart_would_find_the_same(self) -> None:
        live, replayed = self.world.machine, self.world.replayed()
        assert stored_state(live) == stored_state(replayed)
        group = self.group()
        if group is not None and group.stored is not None and group.state in (State.STABLE, State.EMPTY):
            again = replayed.groups["g"]
            assert isinstance(again, ClassicGroup)
            assert again.state is group.state
            assert again.record(0).value == group.record(0).value

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self.group()
        if group is None:
            return
        assert group.leader is None or group.leader in group.members
        assert all(
            group.members[member].instance_id == name for name, member in group.roster.static_members.items()
        )
        if group.state is State.EMPTY:
            assert not group.members
        if group.state in (State.COMPLETING, State.STABLE):
            assert group.members
            assert group.leader is not None

    @override
    def teardown(self) -> None:
        """When events stop, the group comes to rest with all who are alive."""
        for _ in range(150):
            for client in self.clients:
                for _ in range(3):
                    self.step(client)
                if client.joined is not None and client.waiting is None:
                    self.heartbeat_of(client)
            self.world.advance(1_000)
        group = self.group()
        assert group is not None
        assert group.state is State.STABLE, group
        assert len(group.members) == len(self.clients)
        owned = sorted(partition for client in self.clients for partition in client.owned)
        assert owned == list(range(PARTITIONS))
        assert {client.owned_in for client in self.clients} == {group.generation}

    def heartbeat_of(self, client: Client) -> None:
        assert client.joined is not None
        outcome = self.world.ask(
            Heartbeat("g", client.joined.generation, client.member_id, client.instance_id)
        )
        self.heed(client, outcome)


ClassicGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestClassicGroup = ClassicGroupModel.TestCase
