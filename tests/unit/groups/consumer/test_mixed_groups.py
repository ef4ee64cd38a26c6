"""Groups with members of both protocols, under any sequence of events: the group changes its protocol to and
fro, no partition is consumed by two members, and all comes to rest with every partition in one hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.classic.subscriptions import format_assignment, parse_assignment, parse_subscription
from millrace.groups.commands import (
    Heartbeat,
    Join,
    Joined,
    JoinedMember,
    Leave,
    LeavingMember,
    Protocol,
    Sync,
    Synced,
)
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.errors import FencedMemberEpoch, MemberIdRequired, RebalanceInProgress, UnknownMember
from millrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription, TopicPartition
from millrace.wire.schema_encoder import compile_encoder
from tests.unit.groups.consumer_lab import GROUP, Lab, stored_state

encode_subscription = compile_encoder(ConsumerProtocolSubscription, 1, flexible=False)
PARTITIONS = 5


class ConsumerClient:
    def __init__(self, lab: Lab, member_id: str) -> None:
        self.lab = lab
        self.member_id = member_id
        self.epoch = 0
        self.consumes: list[int] = []

    def act(self) -> None:
        is_full = self.epoch == 0
        topic = self.lab.image.topics["t"].topic_id
        answer = self.lab.submit(
            ConsumerHeartbeat(
                GROUP,
                self.member_id,
                self.epoch,
                rebalance_timeout_ms=10_000 if is_full else -1,
                topic_names=["t"] if is_full else None,
                owned=[] if not self.consumes else [(topic, self.consumes)],
            )
        )
        if isinstance(answer, MillraceError):
            assert isinstance(answer, UnknownMember | FencedMemberEpoch), answer
            self.epoch = 0
            self.consumes = []
            return
        assert isinstance(answer, Beat), answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.consumes = [number for numbers in answer.assignment.values() for number in numbers]

    def leave(self) -> None:
        self.lab.submit(ConsumerHeartbeat(GROUP, self.member_id, -1))


class ClassicClient:
    """Eager, or cooperative: then it goes on with what it keeps, and joins again without the rest."""

    def __init__(self, lab: Lab, new_id: str, *, is_cooperative: bool) -> None:
        self.lab = lab
        self.new_id = new_id
        self.is_cooperative = is_cooperative
        self.member_id = ""
        self.generation = -1
        self.consumes: list[int] = []
        self.waits_for: int | None = None
        self.must_join = True

    def act(self) -> None:
        if self.waits_for is not None:
            if self.waits_for not in self.lab.answers:
                return
            answer: object = self.lab.answers.pop(self.waits_for)
            self.waits_for = None
            self.take(answer)
        elif self.must_join:
            self.join()
        else:
            self.take(self.lab.submit(Heartbeat(GROUP, self.generation, self.member_id)))

    def join(self) -> None:
        if not self.is_cooperative:
            self.consumes = []
        message = ConsumerProtocolSubscription(
            topics=["t"],
            owned_partitions=[TopicPartition(topic="t", partitions=self.consumes)] if self.consumes else [],
        )
        self.send(
            Join(
                group_id=GROUP,
                member_id=self.member_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=(Protocol("any", struct.pack(">h", 1) + encode_subscription(message)),),
                new_member_id=self.new_id,
            )
        )

    def send(self, command: object) -> None:
        answer = self.lab.submit(command)
        if answer is None:
            self.waits_for = self.lab.token
        else:
            self.take(answer)

    def take(self, answer: object) -> None:
        match answer:
            case MemberIdRequired():
                self.member_id = answer.member_id
                self.join()
            case RebalanceInProgress():
                self.must_join = True
            case MillraceError():
                self.forget()
            case Joined():
                self.member_id = answer.member_id
                self.generation = answer.generation
                self.must_join = False
                is_leader = answer.leader == self.member_id
                self.send(
                    Sync(
                        group_id=GROUP,
                        generation=self.generation,
                        member_id=self.member_id,
                        assignments=self.assign(answer.members) if is_leader else (),
                    )
                )
            case Synced():
                found = parse_assignment(answer.assignment) if answer.assignment else {}
                assert found is not None
                new = found.get("t", [])
                if self.is_cooperative and set(self.consumes) - set(new):
                    self.must_join = True
                self.consumes = new
            case _:
                pass

    def assign(self, members: Sequence[JoinedMember]) -> list[tuple[str, bytes]]:
        """Nobody gets what another one still has; who gives something up joins again, and then it is free."""
        owners: dict[int, str] = {}
        for member in members:
            subscription = parse_subscription(member.metadata)
            assert subscription is not None
            for owned in subscription.owned_partitions:
                owners.update(dict.fromkeys(owned.partitions, member.member_id))
        assigned = []
        for place, member in enumerate(members):
            share = [
                partition
                for partition in range(place, PARTITIONS, len(members))
                if owners.get(partition, member.member_id) == member.member_id
            ]
            assigned.append((member.member_id, format_assignment({"t": share}, like=struct.pack(">h", 1))))
        return assigned

    def forget(self) -> None:
        self.member_id = ""
        self.consumes = []
        self.must_join = True

    def leave(self) -> None:
        self.lab.submit(Leave(GROUP, [LeavingMember(self.member_id)]))


Client = ConsumerClient | ClassicClient


class MixedGroups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab()
        self.lab.set_topic("t", PARTITIONS)
        self.count = 0
        self.living: list[Client] = []

    @rule(target=clients, kind=st.sampled_from(["consumer", "eager", "cooperative"]))
    def come(self, kind: str) -> Client:
        self.count += 1
        client: Client
        if kind == "consumer":
            client = ConsumerClient(self.lab, f"c{self.count}")
        else:
            client = ClassicClient(self.lab, f"x{self.count}", is_cooperative=kind == "cooperative")
        self.living.append(client)
        client.act()
        return client

    @rule(client=clients)
    def act(self, client: Client) -> None:
        if client in self.living:
            client.act()

    @rule(client=consumes(clients), is_polite=st.booleans())
    def go(self, client: Client, is_polite: bool) -> None:
        if client in self.living:
            self.living.remove(client)
            if is_polite:
                client.leave()

    @rule(ms=st.sampled_from([0, 1_000, 6_000, 30_000]))
    def pass_time(self, ms: int) -> None:
        for _ in range(max(1, ms // 3_000)):
            for client in self.living:
                client.act()
            self.lab.pass_time(min(ms, 3_000))

    @invariant()
    def no_partition_is_consumed_twice(self) -> None:
        group = self.lab.machine.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup | ClassicGroup):
            return
        seen: dict[int, str] = {}
        for client in self.living:
            if client.member_id in group.members:
                for partition in client.consumes:
                    assert partition not in seen, (client.member_id, seen[partition])
                    seen[partition] = client.member_id

    @invariant()
    def replay_is_the_live_state(self) -> None:
        live = self.lab.machine.groups.get(GROUP)
        for is_compacted in (False, True):
            replayed = self.lab.replayed(is_compacted=is_compacted).groups.get(GROUP)
            if isinstance(live, ConsumerGroup):
                assert isinstance(replayed, ConsumerGroup)
                assert stored_state(replayed) == stored_state(live)
            elif isinstance(replayed, ClassicGroup):
                assert isinstance(live, ClassicGroup)
                assert replayed.stored == live.stored
            else:
                assert replayed is None

    @override
    def teardown(self) -> None:
        """When nothing happens any more, each partition is in one hand."""
        for _ in range(60):
            for client in self.living:
                client.act()
            self.lab.pass_time(1_500)
        if not self.living:
            return
        group = self.lab.machine.groups[GROUP]
        assert group.state_name == "Stable", group
        has_consumer = any(isinstance(client, ConsumerClient) for client in self.living)
        assert isinstance(group, ConsumerGroup) == has_consumer
        owned = sorted(partition for client in self.living for partition in client.consumes)
        assert owned == list(range(PARTITIONS))


MixedGroups.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestMixedGroups = MixedGroups.TestCase


class LongerMixedGroups(MixedGroups):
    """The same, at length."""


LongerMixedGroups.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestLongerMixedGroups = pytest.mark.slow(LongerMixedGroups.TestCase)


Step = tuple[str, str | int]
ONE_COOPERATIVE_MEMBER: list[Step] = [("come", "cooperative"), ("pass", 0), ("act", 0), ("act", 0)]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [("come", "eager"), ("act", 0), ("pass", 6_000), ("come", "consumer")],
            id="it has not read yet which partitions it must give up",
        ),
        pytest.param(
            [("come", "eager"), ("act", 0), ("act", 0), ("come", "eager"), ("come", "consumer")],
            id="its rebalance has begun anew and it is without an assignment",
        ),
        pytest.param(
            [("come", "consumer"), ("go", 1), ("come", "consumer")],
            id="the group was a consumer group for a moment",
        ),
    ],
)
def test_a_cooperative_member_keeps_its_partitions_through_a_conversion(steps: list[Step]) -> None:
    machine = MixedGroups()
    came: list[Client] = []
    for name, what in ONE_COOPERATIVE_MEMBER + steps:
        match name, what:
            case "come", str():
                machine.come(what)
                came.append(machine.living[-1])
            case "act", int():
                machine.act(came[what])
            case "go", int():
                machine.go(came[what], True)
            case "pass", int():
                machine.pass_time(what)
            case _:
                raise AssertionError(name)
        machine.no_partition_is_consumed_twice()
        machine.replay_is_the_live_state()
    assert came[0].consumes == list(range(PARTITIONS)), "it was not told to stop"
    assert isinstance(machine.lab.machine.groups[GROUP], ConsumerGroup)
    machine.teardown()
