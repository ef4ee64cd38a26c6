"""A partition on three brokers without a network: real logs and rules, elections by the controller's rules,
and whatever was promised, remembered."""

from __future__ import annotations

import random

from millrace.core.ids import Epoch, NodeId
from millrace.log.config import LogConfig
from millrace.log.partition.truncation import truncate_to
from millrace.metadata import election
from millrace.metadata.election import ElectionRules, Standing
from millrace.metadata.image import NO_LEADER, PartitionState
from millrace.replica.following import Fetched, MoveStart, StartInside, StartOver, Truncate, position_of
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from millrace.wire.records import read_records, split_batches
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of

LAG_MS = 1_000
NODES = (NodeId(1), NodeId(2), NodeId(3))


class Node:
    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.disk = Disk(SimVolume(random.Random(node_id)), f"/data{node_id}", LogConfig())
        self.is_alive = True
        self.partition = self._new_partition()

    def _new_partition(self) -> Partition:
        return Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)

    def take_role(self, state: PartitionState, min_insync: int, now_ms: int) -> None:
        partition = self.partition
        if state.leader_epoch < partition.leader_epoch:
            return
        partition.require_replicas(min_insync=min_insync)
        if state.leader != self.node_id:
            partition.follow(state.leader, state.leader_epoch)
            return
        leadership = partition.leadership
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            leadership = Leadership(
                self.node_id,
                leader_epoch=state.leader_epoch,
                epoch_start_offset=partition.log.log_end_offset,
                lag_ms_max=LAG_MS,
                now_ms=now_ms,
            )
            leadership.min_insync = min_insync
        leadership.update(
            replicas=state.replicas, isr=state.isr, partition_epoch=state.partition_epoch, now_ms=now_ms
        )
        partition.lead_replicas(leadership)

    def restart(self) -> None:
        """A new process on the same files: it knows what is on the disk, and nothing of its role."""
        high_watermark = self.partition.log.high_watermark
        self.partition = self._new_partition()
        self.partition.log.high_watermark = min(high_watermark, self.partition.log.log_end_offset)
        self.is_alive = True

    def values(self) -> list[tuple[int, bytes]]:
        """Epoch and value of each record."""
        log = self.partition.log
        found: list[tuple[int, bytes]] = []
        while len(found) < log.log_end_offset:
            records = log.read(len(found), 1 << 20, log.log_end_offset, True)
            for batch in split_batches(memoryview(records.read())):
                epoch = int.from_bytes(batch[12:16], "big", signed=True)
                found += [(epoch, record.value or b"") for record in read_records(batch)]
        return found


class Trio:
    def __init__(self, *, min_insync: int = 2, is_unclean_allowed: bool = False) -> None:
        self.nodes = {node_id: Node(node_id) for node_id in NODES}
        self.rules = ElectionRules(min_insync, is_unclean_allowed)
        self.state = PartitionState(
            leader=NODES[0], leader_epoch=Epoch(0), replicas=NODES, isr=NODES, partition_epoch=0
        )
        self.now_ms = 0
        self.promised: list[tuple[int, bytes]] = []
        """What some leader's high watermark has passed, by offset."""
        self._count = 0
        for node in self.nodes.values():
            self.learn(node.node_id)

    def dispose(self) -> None:
        for node in self.nodes.values():
            node.disk.dispose()

    # The controller.

    @property
    def standing(self) -> Standing:
        live = frozenset(node.node_id for node in self.nodes.values() if node.is_alive)
        return Standing(live, live)

    def elect(self) -> None:
        self.state = election.elect(self.state, self.standing, self.rules)

    def move_leader(self, node_id: NodeId) -> None:
        """Hand leadership to another one that is in sync."""
        if node_id in self.state.isr and self.nodes[node_id].is_alive and node_id != self.state.leader:
            self.state = self.state._replace(
                leader=node_id,
                leader_epoch=Epoch(self.state.leader_epoch + 1),
                partition_epoch=self.state.partition_epoch + 1,
            )

    def learn(self, node_id: NodeId) -> None:
        """One broker hears of the present state; the others may not yet."""
        node = self.nodes[node_id]
        if node.is_alive:
            node.take_role(self.state, self.rules.min_isr, self.now_ms)
            self.check()

    def adjust_isr(self, node_id: NodeId) -> None:
        """A broker that believes to lead asks for the in-sync replicas that it sees."""
        node = self.nodes[node_id]
        leadership = node.partition.leadership
        if leadership is None or not node.is_alive:
            return
        wished = leadership.wish(
            log_end_offset=node.partition.log.log_end_offset,
            high_watermark=node.partition.log.high_watermark,
            now_ms=self.now_ms,
            is_eligible=lambda other: self.nodes[NodeId(other)].is_alive,
        )
        if wished is None:
            return
        state = self.state
        if (state.leader, state.leader_epoch, state.partition_epoch) != (
            node_id,
            leadership.leader_epoch,
            leadership.partition_epoch,
        ):
            leadership.refused()
        else:
            isr = [NodeId(other) for other in wished]
            self.state = election.alter_isr(state, isr, self.standing, self.rules)
        self.check()

    # Faults.

    def kill(self, node_id: NodeId) -> None:
        self.nodes[node_id].is_alive = False
        self.elect()

    def start(self, node_id: NodeId, *, lost_records: int = 0) -> None:
        """Start a broker again; without its last records if its machine lost power."""
        node = self.nodes[node_id]
        if node.is_alive:
            return
        others = [each for each in self.state.isr if each != node_id]
        if lost_records and others:
            log = node.partition.log
            keep = max(log.log_end_offset - lost_records, 0)
            if keep < log.log_end_offset:
                self.state = election.withdraw(
                    self.state, node_id, self.standing, self.rules, is_empty=keep == 0
                )
                truncate_to(log, keep)
        node.restart()
        self.elect()
        self.check()

    # Traffic.

    def produce(self, node_id: NodeId) -> None:
        """Write to a broker that believes to lead."""
        node = self.nodes[node_id]
        if node.is_alive and node.partition.is_leader:
            self._count += 1
            node.partition.append(batch_of(b"%d" % self._count), NOW_MS)
            self.check()

    def fetch(self, node_id: NodeId, max_bytes: int = 1 << 20) -> None:
        """One round of a follower with whom it believes to be its leader."""
        follower = self.nodes[node_id]
        leader_id = follower.partition.leader_id
        if not follower.is_alive or follower.partition.is_leader or leader_id == NO_LEADER:
            return
        leader = self.nodes[NodeId(leader_id)]
        partition = leader.partition
        if (
            not leader.is_alive
            or partition.leadership is None
            or partition.leader_epoch != follower.partition.leader_epoch
        ):
            return
        offset, last_epoch, start = position_of(follower.partition.log)
        diverging = partition.divergence(last_epoch, offset) if last_epoch >= 0 else None
        if diverging is not None:
            self._take(follower, offset, Fetched(-1, -1, None, diverging))
        elif offset > partition.log.log_end_offset:
            follower.disk.run(follower.partition.log.truncate_fully_and_start_at(0))
        else:
            assert partition.replica_fetched(
                node_id, broker_epoch=1, offset=offset, log_start_offset=start, now_ms=self.now_ms
            )
            self.check()
            found = partition.log.read(offset, max_bytes, partition.log.log_end_offset, True)
            records = memoryview(bytearray(found.read())) if found.size_bytes else None
            self._take(follower, offset, Fetched(partition.log.high_watermark, 0, records))
        self.check()

    def _take(self, follower: Node, offset: int, fetched: Fetched) -> None:
        repair = follower.partition.take_from_leader(offset, fetched)
        log = follower.partition.log
        match repair:
            case Truncate(at):
                assert at < log.log_end_offset, (at, log)
                follower.disk.run(log.truncate_to(at))
            case StartOver(at):
                follower.disk.run(log.truncate_fully_and_start_at(at))
            case StartInside(records):
                follower.disk.run(log.start_inside(memoryview(records)))
            case MoveStart() | None:
                pass

    def heal(self) -> None:
        """All brokers run and hear of everything, for as long as it takes to agree."""
        for node_id in NODES:
            self.start(node_id)
        self.elect()
        for _ in range(20):
            self.now_ms += LAG_MS // 10
            for node_id in NODES:
                self.learn(node_id)
            for node_id in NODES:
                self.fetch(node_id)
            for node_id in NODES:
                self.adjust_isr(node_id)

    # What must hold.

    def check(self) -> None:
        """One offset has one value, for everybody who was ever told that it is committed."""
        for node in self.nodes.values():
            if node.is_alive and node.partition.is_leader:
                shown = node.values()[: node.partition.log.high_watermark]
                common = min(len(shown), len(self.promised))
                assert shown[:common] == self.promised[:common], (node.node_id, shown, self.promised)
                self.promised += shown[common:]
        for node in self.nodes.values():
            if node.is_alive and not node.partition.is_leader:
                shown = node.values()[: node.partition.log.high_watermark]
                assert shown == self.promised[: len(shown)], (node.node_id, shown, self.promised)

    def check_agreement(self) -> None:
        """After healing: somebody leads, all have the same records, and nothing promised is missing."""
        logs = [node.values() for node in self.nodes.values()]
        assert self.state.leader != NO_LEADER, self.state
        assert logs[0] == logs[1] == logs[2], logs
        assert logs[0][: len(self.promised)] == self.promised
        assert set(self.state.isr) == set(NODES), self.state
