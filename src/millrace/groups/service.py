"""The face of groups to the rest of the broker: where a group lives, its commands, and what there is.

It creates `__consumer_offsets` when the first group is looked for, and tells groups of deleted topics.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.coordinator.runtime import Answer, Outcome, Runtime
from millrace.core.background import Background, Tasks
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.java_hash import java_hash
from millrace.groups.commands import GroupSettings, TopicsDeleted
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.kinds import Group
from millrace.groups.machine import GroupMachine
from millrace.groups.records import GroupRecordCodec
from millrace.metadata.errors import MetadataError, TopicExists
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata, NewTopic
from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopic:
    """How `__consumer_offsets` is created."""

    partition_count: int = 50
    replication_factor: int = 3
    segment_bytes: int = 104_857_600


class Groups:
    """All groups of the cluster that this broker coordinates."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        chance: random.Random,
        settings: GroupSettings,
        offsets_topic: OffsetsTopic,
        consumers: Consumers | None = None,
        codec: GroupRecordCodec | None = None,
    ) -> None:
        self.settings = settings
        self.consumers = consumers
        """Groups of the consumer protocol; None serves classic groups alone."""
        self._metadata = metadata
        self._chance = chance
        self._offsets_topic = offsets_topic
        self._creation: asyncio.Task[None] | None = None
        self._background = Tasks()
        self.runtime = Runtime(
            OFFSETS_TOPIC,
            partitions,
            clock=clock,
            codec=codec or GroupRecordCodec(),
            new_machine=lambda _: GroupMachine(settings, None if consumers is None else consumers.new_rules),
        )
        self._unsubscribe: Callable[[], None] | None = None

    # Life.

    def start(self, background: Background) -> None:
        """Load the groups of this broker's partitions, and follow the metadata, until `stop`."""
        self._background = background
        self.runtime.start(background)
        self._unsubscribe = self._metadata.subscribe(self._image_changed)
        if self.consumers is not None:
            self.consumers.start(self, background)

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self.consumers is not None:
            self.consumers.stop()
        self.runtime.stop()

    # Where groups live.

    def partition_of(self, group_id: str) -> int | None:
        """The partition of `__consumer_offsets` that holds a group; None while there is no such topic."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        return None if topic is None else java_hash(group_id) % len(topic.partitions)

    async def ensure_topic(self) -> None:
        """Return when `__consumer_offsets` is there; raises what kept it from being created."""
        if self._metadata.image.topics.get(OFFSETS_TOPIC) is not None:
            return
        if self._creation is None or self._creation.done():
            self._creation = self._background.start(
                "create-offsets-topic", self._create_topic(), is_awaited=True
            )
        await asyncio.shield(self._creation)

    async def _create_topic(self) -> None:
        wanted = self._offsets_topic
        # Kafka waits until there are as many brokers as replicas are wanted, which on one broker is never.
        replicas = max(1, min(wanted.replication_factor, len(self._metadata.image.brokers)))
        topic = NewTopic(
            name=OFFSETS_TOPIC,
            partition_count=wanted.partition_count,
            replication_factor=replicas,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(wanted.segment_bytes),
            },
        )
        (outcome,) = await self._metadata.create_topics([topic])
        if isinstance(outcome, MetadataError) and not isinstance(outcome, TopicExists):
            raise outcome

    # Commands.

    def submit(self, group_id: str, command: object) -> Outcome | Answer:
        """The outcome of a command (errors as values), or a future for it where something must be stored."""
        index = self.partition_of(group_id)
        if index is None:
            return CoordinatorNotAvailable(f"there is no {OFFSETS_TOPIC} yet")
        return self.runtime.submit(index, command)

    def new_member_id(self, prefix: str) -> str:
        """An id that no member ever had, readable by its beginning."""
        bits = self._chance.getrandbits(128)
        digits = f"{bits & ~(0xF << 76) & ~(0x3 << 62) | 4 << 76 | 2 << 62:032x}"
        return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    # What there is.

    def machines(self) -> Iterator[GroupMachine]:
        """The loaded partitions' groups."""
        for shard in self.runtime.shards.values():
            assert isinstance(shard.machine, GroupMachine), shard.machine
            yield shard.machine

    def machine_of(self, group_id: str) -> GroupMachine | MillraceError:
        """The partition that holds a group, or why it cannot be asked here."""
        index = self.partition_of(group_id)
        if index is None:
            return CoordinatorNotAvailable(f"there is no {OFFSETS_TOPIC} yet")
        shard = self.runtime.shards.get(index)
        if shard is None:
            return self.runtime.absence(index)
        assert isinstance(shard.machine, GroupMachine), shard.machine
        return shard.machine

    def find(self, group_id: str) -> Group | None:
        machine = self.machine_of(group_id)
        return None if isinstance(machine, MillraceError) else machine.groups.get(group_id)

    # The cluster changes.

    def _image_changed(self, old: Image, new: Image) -> None:
        removed = [topic.name for topic in old.topics_by_id.difference(new.topics_by_id).removed.values()]
        if not removed:
            return
        for index in list(self.runtime.shards):
            self.runtime.submit(index, TopicsDeleted(removed))
