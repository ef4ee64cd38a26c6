"""The `uniform` assignor: loads differ as little as subscriptions allow, and partitions stay where they are
as far as that goes. Where there is a choice left, a partition goes to a member in a rack that has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from millrace.core.ids import TopicId
from millrace.groups.assignors.mixed import assign_mixed
from millrace.groups.assignors.model import GroupAssignment, MemberSpec, TopicShape

Place = tuple[TopicId, int]


def assign_uniform(
    members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape]
) -> GroupAssignment:
    """Give every partition of every topic that has subscribers to exactly one of them."""
    if not members:
        return {}
    subscriptions = dict.fromkeys(spec.topics for spec in members.values())
    if len(subscriptions) > 1:
        return assign_mixed(members, topics)
    return _assign_equal(members, topics, next(iter(subscriptions)))


def _assign_equal(
    members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape], subscribed: frozenset[TopicId]
) -> GroupAssignment:
    """For members that want the same topics: each gets its quota, and those that have more a larger one."""
    shapes = {topic: topics[topic] for topic in sorted(subscribed) if topic in topics}
    names = sorted(members)
    free = {
        (topic, partition): None
        for topic, shape in shapes.items()
        for partition in range(shape.partition_count)
    }
    floor, extra = divmod(len(free), len(names))
    kept = {name: _keep(members[name], free) for name in names}

    quotas = dict.fromkeys(names, floor)
    for name in sorted(names, key=lambda name: -len(kept[name]))[:extra]:
        quotas[name] += 1
    for name in names:
        for place in _surplus(kept[name], quotas[name], members[name].rack, shapes):
            kept[name].remove(place)
            free[place] = None

    rooms = {name: quotas[name] - len(kept[name]) for name in names if quotas[name] > len(kept[name])}
    # Those given back came last; sorted again, a topic spreads over as many members as possible.
    _hand_out(sorted(free), rooms, kept, members, shapes)
    return {name: by_topic(kept[name]) for name in names}


def by_topic(places: list[Place]) -> dict[TopicId, frozenset[int]]:
    gathered: dict[TopicId, list[int]] = {}
    for topic, partition in places:
        gathered.setdefault(topic, []).append(partition)
    return {topic: frozenset(partitions) for topic, partitions in gathered.items()}


def _keep(spec: MemberSpec, free: dict[Place, None]) -> list[Place]:
    """What the member may keep of its present target; this takes it out of `free`."""
    kept = []
    for topic in sorted(spec.present):
        for partition in sorted(spec.present[topic]):
            place = (topic, partition)
            if place in free:
                del free[place]
                kept.append(place)
    return kept


def _surplus(
    kept: list[Place], quota: int, rack: str | None, shapes: Mapping[TopicId, TopicShape]
) -> list[Place]:
    """What a member with too much gives back: first what its rack does not have, then the last ones."""
    count = len(kept) - quota
    if count <= 0:
        return []
    if rack is None:
        return kept[-count:]
    return sorted(kept, key=lambda place: is_near(rack, shapes[place[0]], place[1]))[:count]


def is_near(rack: str | None, shape: TopicShape, partition: int) -> bool:
    return bool(shape.racks) and rack in shape.racks[partition]


def _hand_out(
    free: list[Place],
    rooms: dict[str, int],
    kept: dict[str, list[Place]],
    members: Mapping[str, MemberSpec],
    shapes: Mapping[TopicId, TopicShape],
) -> None:
    """Give partitions in turn to the members with room, first to members that are near."""
    near: dict[str, deque[str]] = {}
    for name in rooms:
        rack = members[name].rack
        if rack is not None:
            near.setdefault(rack, deque()).append(name)
    if near:
        free = [place for place in free if not _take_near(place, near, rooms, kept, shapes)]
    turn = deque(name for name, room in rooms.items() if room > 0)
    for place in free:
        name = turn.popleft()
        kept[name].append(place)
        rooms[name] -= 1
        if rooms[name] > 0:
            turn.append(name)


def _take_near(
    place: Place,
    near: dict[str, deque[str]],
    rooms: dict[str, int],
    kept: dict[str, list[Place]],
    shapes: Mapping[TopicId, TopicShape],
) -> bool:
    shape = shapes[place[0]]
    if not shape.racks:
        return False
    racks = [rack for rack in sorted(shape.racks[place[1]]) if near.get(rack)]
    if not racks:
        return False
    # The rack with the most members that still have room can best spare one.
    queue = near[max(racks, key=lambda rack: len(near[rack]))]
    name = queue.popleft()
    kept[name].append(place)
    rooms[name] -= 1
    if rooms[name] > 0:
        queue.append(name)
    return True
