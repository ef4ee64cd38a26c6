"""Fetches damaged batches again from brokers that have them whole, and puts them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.broker.replication.peers import Peers
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.log.repair.mending import damage_of, mend
from millrace.log.segments.quarantine import DamagedRange
from millrace.metadata.image import Image, PartitionState
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
CALM_INTERVAL_S: Final = 60.0
"""How often the mender looks while it knows of no damage: whoever finds some says so."""
FETCH_VERSION: Final = 13
ANY_RACK: Final = "mending"
"""Followers serve readers that name a rack, whatever its name."""
SLACK_BYTES: Final = 1_048_576


class Mender:
    """Mends damaged ranges one after the other, for as long as the broker runs."""

    def __init__(
        self,
        image: Callable[[], Image],
        partitions: Partitions,
        peers: Peers,
        *,
        node_id: NodeId,
    ) -> None:
        self._image = image
        self._partitions = partitions
        self._peers = peers
        self._node_id = node_id
        self.mended_count = 0
        self._found = asyncio.Event()

    def damage_found(self) -> None:
        """Something went into quarantine just now."""
        self._found.set()

    async def run(self) -> None:
        while True:
            self._found.clear()
            damaged = [partition for partition in self._partitions if damage_of(partition.log)]
            for partition in damaged:
                await self.mend(partition)
            try:
                async with asyncio.timeout(INTERVAL_S if damaged else CALM_INTERVAL_S):
                    await self._found.wait()
            except TimeoutError:
                continue

    async def mend(self, partition: Partition) -> None:
        """Put back what can be put back of one partition."""
        damage = damage_of(partition.log)
        state = self._image().partition(partition.topic, partition.index) if damage else None
        if state is None:
            return
        for _, damaged in damage:
            # A long range comes back in pieces, from its beginning on.
            while await self._mend_some(partition, state, damaged.next_offset):
                self.mended_count += 1

    async def _mend_some(self, partition: Partition, state: PartitionState, next_offset: int) -> bool:
        """Put back what one fetch brings of the range that ends there."""
        for segment, damaged in damage_of(partition.log):
            if damaged.next_offset != next_offset:
                continue
            for node_id in self._healthy(state):
                try:
                    records = await self._fetch(node_id, partition, damaged)
                    if records and await mend(partition.log, segment, damaged, memoryview(records)):
                        return True
                except MillraceError as error:
                    log.info("%s: no copy of damaged records: %s", partition.topic_partition, error)
        return False

    def _healthy(self, state: PartitionState) -> list[NodeId]:
        """Other replicas in sync, the leader first."""
        others = [node_id for node_id in state.isr if node_id not in (self._node_id, state.leader)]
        return others if state.leader in (self._node_id, -1) else [state.leader, *others]

    async def _fetch(self, node_id: NodeId, partition: Partition, damaged: DamagedRange) -> bytes | None:
        size = damaged.size_bytes + SLACK_BYTES
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=size,
            session_epoch=-1,
            rack_id=ANY_RACK,
            topics=[
                FetchTopic(
                    topic_id=partition.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition.index,
                            current_leader_epoch=-1,
                            # Records below the log's start may be gone everywhere.
                            fetch_offset=max(damaged.first_offset, partition.log.log_start_offset),
                            partition_max_bytes=size,
                        )
                    ],
                )
            ],
        )
        response = await self._peers.call(node_id, ApiKey.FETCH, FETCH_VERSION, request)
        for topic in response.responses:
            for found in topic.partitions:
                if found.error_code == 0 and found.records:
                    return bytes(found.records)
        return None
