"""Heartbeats that contradict themselves."""

from __future__ import annotations

import pytest

from millrace.groups.errors import InvalidHeartbeat, InvalidTopology
from millrace.groups.streams.commands import StreamsHeartbeat
from millrace.groups.streams.requests import check_heartbeat
from tests.unit.groups.streams.topologies import part, topic, topology, word_count

JOIN = StreamsHeartbeat(
    "g",
    "m",
    0,
    rebalance_timeout_ms=10_000,
    topology=word_count(),
    active=[],
    standby=[],
    warmup=[],
    process_id="p",
)
STAY = StreamsHeartbeat("g", "m", 3)


def test_proper_heartbeats_pass() -> None:
    for beat in (
        JOIN,
        STAY,
        STAY._replace(member_epoch=-1),
        STAY._replace(active=[("0", [1])], standby=[], warmup=[]),
    ):
        check_heartbeat(beat)


@pytest.mark.parametrize(
    "beat, why",
    [
        (JOIN._replace(group_id=""), "GroupId"),
        (JOIN._replace(member_id=""), "MemberId"),
        (JOIN._replace(rack=""), "RackId"),
        (JOIN._replace(instance_id="i"), "Static membership"),
        (JOIN._replace(has_task_offsets=True), "TaskOffsets"),
        (STAY._replace(active=[], standby=[], warmup=[("0", [0])]), "WarmupTasks"),
        (JOIN._replace(rebalance_timeout_ms=-1), "RebalanceTimeoutMs"),
        (JOIN._replace(active=[("0", [0])]), "ActiveTasks must be empty"),
        (JOIN._replace(standby=None), "StandbyTasks must be empty"),
        (JOIN._replace(topology=None), "Topology must be non-null"),
        (STAY._replace(topology=word_count()), "Topology can only be provided"),
        (STAY._replace(active=[]), "all must be non-null"),
        (STAY._replace(member_epoch=-2), "InstanceId"),
        (STAY._replace(member_epoch=-3), "greater than or equal to -2"),
    ],
)
def test_a_heartbeat_is_refused(beat: StreamsHeartbeat, why: str) -> None:
    with pytest.raises(InvalidHeartbeat, match=why):
        check_heartbeat(beat)


def test_patterns_of_source_topics_are_refused() -> None:
    subtopology = part("0", ["a"])
    subtopology.source_topic_regex = ["a.*"]
    with pytest.raises(InvalidHeartbeat, match="Regular expressions"):
        check_heartbeat(JOIN._replace(topology=topology(subtopology)))


def test_a_changelog_may_not_ask_for_partitions_and_an_epoch_is_no_less_than_zero() -> None:
    subtopology = part("0", ["a"])
    subtopology.state_changelog_topics = [topic("c", 3)]
    with pytest.raises(InvalidTopology, match="c asks for 3 partitions"):
        check_heartbeat(JOIN._replace(topology=topology(subtopology)))
    with pytest.raises(InvalidTopology, match="starts at 0"):
        check_heartbeat(JOIN._replace(topology=topology(epoch=-1)))
