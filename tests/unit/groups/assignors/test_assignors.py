"""Both assignors give every partition to exactly one subscriber, evenly, and move no more than they must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from millrace.core.ids import TopicId
from millrace.groups.assignors import ASSIGNORS, MemberSpec, TopicShape
from tests.unit.groups.assignors.assignments import (
    RACKS,
    check_complete,
    groups,
    owners,
    topic_id,
    with_present,
)


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
