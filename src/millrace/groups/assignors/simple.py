"""The `simple` assignor of share groups: many members may have the same partition.

Each partition is shared by as many members as it takes for everybody to have something to do: one where there
are at least as many partitions as members, else members over partitions, rounded up. Loads differ by one at
most where subscriptions are equal; within that, members keep what they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from millrace.core.ids import TopicId
from millrace.groups.assignors.model import GroupAssignment, MemberSpec, Partitions
from millrace.groups.assignors.uniform import Place, by_topic


def assign_simple(members: Mapping[str, MemberSpec], assignable: Partitions) -> GroupAssignment:
    """Share the assignable partitions of each member's topics. Members that want the same topics share all of
    them together, else each topic is shared by itself, as in Kafka."""
    names = sorted(members)
    held: dict[str, list[Place]] = {name: [] for name in names}
    subscriptions = list(dict.fromkeys(members[name].topics for name in names))
    if len(subscriptions) == 1:
        _share(_places(sorted(subscriptions[0]), assignable), names, members, held)
    else:
        for topic in sorted({topic for wanted in subscriptions for topic in wanted}):
            subscribers = [name for name in names if topic in members[name].topics]
            _share(_places([topic], assignable), subscribers, members, held)
    return {name: by_topic(held[name]) for name in names}


def _places(topics: Sequence[TopicId], assignable: Partitions) -> list[Place]:
    return [(topic, partition) for topic in topics for partition in sorted(assignable.get(topic, ()))]


def _share(
    places: Sequence[Place],
    names: Sequence[str],
    members: Mapping[str, MemberSpec],
    held: dict[str, list[Place]],
) -> None:
    """Give each place to as many of these members as shall share it; adds to what they hold."""
    if not places or not names:
        return
    sharing = -(-len(names) // len(places))
    total = sharing * len(places)
    quotas = dict(zip(names, _quotas(total, len(names)), strict=True))
    free = dict.fromkeys(places, sharing)
    kept: dict[str, dict[Place, None]] = {}
    for name in names:
        kept[name] = {}
        present = members[name].present
        for place in _places(sorted(present), present):
            if free.get(place, 0) > 0 and len(kept[name]) < quotas[name]:
                kept[name][place] = None
                free[place] -= 1
    _hand_out(free, quotas, kept)
    for name in names:
        held[name] += kept[name]


def _quotas(total: int, count: int) -> list[int]:
    """Whole numbers that sum up to the total, spread evenly over the row, the larger ones first."""
    ends = [-(-total * place // count) for place in range(count + 1)]
    return [end - start for start, end in pairwise(ends)]


def _hand_out(free: dict[Place, int], quotas: Mapping[str, int], kept: dict[str, dict[Place, None]]) -> None:
    """Give what is free in turn to members with room. A member that has a place already passes; where only
    such members have room, one of them takes another member's place, and that one takes this."""
    rooms = [name for name in kept if len(kept[name]) < quotas[name]]
    turn = 0
    for place, count in free.items():
        for _ in range(count):
            taker = _next_without(place, rooms, turn, kept)
            if taker is None:
                taker = _swapped(place, rooms, kept)
            if taker is None:
                break
            name = rooms[taker]
            kept[name].setdefault(place)
            turn = taker + 1
            if len(kept[name]) >= quotas[name]:
                del rooms[taker]
                turn = taker


def _next_without(
    place: Place, rooms: Sequence[str], turn: int, kept: Mapping[str, Mapping[Place, None]]
) -> int | None:
    for step in range(len(rooms)):
        number = (turn + step) % len(rooms)
        if place not in kept[rooms[number]]:
            return number
    return None


def _swapped(place: Place, rooms: Sequence[str], kept: dict[str, dict[Place, None]]) -> int | None:
    """Let a member without the place give up one that a member with room lacks, and take the place instead;
    returns the number of the member with room, which now holds what the other gave up."""
    for number, name in enumerate(rooms):
        for others in kept.values():
            if place in others:
                continue
            given = next((each for each in others if each not in kept[name]), None)
            if given is not None:
                del others[given]
                others[place] = None
                kept[name][given] = None
                return number
    return None
