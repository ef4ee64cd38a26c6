"""Brokers come and go, lose records, stop and move under any sequence of events, with a controller that
reacts late: no committed record is lost in an election that counts as clean, and epochs never lie.

The logs are modelled as lists of records. A high watermark moves only while the ISR has its minimum size,
which is what makes eligible replicas safe. A leader flushes before it goes on alone, where one is enough."""

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
    assign_leaders,
    restore_preferred_leaders,
    withdraw_replicas,
)
from millrace.metadata.store import ChangeBatch, KeyChange
from tests.unit.metadata.worlds import broker, new_topic

BROKERS = (1, 2, 3, 4)
node_ids = st.sampled_from([NodeId(node_id) for node_id in BROKERS])


class Partition(RuleBasedStateMachine):
    """Partition 0 of one topic with three replicas on four brokers."""

    replicas: tuple[int, ...] = (1, 2, 3)
    min_isr = 2
    image: Image

    @override
    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[NodeId, list[int]] = {NodeId(node_id): [] for node_id in BROKERS}
        self.flushed: dict[NodeId, int] = {NodeId(node_id): 0 for node_id in BROKERS}
        self.committed: list[int] = []
        self.next_record = 0
        self.leaders: dict[int, NodeId] = {}
        self.starts = 0

    @initialize()
    def form(self) -> None:
        self.image = EMPTY
        for node_id in BROKERS:
            self._do(RegisterBroker(broker(node_id, incarnation="0"), None))
        configs = {"min.insync.replicas": str(self.min_isr)}
        self._do(new_topic("t", 1, configs=configs, assignments={0: list(self.replicas)}))
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
            leader_log = self.logs[self.state.leader]
            self.flushed[node_id] = min(self.flushed[node_id], _common(self.logs[node_id], leader_log))
            self.logs[node_id] = list(leader_log)

    def move_high_watermark(self) -> None:
        if len(self.state.isr) < self.min_isr:
            return
        leader_log = self.logs[self.state.leader]
        # A leader counts what a follower has asked for in its own term, so records of others do not count.
        length = min(_common(leader_log, self.logs[node_id]) for node_id in self.state.isr)
        if length > len(self.committed):
            self.committed = leader_log[:length]

    @precondition(lambda self: self.state.leader in self.image.brokers)
    @rule(node_id=node_ids)
    def shrink_isr(self, node_id: NodeId) -> None:
        if node_id != self.state.leader and node_id in self.state.isr:
            isr = [other for other in self.state.isr if other != node_id]
            if len(isr) == self.min_isr == 1:
                self.flushed[self.state.leader] = len(self.logs[self.state.leader])
            self._alter(isr)

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
                self.assign_leaders()

    @rule(node_id=node_ids, lost=st.sampled_from([None, None, 1, 2, 100]))
    def come_back(self, node_id: NodeId, lost: int | None) -> None:
        """With all its records, or without the last ones, which were not flushed, or with an empty disk."""
        if node_id in self.image.brokers:
            return
        is_empty = lost == 100
        if is_empty:
            self.flushed[node_id] = 0
        if lost is not None:
            kept = max(len(self.logs[node_id]) - lost, self.flushed[node_id])
            self.logs[node_id] = self.logs[node_id][:kept]
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
    def assign_leaders(self) -> None:
        self._write(assign_leaders(self.image, self.image.topics.values(), Policy()))

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
                self.assign_leaders()

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


class OneIsEnough(Partition):
    min_isr = 1


class PairOfReplicas(Partition):
    """One of two is enough, and people keep their hands off: what both had when it was committed is lost only
    when both have lost something."""

    replicas = (1, 2)
    min_isr = 1

    @override
    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[int, set[NodeId]] = {}
        """Of every committed record: those in sync at that moment that have lost nothing since."""

    @override
    def do_by_hand(self, what: int, goal: list[int]) -> None:
        """No rule any more."""

    @override
    def restore_preferred(self) -> None:
        """Nor this one: events that matter shall be frequent."""

    @override
    def move_high_watermark(self) -> None:
        before = len(self.committed)
        super().move_high_watermark()
        for record in self.committed[before:]:
            self.holders[record] = set(self.state.isr)

    @override
    def grow_isr(self, node_id: NodeId) -> None:
        super().grow_isr(node_id)
        if node_id in self.state.isr:
            for record in self.committed:
                self.holders[record].add(node_id)

    @override
    @rule(node_id=st.sampled_from([NodeId(1), NodeId(2)]), is_noticed=st.booleans())
    def lose(self, node_id: NodeId, is_noticed: bool) -> None:
        super().lose(node_id, is_noticed)

    @override
    @rule(node_id=st.sampled_from([NodeId(1), NodeId(2)]), lost=st.sampled_from([None, 1, 2, 100]))
    def come_back(self, node_id: NodeId, lost: int | None) -> None:
        if node_id not in self.image.brokers and lost is not None:
            for holders in self.holders.values():
                holders.discard(node_id)
        super().come_back(node_id, lost)
        self.assign_leaders()

    @rule(order=st.permutations([1, 2]), back=st.permutations([1, 2]), lost=st.sampled_from([None, 1, 2]))
    def both_go(self, order: list[int], back: list[int], lost: int | None) -> None:
        """Right after something was written; and the first to be back may have lost it."""
        if self.state.leader in self.image.brokers:
            self.produce(is_fetched=True)
        for node_id in order:
            self.lose(NodeId(node_id), is_noticed=True)
        first, second = back
        self.come_back(NodeId(first), lost)
        self.come_back(NodeId(second), None)

    @invariant()
    def what_an_intact_replica_has_is_not_passed_over(self) -> None:
        lost = [record for record in self.holders if record not in self.committed]
        assert not [record for record in lost if self.holders.pop(record)]


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPartition = Partition.TestCase
TestPartition.settings = SETTINGS
TestOneIsEnough = OneIsEnough.TestCase
TestOneIsEnough.settings = SETTINGS
TestPairOfReplicas = PairOfReplicas.TestCase
TestPairOfReplicas.settings = SETTINGS
