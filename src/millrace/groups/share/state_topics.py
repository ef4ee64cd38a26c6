"""Which partitions of a share group have stored state: one record of the group says so, as in Kafka.

The state itself is with the coordinators of `__share_group_state`. A topic is first noted here, then its
state is prepared there, then it is noted as done; deletion goes the same way. So whatever a crash leaves half
done is known, and tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.assignors import Partitions
from millrace.wire.messages.share_group_records import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)

UNNAMED: Final = "<UNKNOWN>"
"""Stands for the name of a topic that nobody knows any more, as in Kafka."""


class NamedPartitions(NamedTuple):
    """Some partitions of a topic."""

    name: str
    partitions: frozenset[int]


NamedTopics = Mapping[TopicId, NamedPartitions]


class StateTopics(NamedTuple):
    """What one record says. It never changes, but is replaced."""

    initializing: NamedTopics
    initialized: NamedTopics
    deleting: Mapping[TopicId, str]

    @staticmethod
    def from_value(value: ShareGroupStatePartitionMetadataValue) -> StateTopics:
        return StateTopics(
            _read(value.initializing_topics),
            _read(value.initialized_topics),
            {TopicId(each.topic_id): each.topic_name for each in value.deleting_topics},
        )

    def record(self, group_id: str) -> Record:
        return Record(
            ShareGroupStatePartitionMetadataKey(group_id=group_id),
            ShareGroupStatePartitionMetadataValue(
                initializing_topics=_written(self.initializing),
                initialized_topics=_written(self.initialized),
                deleting_topics=[
                    TopicInfo(topic_id=topic, topic_name=name)
                    for topic, name in sorted(self.deleting.items())
                ],
            ),
        )

    def assignable(self) -> Partitions:
        return {topic: named.partitions for topic, named in self.initialized.items()}

    def begun(self, topics: NamedTopics) -> StateTopics:
        """The state of these partitions is about to be prepared."""
        return StateTopics(
            _joined(self.initializing, topics),
            self.initialized,
            {topic: name for topic, name in self.deleting.items() if topic not in topics},
        )

    def done(self, partitions: Partitions) -> StateTopics:
        """The state of these partitions is there."""
        names = {**self.initialized, **self.initializing}
        ready = {
            topic: NamedPartitions(names[topic].name if topic in names else UNNAMED, numbers)
            for topic, numbers in partitions.items()
        }
        return self.failed(partitions)._replace(initialized=_joined(self.initialized, ready))

    def failed(self, partitions: Partitions) -> StateTopics:
        """The state of these partitions could not be prepared."""
        left = {
            topic: NamedPartitions(named.name, named.partitions - partitions.get(topic, frozenset()))
            for topic, named in self.initializing.items()
        }
        return self._replace(initializing={topic: named for topic, named in left.items() if named.partitions})

    def leaving(self, topics: Iterable[TopicId]) -> StateTopics:
        """The state of these topics is about to be deleted."""
        gone = dict.fromkeys(topics)
        names = {**self.initializing, **self.initialized}
        return StateTopics(
            {topic: named for topic, named in self.initializing.items() if topic not in gone},
            {topic: named for topic, named in self.initialized.items() if topic not in gone},
            {**self.deleting, **{topic: names[topic].name for topic in gone if topic in names}},
        )

    def without(self, topics: Iterable[TopicId]) -> StateTopics:
        """Nothing is left of these topics."""
        gone = dict.fromkeys(topics)
        left = self.leaving(gone)
        return left._replace(
            deleting={topic: name for topic, name in left.deleting.items() if topic not in gone}
        )


def _joined(first: NamedTopics, second: NamedTopics) -> NamedTopics:
    joined = dict(first)
    for topic, named in second.items():
        before = joined[topic].partitions if topic in joined else frozenset()
        joined[topic] = NamedPartitions(named.name, before | named.partitions)
    return joined


def _read(topics: Iterable[TopicPartitionsInfo]) -> NamedTopics:
    return {
        TopicId(each.topic_id): NamedPartitions(each.topic_name, frozenset(each.partitions))
        for each in topics
    }


def _written(topics: NamedTopics) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic, topic_name=named.name, partitions=sorted(named.partitions))
        for topic, named in sorted(topics.items())
    ]
