"""Topologies for tests, written shortly."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.wire.messages.streams_group_records import (
    CopartitionGroup,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicConfig,
    TopicInfo,
)


def topic(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replicas,
        topic_configs=[TopicConfig(key=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def part(
    name: str,
    sources: Sequence[str] = (),
    *,
    reads: Sequence[TopicInfo] = (),
    writes: Sequence[str] = (),
    keeps: Sequence[str] = (),
    joins: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> Subtopology:
    """A subtopology that reads topics and repartition topics, writes to some, and keeps state in some."""
    return Subtopology(
        subtopology_id=name,
        source_topics=list(sources),
        repartition_source_topics=list(reads),
        repartition_sink_topics=list(writes),
        state_changelog_topics=[topic(each, cleanup_policy="compact") for each in keeps],
        copartition_groups=[
            CopartitionGroup(source_topics=list(external), repartition_source_topics=list(internal))
            for external, internal in joins
        ],
    )


def topology(*parts: Subtopology, epoch: int = 0) -> StreamsGroupTopologyValue:
    return StreamsGroupTopologyValue(epoch=epoch, subtopologies=list(parts))


def word_count(*, regroup_to: int = 0) -> StreamsGroupTopologyValue:
    """Reads `words`, regroups them, and counts them."""
    return topology(
        part("0", ["words"], writes=["regrouped"]),
        part("1", reads=[topic("regrouped", regroup_to)], keeps=["counts-changelog"]),
    )
