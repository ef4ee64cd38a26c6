"""The partitions of this broker as the metadata wants them: logs opened, leaders in office, settings
applied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millrace.core.ids import NodeId, TopicId, TopicPartition
from millrace.log.config import LogConfig
from millrace.log.log_directory import LogDirectory
from millrace.metadata.config_definitions import TopicSettings
from millrace.metadata.image import TopicState
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions


class LocalReplicas:
    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        *,
        node_id: NodeId,
        flush_wanted: Callable[[Partition], None],
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._node_id = node_id
        self._flush_wanted = flush_wanted
        self.leadership_changed: Callable[[Partition], None] = _nobody_listens
        """Set by the assembly: called for each partition that came, went, or has a new leader epoch."""

    async def start(self, topic: TopicState, partitions: Sequence[int], settings: TopicSettings) -> None:
        missing = [number for number in partitions if self._partitions.find(topic.name, number) is None]
        unopened = [
            number for number in missing if self._directory.get(TopicPartition(topic.name, number)) is None
        ]
        # Creating many directories takes a while: off the loop, and in pieces so that others get their turn.
        loop = asyncio.get_running_loop()
        for first in range(0, len(unopened), _LOGS_PER_STEP):
            step = unopened[first : first + _LOGS_PER_STEP]
            await loop.run_in_executor(None, self._create_logs, topic, step, settings.log)
        for number in missing:
            self._open(topic, number, settings)
        self.update(topic, partitions)

    def update(self, topic: TopicState, partitions: Sequence[int]) -> None:
        for number in partitions:
            partition = self._partitions.find(topic.name, number)
            state = topic.partitions[number]
            if partition is not None and state.leader == self._node_id:
                partition.require_replicas(in_sync_count=len(state.isr))
                partition.lead(self._node_id, state.leader_epoch)
                self.leadership_changed(partition)

    def configure(self, topic: TopicState, settings: TopicSettings) -> None:
        for partition in self._partitions.by_name.get(topic.name, {}).values():
            partition.log.set_config(settings.log)
            partition.require_replicas(min_insync=settings.min_insync_replicas)

    async def release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        for number in partitions:
            await self._delete_log(TopicPartition(topic.name, number))

    async def delete(self, name: str, topic_id: TopicId) -> None:
        for topic_partition, log in list(self._directory.logs.items()):
            if topic_partition.topic == name and log.topic_id == topic_id:
                await self._delete_log(topic_partition)

    def _create_logs(self, topic: TopicState, partitions: Sequence[int], config: LogConfig) -> None:
        for number in partitions:
            self._directory.create(TopicPartition(topic.name, number), topic.topic_id, config)

    def _open(self, topic: TopicState, number: int, settings: TopicSettings) -> None:
        topic_partition = TopicPartition(topic.name, number)
        log = self._directory.create(topic_partition, topic.topic_id, settings.log)
        stats = self._partitions.stats_of(topic.name)
        partition = Partition(topic_partition, topic.topic_id, log, stats, self._flush_wanted)
        partition.require_replicas(min_insync=settings.min_insync_replicas)
        self._partitions.add(partition)

    async def _delete_log(self, topic_partition: TopicPartition) -> None:
        partition = self._partitions.remove(topic_partition)
        if partition is not None:
            self.leadership_changed(partition)
        await self._directory.delete(topic_partition)


def _nobody_listens(_partition: Partition) -> None:
    """Until the coordinators are there."""


_LOGS_PER_STEP = 50
