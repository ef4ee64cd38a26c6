"""Where a key lives, and how its topic is created: once, whoever asks, and with what the cluster can give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.ids import NodeId
from millrace.metadata.commands import Policy
from millrace.metadata.errors import InvalidTopicName, MetadataError
from millrace.metadata.image import NO_LEADER, TopicState
from millrace.metadata.service import Metadata, NewTopic
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.worlds import CountedIds, broker

NAME = "__share_group_state"


class Plan:
    partition_count = 50
    replication_factor = 3

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {"cleanup.policy": "compact", "min.insync.replicas": str(min(2, replicas))}


@asynccontextmanager
async def cluster(brokers: int = 1, name: str = NAME) -> AsyncIterator[tuple[Metadata, InternalTopic]]:
    async with background() as tasks:
        metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
        await metadata.start(tasks)
        for number in range(1, brokers + 1):
            await metadata.register_broker(broker(number))
        topic = InternalTopic(name, metadata, Plan())
        topic.start(tasks)
        try:
            yield metadata, topic
        finally:
            await metadata.close()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body

    asyncio.run(bounded())


def test_a_key_lives_where_kafka_looks_for_it() -> None:
    async def body() -> None:
        async with cluster() as (metadata, topic):
            assert topic.partition_of("hello") is None
            assert topic.leader_of("hello") == NO_LEADER
            await topic.ensure()
            assert topic.exists
            # As Java counts hashes. The second one's is the smallest integer, which has no absolute value.
            assert topic.partition_of("hello") == 99_162_322 % 50
            assert topic.partition_of("polygenelubricants") == 0
            assert topic.leader_of("hello") == metadata.image.topics[NAME].partitions[22].leader == NodeId(1)

    run(body())


@pytest.mark.parametrize("brokers, replicas, needed", [(1, 1, "1"), (2, 2, "2"), (4, 3, "2")])
def test_it_has_as_many_replicas_as_the_cluster_can_give(brokers: int, replicas: int, needed: str) -> None:
    async def body() -> None:
        async with cluster(brokers) as (metadata, topic):
            await topic.ensure()
            created = metadata.image.topics[NAME]
            assert len(created.partitions) == 50
            assert {len(partition.replicas) for partition in created.partitions} == {replicas}
            assert created.configs["min.insync.replicas"] == needed

    run(body())


def test_all_who_look_wait_for_one_creation_and_may_stop_waiting() -> None:
    async def body() -> None:
        async with cluster() as (metadata, topic):
            asked: list[str] = []
            create_topics = metadata.create_topics

            async def counted(topics: list[NewTopic]) -> list[TopicState | MetadataError]:
                asked.extend(each.name for each in topics)
                return await create_topics(topics)

            metadata.create_topics = counted  # type: ignore[method-assign,assignment]
            async with asyncio.TaskGroup() as waiting:
                impatient = waiting.create_task(topic.ensure())
                waiting.create_task(topic.ensure())
                await asyncio.sleep(0)
                impatient.cancel()
            assert impatient.cancelled()
            assert asked == [NAME]
            assert topic.exists
            await topic.ensure()
            assert asked == [NAME], "what is there is not created again"

    run(body())


def test_one_that_another_broker_has_just_created_is_taken_as_it_is() -> None:
    async def body() -> None:
        async with cluster() as (metadata, topic):
            other = NewTopic(name=NAME, partition_count=7, configs={})
            await asyncio.gather(metadata.create_topics([other]), topic.ensure())
            assert topic.partition_of("hello") == 99_162_322 % 7

    run(body())


def test_whoever_looks_learns_why_it_could_not_be_created_and_the_next_one_tries_again() -> None:
    async def body() -> None:
        async with cluster(name="no/topic") as (_, topic):
            for _ in range(2):
                with pytest.raises(InvalidTopicName):
                    await topic.ensure()

    run(body())
