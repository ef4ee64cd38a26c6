"""The `range` assignor: of every topic each subscriber gets one run of neighbouring partitions.

Topics with the same subscribers and the same number of partitions are cut and dealt alike, so that partition
n of each topic goes to the same member, on which joins by key rely. Members keep their places in the row from
one assignment to the next, and newcomers line up at the end: that is as sticky as unbroken runs allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.core.ids import TopicId
from millrace.groups.assignors.model import GroupAssignment, MemberSpec, TopicShape


def assign_ranges(members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape]) -> GroupAssignment:
    assignment: GroupAssignment = {name: {} for name in sorted(members)}
    for subscribers, shared in _topics_by_subscribers(members, topics).items():
        row = _row(subscribers, shared, members, topics)
        for topic in shared:
            for name, (first, end) in zip(row, _runs(topics[topic].partition_count, len(row)), strict=True):
                if end > first:
                    assignment[name][topic] = frozenset(range(first, end))
    return assignment


def _topics_by_subscribers(
    members: Mapping[str, MemberSpec], topics: Mapping[TopicId, TopicShape]
) -> dict[tuple[str, ...], list[TopicId]]:
    subscribers: dict[TopicId, list[str]] = {}
    for name in sorted(members, key=lambda name: (members[name].instance_id or name, name)):
        for topic in members[name].topics:
            if topic in topics:
                subscribers.setdefault(topic, []).append(name)
    shared: dict[tuple[str, ...], list[TopicId]] = {}
    for topic in sorted(subscribers):
        shared.setdefault(tuple(subscribers[topic]), []).append(topic)
    return shared


def _row(
    names: Sequence[str],
    shared: Sequence[TopicId],
    members: Mapping[str, MemberSpec],
    topics: Mapping[TopicId, TopicShape],
) -> list[str]:
    """The subscribers in the order in which runs are dealt."""
    widest = sorted(shared, key=lambda topic: (-topics[topic].partition_count, topic))
    for topic in widest:
        starts = {
            name: min(members[name].present[topic]) for name in names if members[name].present.get(topic)
        }
        if starts:
            # Sorting is stable: newcomers keep the order of their ids.
            return sorted(names, key=lambda name: starts.get(name, topics[topic].partition_count))
    return _row_by_racks(names, topics[widest[0]], members)


def _row_by_racks(names: Sequence[str], shape: TopicShape, members: Mapping[str, MemberSpec]) -> list[str]:
    """The row where nobody has a place to keep: each run goes to a member in the rack that has most of it."""
    waiting: dict[str, list[str]] = {}
    for name in reversed(names):
        waiting.setdefault(members[name].rack or "", []).append(name)
    if not shape.racks or len(waiting) == 1:
        return list(names)
    places = {name: place for place, name in enumerate(names)}
    row = []
    for first, end in _runs(shape.partition_count, len(names)):
        counts = dict.fromkeys(waiting, 0)
        for partition in range(first, end):
            for rack in shape.racks[partition]:
                if rack in counts:
                    counts[rack] += 1
        best = max(waiting, key=lambda rack: (counts[rack], -places[waiting[rack][-1]]))
        row.append(waiting[best].pop())
        if not waiting[best]:
            del waiting[best]
    return row


def _runs(partition_count: int, member_count: int) -> list[tuple[int, int]]:
    """Where each run begins and ends; the first ones are longer by one if the count does not divide."""
    length, longer = divmod(partition_count, member_count)
    runs = []
    first = 0
    for place in range(member_count):
        end = first + length + (place < longer)
        runs.append((first, end))
        first = end
    return runs
