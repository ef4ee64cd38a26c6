"""Brokers come and go, lose records, stop and move under any sequence of events, with a controller that
reacts late: no committed record is lost in an election that counts as clean, and epochs never lie.

The logs are modelled as lists of records. A high watermark moves only while the ISR has its minimum size,
which is what makes eligible replicas safe."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.core.ids import NodeId
from millrace.core.override import override
from millrace.metadata.commands import (
    AlterIsr,
    BeginStop,
    Change,
    Command,
    ElectionKind,
    ElectLeader,
    Policy,
    Reassign,
    RegisterBroker,
    UnregisterBroker,
)
from millrace.metadata.controller import as_batch, decide
from millrace.metadata.errors import MetadataError
from millrace.metadata.fold import fold
from millrace.metadata.image import EMPTY, NO_LEADER, Image, PartitionState
from millrace.metadata.leadership import (
    PartitionUpdate,
    restore_preferred_leaders,
    settle_partitions,
    withdraw_replicas,
)
from millrace.metadata.store import ChangeBatch, KeyChange
from tests.unit.metadata.worlds import broker, new_topic

BROKERS = (1, 2, 3, 4)
MIN_ISR = 2
node_ids = st.sampled_from([NodeId(node_id) for node_id in BROKERS])


class Partition(RuleBasedStateMachine):
    """Partition 0 of one topic with three replicas on four brokers."""

    image: Image

    @override
    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[NodeId, list[int]] = {NodeId(node_id): [] for node_id in BROKERS}
        self.committed: list[int] = []
        self.next_record = 0
        self.leaders: dict[int, NodeId] = {}
        self.starts = 0

    @initialize()
    def form(self) -> None:
        self.image = EMPTY
        for node_id in BROKERS:
            self._do(RegisterBroker(broker(node_id, incarnation="0"), None))
        configs = {"min.insync.replicas": str(MIN_ISR)}
        self._do(new_topic("t", 1, configs=configs, assignments={0: [1, 2, 3]}))
        self._remember(None, self.state)

    @property
    def state(self) -> PartitionState:
        return self.image.topics["t"].partitions[0]

    # What brokers do with records.

    @precondition(lambda self: self.state.leader in self.image.brokers)
    @rule(is_fetched=st.booleans())
    def produce(self, is_fetched: bool) -> None:
        """One record, which those in sync may have a moment later, and which is committed then."""
        self.next_record += 1
        self.logs[self.state.leader].append(self.next_record)
        if is_fetched:
            for node_id in self.state.isr:
                self.fetch(node_id)
            self.move_high_watermark()

    @precondition(lambda self: self.state.leader in self.image.brokers)
    @rule(node_id=node_ids)
    def catch_up(self, node_id: NodeId) -> None:
        self.fetch(node_id)
        if node_id in self.state.replicas and node_id not in self.state.isr:
            self.grow_isr(node_id)

    def fetch(self, node_id: NodeId) -> None:
        """The follower cuts what the leader does not have, and copies the rest."""
        if node_id in self.state.replicas and node_id in self.image.brokers and node_id != self.state.leader:
            self.logs[node_id] = list(self.logs[self.state.leader])

    def move_high_watermark(self) -> None:
        if len(self.state.isr) < MIN_ISR:
            return
        leader_log = self.logs[self.state.leader]
        length = min(len(self.logs[node_id]) for node_id in self.state.isr)
        if length > len(self.committed):
            self.committed = leader_log[:length]

    @precondition(lambda self: self.state.leader in self.image.brokers)
    @rule(node_id=node_ids)
    def shrink_isr(self, node_id: NodeId) -> None:
        if node_id != self.state.leader and node_id in self.state.isr:
            self._alter([other for other in self.state.isr if other != node_id])

    def grow_isr(self, node_id: NodeId) -> None:
        is_caught_up = self.logs[node_id] == self.logs[self.state.leader]
        if is_caught_up and node_id in self.state.replicas and node_id not in self.state.isr:
            self._alter([*self.state.isr, node_id])

    # What becomes of brokers.

    @rule(node_id=node_ids, is_noticed=st.booleans())
    def lose(self, node_id: NodeId, is_noticed: bool) -> None:
        if node_id in self.image.brokers:
            self._do(UnregisterBroker(node_id, self.image.brokers[node_id].incarnation))
            if node_id in self.image.stopping:
                change = KeyChange(f"stopping/{node_id}", None, self.image.revision + 1)
                self.image = fold(self.image, ChangeBatch(self.image.revision + 1, (change,)))
            if is_noticed:
                self.settle()

    @rule(node_id=node_ids, lost=st.sampled_from([None, None, 1, 2, 100]))
    def come_back(self, node_id: NodeId, lost: int | None) -> None:
        """With all its records, or without the last ones, which were not flushed, or with an empty disk."""
        if node_id in self.image.brokers:
            return
        is_empty = lost == 100
        if lost is not None:
            self.logs[node_id] = self.logs[node_id][:-lost]
        self._write(
            withdraw_replicas(self.image, node_id, Policy(), is_trusted=lost is None, is_empty=is_empty)
        )
        self.starts += 1
        self._do(RegisterBroker(broker(node_id, incarnation=str(self.starts)), None))

    @rule(node_id=node_ids)
    def begin_stop(self, node_id: NodeId) -> None:
        if node_id in self.image.brokers:
            self._do(BeginStop(node_id, self.image.brokers[node_id].incarnation))

    # What the controller and people do.

    @rule()
    def settle(self) -> None:
        self._write(settle_partitions(self.image, self.image.topics.values(), Policy()))

    @rule()
    def restore_preferred(self) -> None:
        self._write(restore_preferred_leaders(self.image, imbalance_percent=0))

    @rule(what=st.integers(0, 9), goal=st.permutations(BROKERS))
    def do_by_hand(self, what: int, goal: list[int]) -> None:
        """Seldom: an unclean election forgives everything that was lost before."""
        match what:
            case 0:
                self._try(ElectLeader("t", 0, ElectionKind.UNCLEAN))
            case 1:
                self._try(ElectLeader("t", 0, ElectionKind.PREFERRED))
            case 2 | 3:
                self._try(Reassign(topic="t", partition=0, replicas=goal[: 2 + what % 2]))
            case 4:
                self._try(Reassign(topic="t", partition=0, replicas=None))
            case _:
                self.settle()

    # What must hold.

    @invariant()
    def state_holds_together(self) -> None:
        if not hasattr(self, "image"):
            return
        state = self.state
        assert (state.leader == NO_LEADER) == (state.isr == ())
        assert state.leader == NO_LEADER or state.leader in state.isr
        for group in (state.isr, state.eligible, state.adding, state.removing):
            assert set(group) <= set(state.replicas)
        assert not set(state.isr) & set(state.eligible)
        assert len(set(state.replicas)) == len(state.replicas)
        assert state.leader == NO_LEADER or state.last_leader == NO_LEADER

    @invariant()
    def a_leader_has_all_that_is_committed(self) -> None:
        if hasattr(self, "image") and self.state.leader != NO_LEADER:
            log = self.logs[self.state.leader]
            if self.state.leader in self.image.brokers:
                assert log[: len(self.committed)] == self.committed

    def _alter(self, isr: list[NodeId]) -> None:
        state = self.state
        self._try(
            AlterIsr(
                topic_id=self.image.topics["t"].topic_id,
                partition=0,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                isr=isr,
            )
        )

    def _try(self, command: Command) -> None:
        try:
            self._do(command)
        except MetadataError:
            return

    def _do(self, command: Command) -> None:
        self._apply(decide(self.image, command, Policy()))

    def _write(self, updates: list[PartitionUpdate]) -> None:
        self._apply(Change(puts=tuple(update.put() for update in updates)))

    def _apply(self, change: Change) -> None:
        before = self.state if "t" in self.image.topics else None
        self.image = fold(self.image, as_batch(self.image, change))
        if before is not None:
            self._remember(before, self.state)

    def _remember(self, before: PartitionState | None, after: PartitionState) -> None:
        if before is not None:
            assert after.leader_epoch >= before.leader_epoch
            if after is not before and after != before._replace(mod_revision=after.mod_revision):
                assert after.partition_epoch == before.partition_epoch + 1
            if after.leader != before.leader:
                assert after.leader_epoch == before.leader_epoch + 1
        assert self.leaders.setdefault(after.leader_epoch, after.leader) == after.leader
        if before is None or after.leader in (before.leader, NO_LEADER):
            return
        if after.leader not in before.isr and after.leader not in before.eligible:
            # By hand, or because nobody else could be trusted: its log is the truth from now on.
            self.committed = self.committed[: _common(self.committed, self.logs[after.leader])]


def _common(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


TestPartition = Partition.TestCase
TestPartition.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
