"""Where replicas should be: evenly over brokers, apart over racks, with as few moves as that takes. A pure
function."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.errors import InvalidReplicationFactor

Assignments = Mapping[TopicPartition, tuple[NodeId, ...]]


def plan_balance(
    assignments: Assignments, racks: Mapping[NodeId, str | None], *, drained: Collection[NodeId] = ()
) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """The replicas of the partitions that have to change, preferred leader first.

    `racks` names the brokers that are there; a replica on any other broker, or on a drained one, moves
    away."""
    targets = {node_id: rack for node_id, rack in racks.items() if node_id not in drained}
    board = _Board(targets)
    for name in sorted(assignments):
        replicas = assignments[name]
        if len(replicas) > len(targets):
            raise InvalidReplicationFactor(
                f"{name} has {len(replicas)} replicas, and only {len(targets)} brokers are to hold any"
            )
        board.place(name, replicas)
    board.replace_lost()
    board.spread_over_racks()
    board.even_out_replicas()
    board.even_out_leaders()
    return {name: tuple(nodes) for name, nodes in board.replicas.items() if tuple(nodes) != assignments[name]}


def plan_fill(
    assignments: Assignments,
    racks: Mapping[NodeId, str | None],
    node_id: NodeId,
    *,
    partitions_max: int | None = None,
    excepted: Collection[TopicPartition] = (),
) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """Moves to one broker only, until it has its share of the replicas or `partitions_max` partitions move.
    Those in `excepted` stay, and count where they are."""
    board = _Board(racks)
    for name in sorted(assignments):
        board.place(name, assignments[name])
    share = sum(map(len, assignments.values())) // len(racks)
    moved: dict[TopicPartition, None] = {}
    while len(board.held[node_id]) < share and (partitions_max is None or len(moved) < partitions_max):
        move = board.next_move_to(node_id, excepted)
        if move is None:
            break
        board.move(*move)
        moved[move[0]] = None
    board.count_leaders()
    for name in moved:
        board.hand_on(board.replicas[name])
    return {name: tuple(board.replicas[name]) for name in moved}


@dataclass(slots=True)
class _Board:
    racks: Mapping[NodeId, str | None]
    replicas: dict[TopicPartition, list[NodeId]] = field(default_factory=dict)
    held: dict[NodeId, dict[TopicPartition, None]] = field(default_factory=dict)
    led: dict[NodeId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node_id in sorted(self.racks):
            self.held[node_id] = {}
            self.led[node_id] = 0

    def place(self, name: TopicPartition, nodes: tuple[NodeId, ...]) -> None:
        self.replicas[name] = list(nodes)
        for node_id in nodes:
            if node_id in self.held:
                self.held[node_id][name] = None

    def replace_lost(self) -> None:
        for name, nodes in self.replicas.items():
            for place, node_id in enumerate(nodes):
                if node_id not in self.racks:
                    self.move(name, place, self._best_for(name, place))

    def spread_over_racks(self) -> None:
        """Move the later one of two replicas that share a rack to a rack that has none."""
        for name, nodes in self.replicas.items():
            for place in range(len(nodes) - 1, 0, -1):
                others = [self._rack(node) for at, node in enumerate(nodes) if at != place]
                best = self._best_for(name, place)
                if self._rack(nodes[place]) in others and self._rack(best) not in others:
                    self.move(name, place, best)

    def even_out_replicas(self) -> None:
        """Move replicas from the fullest broker to the emptiest, as long as no partition loses a rack."""
        while (move := self._next_move()) is not None:
            self.move(*move)

    def even_out_leaders(self) -> None:
        """Spread leaders by the order of replicas alone: nothing moves for them."""
        self.count_leaders()
        for _ in range(len(self.replicas)):
            handed_on = [self.hand_on(nodes) for nodes in self.replicas.values()]
            if not any(handed_on):
                return

    def count_leaders(self) -> None:
        for nodes in self.replicas.values():
            if nodes[0] in self.led:
                self.led[nodes[0]] += 1

    def next_move_to(
        self, target: NodeId, excepted: Collection[TopicPartition]
    ) -> tuple[TopicPartition, int, NodeId] | None:
        """The next move to a broker, from the fullest one that has something to give."""
        for source in sorted(self.held, key=lambda node_id: (-len(self.held[node_id]), node_id)):
            if len(self.held[source]) - len(self.held[target]) <= 1:
                return None
            for name in self._movable(source, target):
                if name not in excepted:
                    return name, self.replicas[name].index(source), target
        return None

    def hand_on(self, nodes: list[NodeId]) -> bool:
        leader = nodes[0]
        there = [node_id for node_id in nodes if node_id in self.led]
        least = min(there, key=lambda node_id: (self.led[node_id], node_id))
        if leader not in self.led or self.led[leader] - self.led[least] <= 1:
            return False
        nodes.remove(least)
        nodes.insert(0, least)
        self.led[leader] -= 1
        self.led[least] += 1
        return True

    def _next_move(self) -> tuple[TopicPartition, int, NodeId] | None:
        by_load = sorted(self.held, key=lambda node_id: (len(self.held[node_id]), node_id))
        for fullest in reversed(by_load):
            for emptiest in by_load:
                if len(self.held[fullest]) - len(self.held[emptiest]) <= 1:
                    break
                for name in self._movable(fullest, emptiest):
                    return name, self.replicas[name].index(fullest), emptiest
        return None

    def _movable(self, source: NodeId, target: NodeId) -> Iterator[TopicPartition]:
        for name in self.held[source]:
            nodes = self.replicas[name]
            if target in nodes:
                continue
            others = [self._rack(node_id) for node_id in nodes if node_id != source]
            if self._rack(target) not in others or self._rack(source) in others:
                yield name

    def _best_for(self, name: TopicPartition, place: int) -> NodeId:
        """The emptiest broker in the rack that has the fewest of the other replicas."""
        nodes = self.replicas[name]
        others = [node_id for at, node_id in enumerate(nodes) if at != place]
        racks = [self._rack(node_id) for node_id in others if node_id in self.racks]
        free = [node_id for node_id in self.held if node_id not in others]
        return min(
            free, key=lambda node_id: (racks.count(self._rack(node_id)), len(self.held[node_id]), node_id)
        )

    def move(self, name: TopicPartition, place: int, target: NodeId) -> None:
        nodes = self.replicas[name]
        source = nodes[place]
        if source in self.held:
            self.held[source].pop(name, None)
        nodes[place] = target
        self.held[target][name] = None

    def _rack(self, node_id: NodeId) -> str:
        # A broker without a rack counts as a rack of its own: nobody knows what it shares with others.
        rack = self.racks.get(node_id)
        return f"rack {rack}" if rack else f"broker {node_id}"
