"""The partitions that this broker holds, found by topic name or topic id."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.world import World
from millrace.replica.partition import Partition, TopicStats


class Partitions:
    """All partitions of this broker, those that it leads and those that it follows."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[TopicId, dict[int, Partition]] = {}
        self.stats: dict[str, TopicStats] = {}
        self.world = World()
        """Is told of partitions that come and go."""

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self.by_name.values())

    def find(self, topic: str, index: int) -> Partition | None:
        partitions = self.by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def stats_of(self, topic: str) -> TopicStats:
        """The topic's counters, made on first use; they go with its last partition."""
        stats = self.stats.get(topic)
        if stats is None:
            stats = self.stats[topic] = TopicStats()
        return stats

    def add(self, partition: Partition) -> None:
        by_index = self.by_name.setdefault(partition.topic, {})
        assert partition.index not in by_index, partition.topic_partition
        by_index[partition.index] = partition
        self.world.changed()
        self.by_id[partition.topic_id] = by_index

    def remove(self, topic_partition: TopicPartition) -> Partition | None:
        """Take a partition out; requests no longer find it, and those that wait for it are answered."""
        by_index = self.by_name.get(topic_partition.topic)
        partition = None if by_index is None else by_index.pop(topic_partition.partition, None)
        if by_index is None or partition is None:
            return None
        self.world.changed()
        if not by_index:
            del self.by_name[topic_partition.topic]
            del self.by_id[partition.topic_id]
            self.stats.pop(topic_partition.topic, None)
        partition.retire()
        return partition
