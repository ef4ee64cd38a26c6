"""Uniform assignment where all members subscribe alike: equal loads, and as few moves as can be."""

from __future__ import annotations

from hypothesis import given, settings

from millrace.core.ids import TopicId
from millrace.groups.assignors import ASSIGNORS, MemberSpec, TopicShape
from tests.unit.groups.assignors.assignments import (
    groups,
    loads,
    owners,
    with_present,
)


@settings(max_examples=20, deadline=None)
@given(group=groups(equal=True))
def test_uniform_loads_differ_by_one_at_most(
    group: tuple[dict[str, MemberSpec], dict[TopicId, TopicShape]],
) -> None:
    members, topics = group
    counts = loads(ASSIGNORS["uniform"](members, topics)).values()
    assert max(counts) - min(counts) <= 1


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
