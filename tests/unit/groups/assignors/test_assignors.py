"""Both assignors give every partition to exactly one subscriber, evenly, and move no more than they must."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.groups.assignors import ASSIGNORS, GroupAssignment, MemberSpec, TopicShape

Topics = Mapping[TopicId, TopicShape]
RACKS = ("a", "b", "c")


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def loads(assignment: GroupAssignment) -> dict[str, int]:
    return {name: sum(map(len, parts.values())) for name, parts in assignment.items()}


def owners(assignment: GroupAssignment) -> dict[tuple[TopicId, int], str]:
    found: dict[tuple[TopicId, int], str] = {}
    for name, parts in assignment.items():
        for topic, partitions in parts.items():
            assert partitions, "topics without partitions are left out"
            for partition in partitions:
                assert (topic, partition) not in found, "owned twice"
                found[topic, partition] = name
    return found


def check_complete(assignment: GroupAssignment, members: Mapping[str, MemberSpec], topics: Topics) -> None:
    found = owners(assignment)
    assert set(assignment) == set(members)
    for (topic, _), name in found.items():
        assert topic in members[name].topics
    wanted = {topic for spec in members.values() for topic in spec.topics if topic in topics}
    assert set(found) == {(t, p) for t in wanted for p in range(topics[t].partition_count)}


def with_present(members: Mapping[str, MemberSpec], assignment: GroupAssignment) -> dict[str, MemberSpec]:
    return {
        name: MemberSpec(
            topics=spec.topics,
            present=assignment.get(name, {}),
            rack=spec.rack,
            instance_id=spec.instance_id,
        )
        for name, spec in members.items()
    }


@st.composite
def groups(
    draw: st.DrawFn, *, equal: bool = False
) -> tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]]:
    topics = {}
    for number in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 12))
        racks = draw(
            st.one_of(
                st.just(()),
                st.lists(st.frozensets(st.sampled_from(RACKS), max_size=2), min_size=count, max_size=count),
            )
        )
        topics[topic_id(number)] = TopicShape(count, tuple(racks))
    everything = frozenset(topics)
    members = {}
    for number in range(draw(st.integers(1, 8))):
        wanted = (
            everything if equal else draw(st.frozensets(st.sampled_from([*sorted(topics), topic_id(99)])))
        )
        present = draw(
            st.dictionaries(
                st.sampled_from([*sorted(topics), topic_id(98)]),
                st.frozensets(st.integers(0, 14), min_size=1),
            )
        )
        members[f"m{number}"] = MemberSpec(
            topics=wanted, present=present, rack=draw(st.sampled_from([None, *RACKS]))
        )
    return members, topics


@pytest.mark.parametrize("name", list(ASSIGNORS))
@settings(max_examples=20, deadline=None)
@given(group=groups())
def test_every_partition_has_exactly_one_subscriber(
    name: str, group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]]
) -> None:
    members, topics = group
    assignment = ASSIGNORS[name](members, topics)
    check_complete(assignment, members, topics)
    reordered = dict(sorted(members.items(), reverse=True))
    assert ASSIGNORS[name](reordered, topics) == assignment, "the order of members must not matter"
    # An assignment that nothing has happened to stays as it is.
    again = ASSIGNORS[name](with_present(members, assignment), topics)
    assert again == assignment


@settings(max_examples=20, deadline=None)
@given(group=groups(equal=True))
def test_uniform_loads_differ_by_one_at_most(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    counts = loads(ASSIGNORS["uniform"](members, topics)).values()
    assert max(counts) - min(counts) <= 1


@settings(max_examples=20, deadline=None)
@given(group=groups())
def test_uniform_loads_of_equal_subscriptions_differ_by_one_at_most(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    counts = loads(ASSIGNORS["uniform"](members, topics))
    for first in members:
        for second in members:
            if members[first].topics == members[second].topics:
                assert abs(counts[first] - counts[second]) <= 1


@settings(max_examples=20, deadline=None)
@given(group=groups(equal=True))
def test_a_join_moves_only_the_newcomers_share(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    before = ASSIGNORS["uniform"](members, topics)
    joined = with_present(members, before) | {"new": MemberSpec(topics=frozenset(topics))}
    after = ASSIGNORS["uniform"](joined, topics)
    moved = [place for place, owner in owners(after).items() if owners(before)[place] != owner]
    assert all(owners(after)[place] == "new" for place in moved)
    assert len(moved) == loads(after)["new"] == sum(loads(before).values()) // len(joined)


@settings(max_examples=20, deadline=None)
@given(group=groups(equal=True))
def test_a_leave_moves_only_the_share_of_who_left(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    before = ASSIGNORS["uniform"](members, topics)
    left = with_present(members, before)
    del left["m0"]
    if not left:
        return
    after = owners(ASSIGNORS["uniform"](left, topics))
    assert all(after[place] == owner for place, owner in owners(before).items() if owner != "m0")


@settings(max_examples=20, deadline=None)
@given(group=groups(), shrink=st.booleans())
def test_a_change_among_mixed_subscriptions_keeps_the_promise_of_balance(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]], shrink: bool
) -> None:
    members, topics = group
    before = ASSIGNORS["uniform"](members, topics)
    changed = with_present(members, before)
    if shrink and len(changed) > 1:
        del changed["m0"]
    else:
        changed["new"] = MemberSpec(topics=frozenset(topics))
    check_complete(ASSIGNORS["uniform"](changed, topics), changed, topics)


@given(partitions=st.integers(1, 30), size=st.integers(1, 12))
def test_ranges_are_runs_and_equal_topics_are_dealt_alike(partitions: int, size: int) -> None:
    topics = {topic_id(n): TopicShape(partitions) for n in range(3)}
    members = {f"m{n}": MemberSpec(topics=frozenset(topics)) for n in range(size)}
    assignment = ASSIGNORS["range"](members, topics)
    for parts in assignment.values():
        assert len(set(parts.values())) <= 1
        for run in parts.values():
            assert max(run) - min(run) + 1 == len(run)
    counts = [len(parts.get(topic_id(0), ())) for parts in assignment.values()]
    assert max(counts) - min(counts) <= 1


def test_ranges_keep_their_places_when_a_newcomer_sorts_before_them() -> None:
    topics = {topic_id(0): TopicShape(6)}
    members = {"x": MemberSpec(topics=frozenset(topics)), "y": MemberSpec(topics=frozenset(topics))}
    before = ASSIGNORS["range"](members, topics)
    after = ASSIGNORS["range"](
        with_present(members, before) | {"a": MemberSpec(topics=frozenset(topics))}, topics
    )
    assert after == {
        "x": {topic_id(0): frozenset({0, 1})},
        "y": {topic_id(0): frozenset({2, 3})},
        "a": {topic_id(0): frozenset({4, 5})},
    }


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_members_get_the_partitions_of_their_rack_where_that_costs_nothing(name: str) -> None:
    topics = {topic_id(0): TopicShape(6, tuple(frozenset({RACKS[2 - n // 2]}) for n in range(6)))}
    members = {f"m{n}": MemberSpec(topics=frozenset(topics), rack=rack) for n, rack in enumerate(RACKS)}
    for (topic, partition), owner in owners(ASSIGNORS[name](members, topics)).items():
        assert members[owner].rack in topics[topic].racks[partition]
    if name == "uniform":
        some = members | {"m3": MemberSpec(topics=frozenset({topic_id(5)}))}
        for (topic, partition), owner in owners(ASSIGNORS[name](some, topics)).items():
            assert members[owner].rack in topics[topic].racks[partition]
