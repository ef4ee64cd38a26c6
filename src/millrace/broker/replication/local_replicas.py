"""Makes the partitions of this broker what the metadata wants: opens logs, lets leaders lead and followers
follow, applies settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.core.ids import NodeId, TopicId, TopicPartition
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.errors import LogDirectoryOffline, StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.metadata.config_definitions import TopicSettings
from millrace.metadata.image import NO_LEADER, PartitionState, TopicState
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions


class Roles(Protocol):
    """Carries out the roles of partitions with several replicas."""

    def lead(self, partition: Partition, state: PartitionState) -> None: ...
    def follow(self, partition: Partition, leader_id: NodeId, state: PartitionState) -> None: ...
    def forget(self, partition: Partition) -> None: ...
    def throttles_changed(self) -> None: ...
    def state_of(self, partition: Partition) -> PartitionState | None:
        """What the metadata says at this moment, which may not be carried out yet."""


class LocalReplicas:
    """The reconciler's hands: does what it wants of this broker's partitions."""

    def __init__(
        self,
        directories: LogDirectories,
        partitions: Partitions,
        *,
        node_id: NodeId,
        flush_wanted: Callable[[Partition], None],
        roles: Roles | None = None,
    ) -> None:
        """`roles` is None where there is only one broker, which leads all that it has. A broker of a cluster
        leads nothing until `fence` says that it has its place: others may lead what it led before."""
        self._directories = directories
        self._partitions = partitions
        self._node_id = node_id
        self._flush_wanted = flush_wanted
        self._roles = roles
        self._listeners: list[Callable[[Partition], None]] = []
        self._is_fenced = roles is not None
        directories.tell_of_moves(self._moved)

    def subscribe(self, listener: Callable[[Partition], None]) -> None:
        """Tell of each partition that came, went, or may have a new leader epoch, from now on."""
        self._listeners.append(listener)

    async def start(self, topic: TopicState, partitions: Sequence[int], settings: TopicSettings) -> None:
        directories = self._directories
        missing = [
            number
            for number in partitions
            if self._partitions.find(topic.name, number) is None
            # The partition has a log, on a disk that cannot be used: an empty log must not take its place.
            and (topic.topic_id, number) not in directories.unreachable
        ]
        unopened = [
            number for number in missing if directories.get(TopicPartition(topic.name, number)) is None
        ]
        if unopened and directories.offline_reason is not None:
            directories.cannot_place(topic.topic_id, unopened)
            missing = [number for number in missing if number not in unopened]
            unopened = []
        # Creating many directories takes a while: it is done off the loop, and in pieces so that others get
        # their turn.
        for first in range(0, len(unopened), _LOGS_PER_STEP):
            step = [TopicPartition(topic.name, number) for number in unopened[first : first + _LOGS_PER_STEP]]
            await directories.create_missing(step, topic.topic_id, settings.log)
        failure: LogDirectoryOffline | None = None
        for number in missing:
            try:
                self._open(topic, number, settings)
            except LogDirectoryOffline as error:
                # This concerns only some partitions: those on other disks are served.
                failure = error
        self.update(topic, partitions)
        if failure is not None:
            raise failure

    def update(self, topic: TopicState, partitions: Sequence[int]) -> None:
        for number in partitions:
            partition = self._partitions.find(topic.name, number)
            if partition is not None and partition.topic_id == topic.topic_id:
                self._take_role(partition, topic.partitions[number])

    def fence(self, is_fenced: bool) -> None:
        """Stop leading, since others may lead by now; or go on with what the metadata says now."""
        self._is_fenced = is_fenced
        for partition in list(self._partitions):
            state = None if self._roles is None else self._roles.state_of(partition)
            if state is not None:
                self._take_role(partition, state)
            elif is_fenced:
                partition.follow(NO_LEADER, partition.leader_epoch)
                self._tell(partition)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        """Lead or follow as the state says. What has not changed stays; a state of an earlier term is
        ignored."""
        roles = self._roles
        if state.leader_epoch < partition.leader_epoch:
            return
        leads_here = state.leader == self._node_id and not self._is_fenced
        # A broker that is fenced cannot say who leads, and must not send anybody to itself.
        leader_id = NO_LEADER if state.leader == self._node_id else state.leader
        if roles is not None and partition.log.home.offline_reason is not None and not leads_here:
            # Nothing can be written here, so there is nothing to fetch.
            roles.forget(partition)
            partition.follow(leader_id, state.leader_epoch)
        elif leads_here and (len(state.replicas) == 1 or roles is None):
            if roles is not None:
                roles.forget(partition)
            partition.lead(self._node_id, state.leader_epoch)
        elif roles is None:
            partition.follow(NO_LEADER, state.leader_epoch)
        elif leads_here:
            roles.lead(partition, state)
        else:
            roles.follow(partition, leader_id, state)
        for listener in self._listeners:
            listener(partition)

    def _tell(self, partition: Partition) -> None:
        for listener in self._listeners:
            listener(partition)

    def configure(self, topic: TopicState, settings: TopicSettings) -> None:
        for partition in self._partitions.by_name.get(topic.name, {}).values():
            partition.log.set_config(settings.log)
            partition.require_replicas(min_insync=settings.min_insync_replicas)
            self._throttle(partition, settings)
        if self._roles is not None:
            self._roles.throttles_changed()

    async def release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        for number in partitions:
            self._directories.forget_unreachable(topic.topic_id, number)
        await self._delete_logs([TopicPartition(topic.name, number) for number in partitions])

    async def delete(self, name: str, topic_id: TopicId) -> None:
        await self._delete_logs(
            [
                topic_partition
                for topic_partition, log in self._directories.logs.items()
                if topic_partition.topic == name and log.topic_id == topic_id
            ]
        )
        if self._directories.hides_logs:
            # A log of this topic may lie in there. The proof of the deletion stays until the deletion is
            # confirmed: without it the log would be taken for a topic again.
            path, reason = next(iter(self._directories.offline.items()))
            raise LogDirectoryOffline(path, reason)

    def _open(self, topic: TopicState, number: int, settings: TopicSettings) -> None:
        topic_partition = TopicPartition(topic.name, number)
        log = self._directories.create(topic_partition, topic.topic_id, settings.log)
        stats = self._partitions.stats_of(topic.name)
        partition = Partition(topic_partition, topic.topic_id, log, stats, self._flush_wanted)
        partition.require_replicas(min_insync=settings.min_insync_replicas)
        self._throttle(partition, settings)
        self._partitions.add(partition)

    def _throttle(self, partition: Partition, settings: TopicSettings) -> None:
        index, node_id = partition.index, self._node_id
        partition.is_throttled_as_leader = settings.throttled_leaders.includes(index, node_id)
        partition.is_throttled_as_follower = settings.throttled_followers.includes(index, node_id)

    async def _delete_logs(self, partitions: Sequence[TopicPartition]) -> None:
        """Delete logs, and return when they are gone for good. A log that cannot be deleted now does not hold
        up the others."""
        failure: StorageError | None = None
        for topic_partition in partitions:
            partition = self._partitions.remove(topic_partition)
            if partition is not None:
                if self._roles is not None:
                    self._roles.forget(partition)
                self._tell(partition)
            try:
                self._directories.delete(topic_partition)
            except StorageError as error:
                failure = failure or error
        await self._directories.forget_deleted()
        if failure is not None:
            raise failure

    def _moved(self, original: PartitionLog, copy: PartitionLog) -> None:
        """From this moment on a log lives in another data directory."""
        partition = self._partitions.find(*original.topic_partition)
        if partition is not None and partition.log is original:
            partition.replace_log(copy)


_LOGS_PER_STEP = 50
