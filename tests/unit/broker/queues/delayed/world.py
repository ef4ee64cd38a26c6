"""A broker with a store of delayed messages whose time the test moves, and whose process it can kill."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from millrace.broker.internal_appends import InternalAppends
from millrace.broker.queues.delayed.delivery import DeliveryParts
from millrace.broker.queues.delayed.service import Keeper
from millrace.broker.queues.delayed.store import DelayedMessages, DelayedTopicPlan
from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.log.disk.volume import DiskVolume
from millrace.log.partition.appending import Appended
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.lateness import DelayedFigures
from millrace.queues.delayed.model import DelayedRecord
from millrace.replica.partition import Partition
from millrace.wire.records import Record, read_records, split_batches
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, Broker

TOPIC = "reminders"


class MovedClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class Killed(Exception):
    """The process ends here."""


class MortalAppends(InternalAppends):
    """Appends during which the process may be killed: before or after the append was made."""

    kill_before: Callable[[], bool] = staticmethod(lambda: False)
    kill_after: Callable[[], bool] = staticmethod(lambda: False)
    refuses: MillraceError | None = None

    @override
    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        topic_id: TopicId | None = None,
        deadline_s: float = 30.0,
    ) -> Appended | MillraceError:
        if topic != DELAYED_TOPIC:
            if self.kill_before():
                raise Killed
            if self.refuses is not None:
                return self.refuses
        outcome = await super().append(topic, partition, batch, topic_id=topic_id, deadline_s=deadline_s)
        if topic != DELAYED_TOPIC and self.kill_after():
            raise Killed
        return outcome


class World:
    """One partition of the store, and a topic with two partitions that messages are for."""

    def __init__(self, directory: Path, *, segment_bytes: int = 1_048_576) -> None:
        self.clock = MovedClock()
        self.broker = Broker(directory / "data")
        self.broker.start()
        broker = self.broker
        self.topic = broker.create_topic(TOPIC, 2)
        self.appends = MortalAppends(
            broker.metadata, broker.services.partitions, clock=self.clock, node_id=NODE_ID
        )
        self.background = Background(random.Random(1))
        plan = DelayedTopicPlan(partition_count=1, segment_bytes=segment_bytes)
        self.store = DelayedMessages(
            InternalTopic(DELAYED_TOPIC, broker.metadata, plan),
            self.appends,
            clock=self.clock,
            start_task=self.background.starter("store"),
        )
        self.rate_max = 20_000
        self.parts = DeliveryParts(
            metadata=broker.metadata,
            appends=self.appends,
            clock=self.clock,
            next_producer_id=broker.services.producer_ids.next,
            figures=DelayedFigures(),
            rate_max=lambda: self.rate_max,
        )
        self.volume = DiskVolume()
        self.next_offset = 0

    def close(self) -> None:
        self.broker.run(self.background.end())
        self.broker.stop()

    # In.

    def message(self, due_ms: int, *, partition: int = 0, **more: object) -> DelayedRecord:
        offset = self.next_offset
        self.next_offset += 1
        record = DelayedRecord(
            TOPIC, self.topic.topic_id, partition, offset, due_ms, NOW_MS, b"%d" % offset, b"v", ()
        )
        return record._replace(**more)  # type: ignore[arg-type]

    def add(self, *records: DelayedRecord) -> MillraceError | None:
        async def adding() -> MillraceError | None:
            return await self.store.add(records)

        return self.broker.run(adding())

    # Out.

    @property
    def partition(self) -> Partition:
        found = self.broker.services.partitions.find(DELAYED_TOPIC, 0)
        assert found is not None
        return found

    def keeper(self) -> Keeper:
        """As after a start of the process: it knows nothing but what is on disk."""
        return Keeper(self.partition, self.volume, self.parts, self.background)

    def step(self, keeper: Keeper, times: int = 1) -> None:
        async def steps() -> None:
            for _ in range(times):
                await keeper.step()
                for _ in range(3):
                    await asyncio.sleep(0)

        self.broker.run(steps())

    def delivered(self, partition: int = 0) -> list[Record]:
        found = self.broker.services.partitions.find(TOPIC, partition)
        assert found is not None
        log = found.log
        records: list[Record] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, 1_000_000, log.log_end_offset, True).read()
            for batch in split_batches(memoryview(data)):
                records += read_records(batch)
            offset = records[-1].offset + 1
        return records

    def keys(self, partition: int = 0) -> list[int]:
        return [int(record.key or b"-1") for record in self.delivered(partition)]

    def kill_at(self, moments: Sequence[int], *, after: bool) -> None:
        """Kill the process at these of the appends to come."""
        left = list(moments)
        count = iter(range(10**9))

        def killed() -> bool:
            return next(count) in left

        if after:
            self.appends.kill_after = killed
        else:
            self.appends.kill_before = killed
