"""One internal topic as the whole cluster sees it: which partition holds a key, who leads that partition, and
how the topic comes into being.

A key is text: a group id, a transactional id, for share groups `group:topicId:partition`. All brokers and all
clients must find the same partition for it, so the hash is Kafka's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from millrace.core.background import Background, Tasks
from millrace.core.ids import NodeId
from millrace.core.java_hash import java_hash
from millrace.metadata.errors import MetadataError, TopicExists
from millrace.metadata.image import NO_LEADER, Image
from millrace.metadata.service import Metadata, NewTopic


class TopicPlan(Protocol):
    """How an internal topic is created; its owner decides, from the broker's settings."""

    @property
    def partition_count(self) -> int: ...

    @property
    def replication_factor(self) -> int:
        """The most replicas to ask for: a smaller cluster gets as many as it has brokers."""

    def configs(self, replicas: int) -> Mapping[str, str]:
        """The topic's own settings, for the number of replicas that it really gets."""


class InternalTopic:
    """Finds the partition of a key, and creates the topic when somebody first looks for one."""

    def __init__(self, name: str, metadata: Metadata, plan: TopicPlan) -> None:
        self.name = name
        self._metadata = metadata
        self._plan = plan
        self._seen: Image | None = None
        self._partition_count = 0
        """How many partitions the topic has in the image that was seen last; 0 while there is no topic."""
        self._creation: asyncio.Task[None] | None = None
        self._background = Tasks()

    def start(self, background: Background) -> None:
        """`background` holds the creation of the topic from now on."""
        self._background = background

    @property
    def exists(self) -> bool:
        return self._metadata.image.topics.get(self.name) is not None

    def partition_of(self, key: str) -> int | None:
        """The partition that holds a key; None while there is no such topic."""
        image = self._metadata.image
        if image is not self._seen:
            topic = image.topics.get(self.name)
            self._seen, self._partition_count = image, 0 if topic is None else len(topic.partitions)
        # Every heartbeat and every commit asks, and hardly any of them finds another image.
        return java_hash(key) % self._partition_count if self._partition_count else None

    def leader_of(self, key: str) -> NodeId:
        """The broker that coordinates a key; NO_LEADER while nobody does."""
        topic = self._metadata.image.topics.get(self.name)
        if topic is None:
            return NO_LEADER
        return topic.partitions[java_hash(key) % len(topic.partitions)].leader

    async def ensure(self) -> None:
        """Return when the topic is there; raises what kept it from being created."""
        if self.exists:
            return
        if self._creation is None or self._creation.done():
            self._creation = self._background.start(f"create-{self.name}", self._create(), is_awaited=True)
        # All callers meanwhile wait for the same creation, and each of them may stop waiting.
        await asyncio.shield(self._creation)

    async def _create(self) -> None:
        # Kafka waits until there are as many brokers as replicas are wanted, which on one broker is never.
        replicas = max(1, min(self._plan.replication_factor, len(self._metadata.image.brokers)))
        topic = NewTopic(
            name=self.name,
            partition_count=self._plan.partition_count,
            replication_factor=replicas,
            configs=dict(self._plan.configs(replicas)),
        )
        (outcome,) = await self._metadata.create_topics([topic])
        if isinstance(outcome, MetadataError) and not isinstance(outcome, TopicExists):
            raise outcome
