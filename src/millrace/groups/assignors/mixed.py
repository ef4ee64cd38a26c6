"""Uniform assignment where members subscribe to different topics: keep, hand out, then level the loads."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from millrace.core.ids import TopicId
from millrace.groups.assignors.model import GroupAssignment, MemberSpec, TopicShape

Owners = dict[TopicId, dict[str, list[int]]]
"""For each topic the partitions that each subscriber has."""


def assign_mixed(members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape]) -> GroupAssignment:
    """Assign every partition; loads of members with the same subscription differ by one at most."""
    subscribers = _subscribers(members, topics)
    loads = dict.fromkeys(sorted(members), 0)
    owners: Owners = {topic: {name: [] for name in names} for topic, names in subscribers.items()}
    free = _keep(members, topics, owners, loads)
    # Topics with few subscribers come first: the others can still make up for them.
    for topic in sorted(free, key=lambda topic: (len(subscribers[topic]), topic)):
        _hand_out(topics[topic], free[topic], owners[topic], loads, members)
    _level(owners, loads, topics, members)

    assignment: GroupAssignment = {name: {} for name in loads}
    for topic, shares in owners.items():
        for name, partitions in shares.items():
            if partitions:
                assignment[name][topic] = frozenset(partitions)
    return assignment


def _subscribers(
    members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape]
) -> dict[TopicId, list[str]]:
    subscribers: dict[TopicId, list[str]] = {}
    for name in sorted(members):
        for topic in sorted(members[name].topics):
            if topic in topics:
                subscribers.setdefault(topic, []).append(name)
    return dict(sorted(subscribers.items()))


def _keep(
    members: Mapping[str, MemberSpec],
    topics: Mapping[TopicId, TopicShape],
    owners: Owners,
    loads: dict[str, int],
) -> dict[TopicId, list[int]]:
    """Let every member keep what it has and still wants; returns what is free of each topic."""
    free = {topic: dict.fromkeys(range(topics[topic].partition_count)) for topic in owners}
    for name in loads:
        spec = members[name]
        for topic in sorted(spec.present):
            if topic not in spec.topics or topic not in owners:
                continue
            for partition in sorted(spec.present[topic]):
                if partition in free[topic]:
                    del free[topic][partition]
                    owners[topic][name].append(partition)
                    loads[name] += 1
    return {topic: list(partitions) for topic, partitions in free.items() if partitions}


def _hand_out(
    shape: TopicShape,
    partitions: list[int],
    shares: dict[str, list[int]],
    loads: dict[str, int],
    members: Mapping[str, MemberSpec],
) -> None:
    """Give each partition to the subscriber with the least; of equals, to one in a rack that has it."""
    everywhere: list[tuple[int, str]] = [(loads[name], name) for name in shares]
    heapify(everywhere)
    near: dict[str, list[tuple[int, str]]] = {}
    if shape.racks:
        for load, name in everywhere:
            rack = members[name].rack
            if rack is not None:
                near.setdefault(rack, []).append((load, name))
        for heap in near.values():
            heapify(heap)
    for partition in _racks_in_turn(shape, partitions) if near else partitions:
        load, name = _least(everywhere, loads)
        if near:
            for rack in sorted(shape.racks[partition]):
                if near.get(rack) and _least(near[rack], loads)[0] == load:
                    name = near[rack][0][1]
                    break
        shares[name].append(partition)
        loads[name] = load + 1
        heappush(everywhere, (load + 1, name))
        own = near.get(members[name].rack or "")
        if own is not None:
            heappush(own, (load + 1, name))


def _racks_in_turn(shape: TopicShape, partitions: list[int]) -> list[int]:
    """Partitions of different racks alternate: each finds a near member before loads are uneven."""
    seen: dict[frozenset[str], int] = {}
    turns = []
    for partition in partitions:
        turn = seen[shape.racks[partition]] = seen.get(shape.racks[partition], 0) + 1
        turns.append((turn, partition))
    return [partition for _, partition in sorted(turns)]


def _least(heap: list[tuple[int, str]], loads: dict[str, int]) -> tuple[int, str]:
    """The top of a heap whose entries may be out of date: loads only grow while it is used."""
    while heap[0][0] != loads[heap[0][1]]:
        heappop(heap)
    return heap[0]


def _level(
    owners: Owners,
    loads: dict[str, int],
    topics: Mapping[TopicId, TopicShape],
    members: Mapping[str, MemberSpec],
) -> None:
    """Move partitions from members with more to those with at least two less, until there are none.

    Every move lowers the sum of the squared loads, so this comes to an end.
    """
    has_moved = True
    while has_moved:
        has_moved = False
        # The fullest come first, so that nobody gives to a neighbour what somebody else has too much of.
        for topic in sorted(owners, key=lambda topic: (-max(loads[name] for name in owners[topic]), topic)):
            if _level_topic(topics[topic], owners[topic], loads, members):
                has_moved = True


def _level_topic(
    shape: TopicShape,
    shares: dict[str, list[int]],
    loads: dict[str, int],
    members: Mapping[str, MemberSpec],
) -> bool:
    lowest = min(loads[name] for name in shares)
    givers = [(-loads[name], name) for name, partitions in shares.items() if partitions]
    givers = [entry for entry in givers if -entry[0] >= lowest + 2]
    if not givers:
        return False
    takers = [(loads[name], name) for name in shares]
    heapify(givers)
    heapify(takers)
    has_moved = False
    while givers:
        giver = givers[0][1]
        if -givers[0][0] != loads[giver] or not shares[giver]:
            heappop(givers)
            continue
        while takers[0][0] != loads[takers[0][1]]:
            heappop(takers)
        taker = takers[0][1]
        if loads[giver] < loads[taker] + 2:
            break
        shares[taker].append(_given(shape, shares[giver], members[giver].rack, members[taker].rack))
        loads[giver] -= 1
        loads[taker] += 1
        heappush(givers, (-loads[giver], giver))
        heappush(takers, (loads[giver], giver))
        heappush(takers, (loads[taker], taker))
        has_moved = True
    return has_moved


def _given(shape: TopicShape, partitions: list[int], from_rack: str | None, to_rack: str | None) -> int:
    """The partition that moves: one that the taker is near to and the giver is not, if there is one."""
    if not shape.racks or (from_rack is None and to_rack is None):
        return partitions.pop()
    best = max(
        range(len(partitions)),
        key=lambda place: (
            (to_rack in shape.racks[partitions[place]]) - (from_rack in shape.racks[partitions[place]]),
            place,
        ),
    )
    return partitions.pop(best)
