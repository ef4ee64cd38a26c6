"""What creations and deletions leave when they are cut short goes away, and none that goes on is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from millrace.metadata import records
from millrace.metadata.commands import CreatePartitions
from millrace.metadata.errors import Conflict, MetadataError, StoreUnavailable
from millrace.metadata.image import TopicState
from millrace.metadata.leftovers import find_leftovers, steps_to_clear
from millrace.metadata.service import NewTopic
from millrace.metadata.store import Compare, Put
from millrace.sim.store import MemoryStore
from tests.unit.metadata.brokers import REBALANCE_MS, Cluster, cluster_of
from tests.unit.metadata.virtual_time import run_virtually

LOOKS_S = REBALANCE_MS / 1000
"""How often the controller looks."""
COUNT = 50


class CutStore(MemoryStore):
    """Takes some more transactions, and then waits or fails before it takes the next."""

    def __init__(self) -> None:
        super().__init__(operations_max=16)
        self.fails_after: int | None = None
        self.waits_after: int | None = None
        self.go_on = asyncio.Event()

    @override
    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        touched = [put.key for put in puts] + list(deletes)
        if any(key.startswith((records.PARTITIONS, records.TOPICS)) for key in touched):
            if self.fails_after is not None:
                if self.fails_after == 0:
                    self.fails_after = None
                    raise StoreUnavailable("the broker is gone")
                self.fails_after -= 1
            if self.waits_after is not None:
                if self.waits_after == 0:
                    self.waits_after = None
                    await self.go_on.wait()
                else:
                    self.waits_after -= 1
        return await super().commit(compares=compares, puts=puts, deletes=deletes)

    def unfinished(self) -> list[str]:
        """The keys that no topic counts."""
        entries = self.peek().entries
        counts = {}
        for key, entry in entries.items():
            if key.startswith(records.TOPICS):
                topic_id, count, _ = records.decode_topic(entry.value)
                counts[topic_id] = count
        return [
            key
            for key in entries
            if key.startswith(records.CREATIONS)
            or (
                key.startswith(records.PARTITIONS)
                and records.partition_of_key(key)[1] >= counts.get(records.partition_of_key(key)[0], 0)
            )
        ]


def large(count: int = COUNT) -> NewTopic:
    return NewTopic(name="large", partition_count=count, replication_factor=2, configs={})


async def create(cluster: Cluster, count: int = COUNT) -> TopicState | MetadataError:
    (outcome,) = await cluster.any.metadata.create_topics([large(count)])
    return outcome


async def grow(cluster: Cluster, count: int) -> TopicState | MetadataError:
    (outcome,) = await cluster.any.metadata.create_partitions([CreatePartitions(name="large", count=count)])
    return outcome


@pytest.mark.parametrize("transactions", [1, 2, 4])
def test_partitions_of_a_creation_that_was_cut_short_are_removed(transactions: int) -> None:
    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            store.fails_after = transactions
            with pytest.raises(StoreUnavailable):
                await create(cluster)
            assert store.unfinished()
            await asyncio.sleep(3 * LOOKS_S)
            assert store.unfinished() == []
            assert isinstance(await create(cluster), TopicState)
            assert len(cluster.any.metadata.image.topics["large"].partitions) == COUNT
            assert store.unfinished() == []

    run_virtually(body())


def test_partitions_that_a_topic_never_got_are_removed_and_its_own_stay() -> None:
    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            before = await create(cluster, 5)
            store.fails_after = 2
            with pytest.raises(StoreUnavailable):
                await grow(cluster, COUNT)
            await asyncio.sleep(3 * LOOKS_S)
            assert store.unfinished() == []
            assert cluster.any.metadata.image.topics["large"] == before
            grown = await grow(cluster, COUNT)
            assert isinstance(grown, TopicState)
            assert len(grown.partitions) == COUNT

    run_virtually(body())


def test_partitions_of_a_deletion_that_was_cut_short_are_removed() -> None:
    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            await create(cluster)
            store.fails_after = 2
            with pytest.raises(StoreUnavailable):
                await cluster.any.metadata.delete_topics(["large"])
            assert len(store.unfinished()) == COUNT - 16
            await asyncio.sleep(3 * LOOKS_S)
            assert store.unfinished() == []
            assert not cluster.any.metadata.image.topics

    run_virtually(body())


@pytest.mark.parametrize("is_growing", [False, True])
@pytest.mark.parametrize("transactions", [1, 2, 3, 4])
def test_a_creation_that_was_given_up_meanwhile_begins_anew_and_is_whole(
    transactions: int, is_growing: bool
) -> None:
    """Its broker stood still in the middle of it, for longer than anybody waits."""

    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            if is_growing:
                await create(cluster, 1)
            store.waits_after = transactions
            work = grow(cluster, COUNT) if is_growing else create(cluster)
            creating = asyncio.get_running_loop().create_task(work)
            await asyncio.sleep(3 * LOOKS_S)
            assert not creating.done()
            assert store.unfinished() == []
            store.go_on.set()
            created = await creating
            assert isinstance(created, TopicState), created
            assert len(cluster.any.metadata.image.topics["large"].partitions) == COUNT
            assert store.unfinished() == []
            assert list(find_leftovers(cluster.any.metadata.image)) == []

    run_virtually(body())


def test_a_creation_that_begins_while_another_is_cleared_up_is_left_alone() -> None:
    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            metadata = cluster.any.metadata
            await create(cluster, 1)
            store.fails_after = 3
            with pytest.raises(StoreUnavailable):
                await grow(cluster, COUNT)
            await asyncio.sleep(1)
            (leftover,) = find_leftovers(metadata.image)
            guard = Compare(records.CONTROLLER_KEY, metadata.image.controller_revision)
            first, *others = steps_to_clear(leftover, guard, operations_max=store.operations_max)
            await store.commit(compares=first.compares, deletes=first.deletes)
            store.waits_after = 4
            growing = asyncio.get_running_loop().create_task(grow(cluster, COUNT))
            await asyncio.sleep(1)
            for step in others:
                with pytest.raises(Conflict):
                    await store.commit(compares=step.compares, deletes=step.deletes)
            store.go_on.set()
            await growing
            assert len(metadata.image.topics["large"].partitions) == COUNT
            assert len(others) == 3

    run_virtually(body())


def test_a_creation_under_way_is_given_time() -> None:
    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            store.waits_after = 2
            creating = asyncio.get_running_loop().create_task(create(cluster))
            await asyncio.sleep(1.1 * LOOKS_S)
            commits = store.commit_count
            assert store.unfinished()
            store.go_on.set()
            await creating
            assert store.commit_count == commits + 3, "the three that were left, and none again"

    run_virtually(body())


def test_partitions_that_a_topic_counts_stay_whatever_is_missing_before_them() -> None:
    """A key that was lost is damage: what is left of the topic must not go as well."""

    async def body() -> None:
        store = CutStore()
        async with cluster_of(1, 2, store=store) as cluster:
            topic = await create(cluster)
            assert isinstance(topic, TopicState)
            await store.commit(deletes=[records.partition_key(topic.topic_id, 3)])
            await asyncio.sleep(3 * LOOKS_S)
            kept = [key for key in store.peek().entries if key.startswith(records.PARTITIONS)]
            assert len(kept) == COUNT - 1

    run_virtually(body())
