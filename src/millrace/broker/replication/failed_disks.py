"""Reports the replicas on failed disks to the rest of the cluster, so that others lead and nobody waits for
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from millrace.core.ids import NodeId, TopicId, TopicPartition
from millrace.core.override import override
from millrace.log.directories.log_directories import LogDirectories
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import Image
from millrace.metadata.leadership import Replica
from millrace.metadata.service import Metadata
from millrace.metadata.session import DiskState

log = logging.getLogger(__name__)

RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0


class FailedDisks(DiskState):
    """Which replicas of this broker lie on disks that failed. Call `compare` when the logs are loaded, then
    `run`; constructing it starts nothing."""

    def __init__(
        self, directories: LogDirectories, metadata: Metadata, *, node_id: NodeId, incarnation: str
    ) -> None:
        self._directories = directories
        self._metadata = metadata
        self._node_id = node_id
        self._incarnation = incarnation
        self._lost: dict[Replica, None] = {}
        self._changed = asyncio.Event()
        self._reported: Mapping[TopicId, Sequence[int]] | None = None
        directories.tell_of_offline(self._changed.set)

    def compare(self, image: Image) -> None:
        """See which replicas of this broker have no log, at the start, when all logs are loaded that can
        be."""
        absent = self._directories.expect(
            (TopicPartition(topic.name, number), topic.topic_id)
            for topic in image.topics.values()
            for number, state in enumerate(topic.partitions)
            if self._node_id in state.replicas
        )
        if self._directories.unreachable:
            log.error(
                "replicas are offline: their data directory cannot be used",
                extra={"replicas": len(self._directories.unreachable)},
            )
        elif self._directories.has_lost:
            self._lost = dict.fromkeys(absent)

    @override
    def offline_replicas(self) -> Mapping[TopicId, Sequence[int]]:
        found: dict[TopicId, list[int]] = {}
        for topic_id, number in self._directories.unreachable:
            found.setdefault(topic_id, []).append(number)
        for directory in self._directories.all:
            if directory.offline_reason is not None:
                for topic_partition, held in directory.logs.items():
                    found.setdefault(held.topic_id, []).append(topic_partition.partition)
        return found

    @override
    def lost_replicas(self) -> Collection[Replica]:
        return self._lost

    async def run(self) -> None:
        """Report disks that fail, until cancelled. The registration reported those that had failed before."""
        if self._reported is None:
            self._reported = self.offline_replicas()
        while True:
            delay_s = RETRY_S
            while not await self._report():
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
            await self._changed.wait()
            self._changed.clear()

    async def _report(self) -> bool:
        replicas = self.offline_replicas()
        if replicas == self._reported:
            return True
        try:
            await self._metadata.report_offline(self._node_id, self._incarnation, replicas)
        except MetadataError as error:
            # Most likely this broker is not registered now: then the next registration reports them.
            log.warning("replicas are offline, which cannot be reported yet: %s", error)
            return False
        self._reported = replicas
        count = sum(len(numbers) for numbers in replicas.values())
        log.warning("reported replicas in data directories that have failed", extra={"replicas": count})
        return True
