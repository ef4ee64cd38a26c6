"""The assignor of share groups: partitions are shared, loads are even, and members keep what they can."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from millrace.core.ids import TopicId
from millrace.groups.assignors import GroupAssignment, MemberSpec, TopicShape
from millrace.groups.assignors.simple import assign_simple
from tests.unit.groups.assignors.assignments import groups, loads, topic_id, with_present

Assignable = dict[TopicId, frozenset[int]]


def assignable(topics: dict[TopicId, TopicShape]) -> Assignable:
    return {topic: frozenset(range(shape.partition_count)) for topic, shape in topics.items()}


def sharers(assignment: GroupAssignment) -> Counter[tuple[TopicId, int]]:
    return Counter(
        (topic, partition)
        for parts in assignment.values()
        for topic, partitions in parts.items()
        for partition in partitions
    )


@settings(max_examples=60, deadline=None)
@given(group=groups(equal=True))
def test_equal_members_share_all_partitions_evenly(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    assignment = assign_simple(members, assignable(topics))
    count = sum(shape.partition_count for shape in topics.values())
    sharing = -(-len(members) // count)
    found = sharers(assignment)
    assert len(found) == count
    assert set(found.values()) == {sharing}
    counts = loads(assignment).values()
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1 or len(members) < count
    again = assign_simple(with_present(members, assignment), assignable(topics))
    assert again == assignment, "an assignment that nothing has happened to stays as it is"
    assert assign_simple(dict(reversed(members.items())), assignable(topics)) == assignment


@settings(max_examples=60, deadline=None)
@given(group=groups())
def test_every_partition_has_as_many_subscribers_as_its_topic_needs(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    assignment = assign_simple(members, assignable(topics))
    assert set(assignment) == set(members)
    for name, parts in assignment.items():
        assert set(parts) <= members[name].topics
    found = sharers(assignment)
    if len({spec.topics for spec in members.values()}) == 1:
        return
    for topic, shape in topics.items():
        subscribers = sum(topic in spec.topics for spec in members.values())
        sharing = -(-subscribers // shape.partition_count)
        assert [found[topic, number] for number in range(shape.partition_count)] == [
            sharing
        ] * shape.partition_count


@settings(max_examples=40, deadline=None)
@given(group=groups(equal=True))
def test_who_stays_keeps_what_fits_when_somebody_joins_or_leaves(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    before = assign_simple(members, assignable(topics))
    joined = {**with_present(members, before), "new": MemberSpec(topics=frozenset(topics))}
    after = assign_simple(joined, assignable(topics))
    count = sum(shape.partition_count for shape in topics.values())
    if len(joined) <= count:
        for name in members:
            kept = sum(
                len(after[name].get(topic, frozenset()) & held) for topic, held in before[name].items()
            )
            assert kept == min(loads(before)[name], loads(after)[name])


@pytest.mark.parametrize(
    "members, partitions, expected",
    [(1, 3, [3]), (2, 3, [2, 1]), (3, 2, [2, 1, 1]), (5, 5, [1] * 5), (7, 3, [2, 1, 1, 1, 1, 1, 2])],
)
def test_loads_are_those_of_kafka(members: int, partitions: int, expected: list[int]) -> None:
    specs = {f"m{number}": MemberSpec(topics=frozenset({topic_id(1)})) for number in range(members)}
    found = loads(assign_simple(specs, {topic_id(1): frozenset(range(partitions))}))
    assert sorted(found.values()) == sorted(expected)


def test_only_what_is_assignable_is_assigned() -> None:
    specs = {"m": MemberSpec(topics=frozenset({topic_id(1), topic_id(2)}))}
    assert assign_simple(specs, {topic_id(1): frozenset({2})}) == {"m": {topic_id(1): frozenset({2})}}
    assert assign_simple(specs, {}) == {"m": {}}
    assert assign_simple({}, {topic_id(1): frozenset({2})}) == {}


def test_a_member_that_has_a_partition_already_makes_room_for_another() -> None:
    """Three members share two partitions twice each; in whatever way they held them before."""
    topic = topic_id(1)
    for first in ([0], [1], [0, 1]):
        for second in ([0], [1], [0, 1]):
            specs = {
                "a": MemberSpec(topics=frozenset({topic}), present={topic: frozenset(first)}),
                "b": MemberSpec(topics=frozenset({topic}), present={topic: frozenset(second)}),
                "c": MemberSpec(topics=frozenset({topic})),
            }
            found = sharers(assign_simple(specs, {topic: frozenset({0, 1})}))
            assert found == {(topic, 0): 2, (topic, 1): 2}
