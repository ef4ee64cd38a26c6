"""Takes delayed messages in: into the partition of `__delayed_messages` that keeps those of their target,
wherever that is led."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.broker.internal_appends import InternalAppends, may_pass
from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.background import StartTask
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.codec import encode_added, store_key
from millrace.queues.delayed.model import DelayedRecord
from millrace.wire.records import build_plain_batch

BATCH_RECORDS_MAX: Final = 64
"""Messages of one batch are due at different times, and each is read by reading its batch."""
BATCH_BYTES_MAX: Final = 256 * 1024
DEADLINE_S: Final = 25.0
"""Less than clients wait for an answer to a produce."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedTopicPlan:
    """How `__delayed_messages` is created."""

    partition_count: int = 12
    replication_factor: int = 3
    min_insync_replicas: int = 2
    segment_bytes: int = 104_857_600

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {
            # What is not needed any more is deleted by whoever delivers, and nothing else is.
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "compression.type": "producer",
            "min.insync.replicas": str(min(self.min_insync_replicas, replicas)),
            "segment.bytes": str(self.segment_bytes),
            # Every message that some topic takes is to fit, with its envelope.
            "max.message.bytes": str(self.segment_bytes),
            "unclean.leader.election.enable": "false",
        }


class DelayedMessages:
    """The store as the produce path sees it."""

    def __init__(
        self, topic: InternalTopic, appends: InternalAppends, *, clock: Clock, start_task: StartTask
    ) -> None:
        self._topic = topic
        self._appends = appends
        self._clock = clock
        self._start_task = start_task

    def add(self, records: Sequence[DelayedRecord]) -> asyncio.Future[MillraceError | None]:
        """Store messages, and cancel those that they cancel or replace. The outcome comes when all of it is
        committed; an error says that some may not be."""
        outcome: asyncio.Future[MillraceError | None] = asyncio.get_running_loop().create_future()
        self._start_task(self._add(list(records), outcome))
        return outcome

    async def _add(
        self, records: Sequence[DelayedRecord], outcome: asyncio.Future[MillraceError | None]
    ) -> None:
        error: MillraceError | None = MillraceError("the broker stops")
        try:
            error = await self._store(records)
        except MillraceError as failure:
            error = failure
        finally:
            if not outcome.done():
                outcome.set_result(error)

    async def _store(self, records: Sequence[DelayedRecord]) -> MillraceError | None:
        await self._topic.ensure()
        by_partition: dict[int, list[DelayedRecord]] = {}
        for record in records:
            partition = self._topic.partition_of(store_key(record.topic_id, record.partition))
            assert partition is not None, DELAYED_TOPIC
            by_partition.setdefault(partition, []).append(record)
        for partition, its_records in by_partition.items():
            for batch in in_batches(its_records):
                error = await self._append(partition, batch)
                if error is not None:
                    return error
        return None

    async def _append(self, partition: int, records: Sequence[DelayedRecord]) -> MillraceError | None:
        """Append until it is committed. What is tried again says so: the first attempt may have succeeded."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + DEADLINE_S
        pause_s, is_repeated = PAUSE_S, False
        while True:
            encoded = [encode_added(record, is_repeated=is_repeated) for record in records]
            batch = bytes(build_plain_batch(encoded, self._clock.wall_ms()))
            outcome = await self._appends.append(DELAYED_TOPIC, partition, batch, deadline_s=0.0)
            if not isinstance(outcome, MillraceError):
                return None
            if not may_pass(outcome) or loop.time() + pause_s >= ends:
                return outcome
            is_repeated = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def in_batches(records: Sequence[DelayedRecord]) -> list[list[DelayedRecord]]:
    """Few enough in each to be read for the sake of one."""
    batches: list[list[DelayedRecord]] = []
    size = 0
    for record in records:
        its_size = len(record.key or b"") + len(record.value or b"")
        if not batches or len(batches[-1]) >= BATCH_RECORDS_MAX or size + its_size > BATCH_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(record)
        size += its_size
    return batches
