"""Generated groups and topics, and what holds for every assignment of them."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.groups.assignors import GroupAssignment, MemberSpec, TopicShape

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
