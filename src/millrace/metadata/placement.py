"""Where replicas go: evenly over brokers, and over racks as far as there are enough. A pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from millrace.core.ids import NodeId
from millrace.metadata.errors import InvalidReplicationFactor


def place_replicas(
    brokers: Mapping[NodeId, str | None],
    *,
    partition_count: int,
    replication_factor: int,
    start: int,
    first_partition: int = 0,
) -> list[tuple[NodeId, ...]]:
    """The replicas of each new partition, preferred leader first. `brokers` maps each to its rack.

    `start` turns the whole pattern, so that not every topic begins at the same broker; use the same number
    when partitions are added later."""
    if not 1 <= replication_factor <= len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} needs as many brokers, {len(brokers)} are registered"
        )
    ring = _alternating_racks(brokers)
    # A broker without a rack counts as a rack of its own: nobody knows what it shares with others.
    racks = {node_id: f"rack {rack}" if rack else f"broker {node_id}" for node_id, rack in brokers.items()}
    placed = []
    for partition in range(first_partition, first_partition + partition_count):
        turn = start + partition
        leader = ring[turn % len(ring)]
        # With every round the followers shift by one more, so that a lost leader's load spreads over all
        # others.
        shift = (start + partition // len(ring)) % max(1, len(ring) - 1)
        candidates = _candidates(ring, turn % len(ring), shift)
        replicas = [leader]
        while len(replicas) < replication_factor:
            replicas.append(_next_replica(candidates, replicas, racks))
        placed.append(tuple(replicas))
    return placed


def _candidates(ring: Sequence[NodeId], leader_place: int, shift: int) -> list[NodeId]:
    others = [ring[(leader_place + step) % len(ring)] for step in range(1, len(ring))]
    return others[shift:] + others[:shift]


def _next_replica(
    candidates: Sequence[NodeId], replicas: Sequence[NodeId], racks: Mapping[NodeId, str]
) -> NodeId:
    """The first candidate from the rack that holds the fewest replicas so far."""
    load: dict[str, int] = {}
    for node_id in replicas:
        load[racks[node_id]] = load.get(racks[node_id], 0) + 1
    free = [node_id for node_id in candidates if node_id not in replicas]
    return min(free, key=lambda node_id: load.get(racks[node_id], 0))


def _alternating_racks(brokers: Mapping[NodeId, str | None]) -> list[NodeId]:
    """All brokers in an order in which neighbours stand in different racks, as far as that goes."""
    by_rack: dict[str, list[NodeId]] = {}
    for node_id in sorted(brokers):
        by_rack.setdefault(brokers[node_id] or "", []).append(node_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node_id for one_round in rounds for node_id in one_round if node_id is not None]
