"""Ranges: each member gets a run of every topic, and keeps its place when others come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.groups.assignors import ASSIGNORS, MemberSpec, TopicShape
from tests.unit.groups.assignors.assignments import (
    topic_id,
    with_present,
)


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
