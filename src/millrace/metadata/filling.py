"""Gives new brokers their share of the replicas, few partitions at a time. No I/O: an image goes in, the next
moves come out.

The store says which brokers are to be filled, from their first registration on, and the places of the
replicas say how far that is. So a new controller goes on where the last one stopped.
"""

from __future__ import annotations

from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata import election
from millrace.metadata.balance import plan_fill
from millrace.metadata.commands import Policy
from millrace.metadata.election import standing_of
from millrace.metadata.image import NO_LEADER, Image
from millrace.metadata.leadership import PartitionUpdate, Rulebook


def next_moves(image: Image, policy: Policy, *, partitions_max: int) -> list[PartitionUpdate]:
    """The moves to begin now, so that at most `partitions_max` are under way to each new broker."""
    updates: list[PartitionUpdate] = []
    standing = standing_of(image)
    waiting = {
        node_id: partitions_max - count
        for node_id, count in _arriving(image).items()
        if count < partitions_max and node_id in standing.willing
    }
    if not waiting:
        return updates
    board = _Board(image)
    racks = {node_id: image.brokers[node_id].rack for node_id in sorted(standing.willing)}
    rulebook = Rulebook(image, policy)
    for node_id, count in waiting.items():
        plan = plan_fill(
            board.assignments, racks, node_id, partitions_max=count, excepted=board.not_to_be_moved
        )
        for name, target in plan.items():
            board.move(name, target)
            topic = image.topics[name.topic]
            state = topic.partitions[name.partition]
            after = election.reassign(rulebook.current(topic, state), target, standing, rulebook.of(topic))
            updates.append(PartitionUpdate(topic, name.partition, state, after))
    return updates


def filled(image: Image) -> list[NodeId]:
    """New brokers that have their share, and wait for nothing."""
    done = []
    standing = standing_of(image)
    racks = {node_id: image.brokers[node_id].rack for node_id in sorted(standing.willing)}
    board: _Board | None = None
    for node_id, count in _arriving(image).items():
        if count or node_id not in standing.willing:
            continue
        board = board or _Board(image)
        if not plan_fill(board.assignments, racks, node_id, partitions_max=1, excepted=board.not_to_be_moved):
            done.append(node_id)
    return done


def _arriving(image: Image) -> dict[NodeId, int]:
    """How many partitions move to each of the new brokers."""
    counts = dict.fromkeys(image.filling, 0)
    for topic in image.topics.values():
        for state in topic.partitions:
            for node_id in state.adding:
                if node_id in counts:
                    counts[node_id] += 1
    return counts


class _Board:
    """Where all replicas will be once what moves has arrived."""

    def __init__(self, image: Image) -> None:
        self.assignments: dict[TopicPartition, tuple[NodeId, ...]] = {}
        self.not_to_be_moved: dict[TopicPartition, None] = {}
        """Partitions that move already, or that nobody is there to copy from."""
        for topic in image.topics.values():
            for number, state in enumerate(topic.partitions):
                name = TopicPartition(topic.name, number)
                self.assignments[name] = tuple(
                    node_id for node_id in state.replicas if node_id not in state.removing
                )
                if state.adding or state.removing or state.leader == NO_LEADER:
                    self.not_to_be_moved[name] = None

    def move(self, name: TopicPartition, target: tuple[NodeId, ...]) -> None:
        self.assignments[name] = target
        self.not_to_be_moved[name] = None
