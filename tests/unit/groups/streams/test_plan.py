"""The plan for a topology: numbers of tasks and partitions, missing topics, and what does not fit."""

from __future__ import annotations

import pytest

from millrace.groups.errors import InvalidTopology
from millrace.groups.streams.commands import NewInternalTopic, StatusCode
from millrace.groups.streams.plan import Plan, plan
from millrace.groups.streams.topology import Topology
from millrace.wire.messages.streams_group_records import StreamsGroupTopologyValue
from tests.unit.groups.streams.topologies import part, topic, topology, word_count


def planned(value: StreamsGroupTopologyValue, **present: int) -> Plan:
    counts = {name.replace("_", "-"): count for name, count in present.items()}
    return plan(Topology(value), counts.get)


def problem_of(found: Plan) -> tuple[StatusCode, str]:
    assert found.problem is not None
    return found.problem.code, found.problem.detail


def test_internal_topics_get_their_partitions_from_what_is_read() -> None:
    found = planned(word_count(), words=4)
    assert found.task_counts == {"0": 4, "1": 4}
    assert found.missing == (
        NewInternalTopic("counts-changelog", 4, -1, {"cleanup.policy": "compact"}),
        NewInternalTopic("regrouped", 4, -1, {}),
    )
    assert problem_of(found) == (
        StatusCode.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: counts-changelog, regrouped",
    )
    assert not found.is_ready


def test_all_is_ready_when_the_topics_are_there() -> None:
    found = planned(word_count(), words=4, regrouped=4, counts_changelog=4)
    assert found.is_ready
    assert (found.missing, found.task_counts) == ((), {"0": 4, "1": 4})


def test_a_repartition_topic_may_ask_for_its_partitions_and_replicas() -> None:
    value = word_count(regroup_to=7)
    value.subtopologies[1].repartition_source_topics[0].replication_factor = 2
    found = planned(value, words=4)
    assert found.task_counts == {"0": 4, "1": 7}
    assert found.missing[1] == NewInternalTopic("regrouped", 7, 2, {})
    assert found.partition_counts == {"regrouped": 7, "counts-changelog": 7}


def test_missing_sources_are_named_but_not_all_of_them() -> None:
    found = planned(topology(part("0", ["e", "d", "c", "b", "a"])), a=1)
    assert problem_of(found) == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics b, c, d and 1 additional topics are missing.",
    )
    assert (found.task_counts, found.missing) == ({}, ())


@pytest.mark.parametrize("wrong, expected, other", [("regrouped", 4, 4), ("counts-changelog", 4, 4)])
def test_an_existing_internal_topic_of_another_size_is_a_problem(
    wrong: str, expected: int, other: int
) -> None:
    counts = {"words": 4, "regrouped": other, "counts-changelog": other, wrong: 3}
    found = plan(Topology(word_count()), counts.get)
    code, detail = problem_of(found)
    assert code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert "has different number of partitions" in detail


def test_joined_topics_must_have_equal_numbers() -> None:
    joined = part("0", ["a", "b"], joins=[([0, 1], [])])
    assert planned(topology(joined), a=3, b=3).is_ready
    assert problem_of(planned(topology(joined), a=3, b=2)) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: a has 3, b has 2",
    )


def test_a_repartition_topic_takes_the_number_of_the_topic_that_it_is_joined_with() -> None:
    value = topology(
        part("0", ["big"], writes=["r"]), part("1", ["small"], reads=[topic("r")], joins=[([0], [0])])
    )
    found = planned(value, big=9, small=2)
    assert found.partition_counts == {"r": 2}
    assert found.task_counts == {"0": 9, "1": 2}


def test_a_repartition_topic_that_asks_for_another_number_than_its_partner_does_not_fit() -> None:
    value = topology(
        part("0", ["big"], writes=["r"]), part("1", ["small"], reads=[topic("r", 5)], joins=[([0], [0])])
    )
    code, detail = problem_of(planned(value, big=9, small=2))
    assert code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert "r asks for 5 partitions" in detail


def test_repartition_topics_that_are_joined_take_what_one_asks_for_or_the_largest() -> None:
    writers = (part("0", ["a"], writes=["r"]), part("1", ["b"], writes=["s"]))

    def joined(asked: int) -> StreamsGroupTopologyValue:
        reads = [topic("r", asked), topic("s")]
        return topology(*writers, part("2", reads=reads, joins=[([], [0, 1]), ([], [])]))

    assert planned(joined(0), a=3, b=5).partition_counts == {"r": 5, "s": 5}
    assert planned(joined(4), a=3, b=5).partition_counts == {"r": 4, "s": 4}


def test_chains_of_repartition_topics_are_followed_whatever_their_order() -> None:
    value = topology(
        part("0", reads=[topic("r")], writes=["s"]),
        part("1", reads=[topic("s")]),
        part("2", ["a"], writes=["r"]),
    )
    assert planned(value, a=6).task_counts == {"0": 6, "1": 6, "2": 6}


@pytest.mark.parametrize(
    "value, why",
    [
        (topology(part("0", reads=[topic("r")], writes=["r"])), "a loop of repartition topics"),
        (topology(part("0", ["a"]), part("1", reads=[topic("r")])), "nothing writes to"),
        (topology(part("0")), "reads no topic"),
        (topology(part("0", ["a"], joins=[([1], [])])), "not there"),
        (topology(part("0", ["a"], joins=[([-1], [])])), "not there"),
        (topology(part("0", ["a"], reads=[topic("r", -1)])), "asks for -1 partitions"),
    ],
)
def test_what_no_topics_can_satisfy_is_refused(value: StreamsGroupTopologyValue, why: str) -> None:
    with pytest.raises(InvalidTopology, match=why):
        planned(value, a=1)
