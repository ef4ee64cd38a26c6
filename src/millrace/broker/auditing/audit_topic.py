"""The topic `__audit`. Each broker writes to a partition that it leads itself, so that it needs nobody else
to tell what happened, and no request of a client ever writes there.

The topic has a partition for each broker, which that broker is the first to lead. A broker that leads none,
because it was away or is new, asks for its own to be given back, or adds one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.commands import CreatePartitions, ElectionKind
from millrace.metadata.image import TopicState
from millrace.metadata.service import Metadata
from millrace.metadata.topic_names import AUDIT_TOPIC
from millrace.replica.partition import NotLeader, Partition
from millrace.replica.partitions import Partitions
from millrace.security.audit.events import Event
from millrace.security.audit.ocsf import Reporter, ocsf_json
from millrace.wire.batch_header import HEADER_SIZE
from millrace.wire.records import build_plain_batch

RECORD_OVERHEAD: Final = 32
"""How many bytes a stored record takes beside its key and value, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTopicPlan:
    """How `__audit` is created."""

    replication_factor: int
    retention_ms: int
    partition_count: int = 1
    """Brokers that find none of their own add one."""

    def configs(self, _replicas: int) -> Mapping[str, str]:
        return {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}


class AuditTopic:
    """Appends events to this broker's partition."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        plan: AuditTopicPlan,
        *,
        clock: Clock,
        node_id: NodeId,
        reporter: Callable[[], Reporter],
    ) -> None:
        self.topic = InternalTopic(AUDIT_TOPIC, metadata, plan)
        self._metadata = metadata
        self._partitions = partitions
        self._plan = plan
        self._clock = clock
        self._node_id = node_id
        self._reporter = reporter

    async def write(self, events: Sequence[Event]) -> None:
        """Return when these events are committed. After a failure, a MillraceError, some may be there: they
        are written again, under the same ids."""
        await self.topic.ensure()
        partition = self._own_partition()
        if partition is None:
            await self._ask_for_partition()
            partition = self._own_partition()
        if partition is None:
            raise NotLeader(TopicPartition(AUDIT_TOPIC, -1), leader_id=-1)
        reporter = self._reporter()
        records = [(event.uid.encode(), ocsf_json(event, reporter)) for event in events]
        for batch in _in_batches(records, partition.log.config.max_message_bytes - HEADER_SIZE):
            await self._append(partition, batch)

    def _own_partition(self) -> Partition | None:
        """A partition that this broker leads: the same one for as long as it does."""
        by_index = self._partitions.by_name.get(AUDIT_TOPIC, {})
        for index in sorted(by_index):
            if by_index[index].is_leader:
                return by_index[index]
        return None

    async def _append(self, partition: Partition, records: Sequence[tuple[bytes, bytes]]) -> None:
        now_ms = self._clock.wall_ms()
        appended = partition.append(memoryview(build_plain_batch(records, now_ms)), now_ms)
        if partition.is_acknowledged(appended):
            return
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def ended(is_there: bool) -> None:
            if not committed.done():
                committed.set_result(is_there)

        partition.waiting_produces.add(appended.last_offset + 1, ended)
        if not await committed:
            raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)

    async def _ask_for_partition(self) -> None:
        """Lead the partition that is this broker's by right; if there is none, add it."""
        topic = self._metadata.image.topics.get(AUDIT_TOPIC)
        if topic is None:
            return
        own = [
            index for index, state in enumerate(topic.partitions) if _first(state.replicas) == self._node_id
        ]
        if own:
            outcomes = await self._metadata.elect(
                [(AUDIT_TOPIC, index) for index in own], ElectionKind.PREFERRED
            )
            failed = [outcome for outcome in outcomes if outcome is not None]
            if len(failed) == len(outcomes):
                raise failed[0]
            return
        wanted = CreatePartitions(
            name=AUDIT_TOPIC, count=len(topic.partitions) + 1, assignments=[self._replicas(topic)]
        )
        # Where two brokers add one at the same time, one of them is told that it is there already.
        (outcome,) = await self._metadata.create_partitions([wanted])
        if isinstance(outcome, MillraceError):
            raise outcome

    def _replicas(self, topic: TopicState) -> list[int]:
        """This broker first, and as many others as there are replicas of the other partitions."""
        count = max((len(state.replicas) for state in topic.partitions), default=1)
        others = [
            int(node_id) for node_id in sorted(self._metadata.image.brokers) if node_id != self._node_id
        ]
        # Not always the same others: each broker begins with those behind it.
        behind = [other for other in others if other > self._node_id]
        return [int(self._node_id), *behind, *others[: len(others) - len(behind)]][:count]


def _first(replicas: Sequence[int]) -> int:
    return replicas[0] if replicas else -1


def _in_batches(records: Sequence[tuple[bytes, bytes]], bytes_max: int) -> list[list[tuple[bytes, bytes]]]:
    batches: list[list[tuple[bytes, bytes]]] = []
    left = 0
    for record in records:
        size = len(record[0]) + len(record[1]) + RECORD_OVERHEAD
        if not batches or size > left:
            batches.append([])
            left = bytes_max
        batches[-1].append(record)
        left -= size
    return batches
