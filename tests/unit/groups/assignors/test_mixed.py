"""Uniform assignment where members subscribe to different topics: like subscriptions get like loads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.groups.assignors import ASSIGNORS, MemberSpec, TopicShape
from tests.unit.groups.assignors.assignments import (
    check_complete,
    groups,
    loads,
    topic_id,
    with_present,
)


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


def test_who_can_have_only_one_topic_leaves_the_other_to_the_rest() -> None:
    both, only = frozenset({topic_id(0), topic_id(1)}), frozenset({topic_id(0)})
    topics = {topic_id(0): TopicShape(4), topic_id(1): TopicShape(4)}
    members = {"both": MemberSpec(topics=both), "only": MemberSpec(topics=only)}
    assert loads(ASSIGNORS["uniform"](members, topics)) == {"both": 4, "only": 4}
