"""The topology of a Kafka Streams application: its subtopologies and the topics that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from millrace.core.override import override
from millrace.groups.errors import InvalidTopology
from millrace.wire.messages.streams_group_records import (
    StreamsGroupTopologyValue,
    Subtopology,
    TopicInfo,
)


@dataclass(frozen=True)
class Topology:
    """What the first member has told, as it is stored. Other members must bring the same."""

    value: StreamsGroupTopologyValue

    @property
    def epoch(self) -> int:
        return self.value.epoch

    @cached_property
    def subtopologies(self) -> Mapping[str, Subtopology]:
        """The subtopologies by id, sorted. Raises InvalidTopology if two have the same id."""
        found = {each.subtopology_id: each for each in self.value.subtopologies}
        if len(found) < len(self.value.subtopologies):
            raise InvalidTopology("two subtopologies have the same id")
        return {name: found[name] for name in sorted(found)}

    @cached_property
    def subtopology_of(self) -> Mapping[str, str]:
        """The subtopology that reads a topic, by the topic's name."""
        return {
            topic: name
            for name, subtopology in self.subtopologies.items()
            for topic in read_topics(subtopology)
        }

    @cached_property
    def required_topics(self) -> tuple[str, ...]:
        """Every topic that must be there before the application can work."""
        names: dict[str, None] = {}
        for subtopology in self.subtopologies.values():
            names.update(dict.fromkeys(read_topics(subtopology)))
            names.update((topic.name, None) for topic in subtopology.state_changelog_topics)
        return tuple(sorted(names))

    @override
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Topology)
            and self.epoch == other.epoch
            and self.subtopologies == other.subtopologies
        )

    @override
    def __hash__(self) -> int:
        return hash(self.epoch)


def read_topics(subtopology: Subtopology) -> list[str]:
    """The topics whose partitions become the tasks of a subtopology."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def internal_topics(subtopology: Subtopology) -> Iterator[TopicInfo]:
    yield from subtopology.repartition_source_topics
    yield from subtopology.state_changelog_topics


def named_topics(value: StreamsGroupTopologyValue) -> list[str]:
    """Every topic that a topology names, each once."""
    names: dict[str, None] = {}
    for subtopology in value.subtopologies:
        names.update(dict.fromkeys(read_topics(subtopology)))
        names.update(dict.fromkeys(subtopology.repartition_sink_topics))
        names.update((topic.name, None) for topic in subtopology.state_changelog_topics)
    return list(names)
