"""The facade over a store in memory: commands, races, and a store that is away, compacted or set back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.core.background import ATTEMPTS_MAX, Background
from millrace.core.ids import Epoch, NodeId
from millrace.metadata.adoption import FoundLog
from millrace.metadata.commands import (
    Alteration,
    AlterOperation,
    BrokerResource,
    CreatePartitions,
    Policy,
    TopicResource,
)
from millrace.metadata.committing import CommittedImage
from millrace.metadata.errors import (
    ClusterMismatch,
    InvalidTopicName,
    NodeIdInUse,
    StoreUnavailable,
    StoreWentBack,
    TopicExists,
    UnknownTopic,
)
from millrace.metadata.image import Image, TopicState
from millrace.metadata.service import Metadata, NewTopic
from millrace.metadata.store import Put
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import CountedIds, broker, topic_id


@asynccontextmanager
async def running(store: MemoryStore, *, found_cluster_id: str | None = None) -> AsyncIterator[Metadata]:
    async with background() as tasks:
        metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
        await metadata.start(tasks, found_cluster_id=found_cluster_id)
        if 1 not in metadata.image.brokers:
            await metadata.register_broker(broker(1))
        try:
            yield metadata
        finally:
            await metadata.close()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body

    asyncio.run(bounded())


def topic(name: str, partitions: int = 1) -> NewTopic:
    return NewTopic(name=name, partition_count=partitions, configs={})


async def create(metadata: Metadata, name: str, partitions: int = 1) -> TopicState:
    (created,) = await metadata.create_topics([topic(name, partitions)])
    assert isinstance(created, TopicState), created
    return created


def test_a_command_returns_when_the_image_has_it() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            changes: list[tuple[Image, Image]] = []
            stop = metadata.subscribe(lambda old, new: changes.append((old, new)))
            outcomes = await metadata.create_topics([topic("a", 3), topic("b c"), topic("a"), topic("d")])
            assert [type(outcome) for outcome in outcomes] == [
                TopicState,
                InvalidTopicName,
                TopicExists,
                TopicState,
            ]
            assert sorted(metadata.image.topics) == ["a", "d"]
            ((old, new),) = changes
            assert new is metadata.image
            assert new.revision == old.revision + 1
            stop()
            await metadata.delete_topics(["a"])
            assert len(changes) == 1

    run(body())


def test_validation_alone_changes_nothing() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            await create(metadata, "there")
            before = metadata.image
            (would_be,) = await metadata.create_topics([topic("a", 3)], validate_only=True)
            assert isinstance(would_be, TopicState)
            assert len(would_be.partitions) == 3
            await metadata.create_partitions([CreatePartitions(name="there", count=9)], validate_only=True)
            change = Alteration("retention.ms", AlterOperation.SET, "bad")
            (refused,) = await metadata.alter_configs(
                [(TopicResource("there"), [change])], validate_only=True
            )
            assert refused is not None
            assert metadata.image is before

    run(body())


def test_topics_live_and_die_by_name_and_by_id() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            first, second = await create(metadata, "first"), await create(metadata, "second")
            (grown,) = await metadata.create_partitions([CreatePartitions(name="first", count=4)])
            assert isinstance(grown, TopicState)
            assert len(grown.partitions) == 4
            gone = await metadata.delete_topics(["first", second.topic_id, "third"])
            assert [outcome.name for outcome in gone if isinstance(outcome, TopicState)] == [
                "first",
                "second",
            ]
            assert isinstance(gone[2], UnknownTopic)
            assert len(metadata.image.topics) == 0
            assert (await create(metadata, "first")).topic_id != first.topic_id
            await metadata.confirm_deletions([first.topic_id, second.topic_id], NodeId(1))
            assert len(metadata.image.deleted_topics) == 0

    run(body())


def test_settings_of_topics_and_brokers_change() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            await create(metadata, "a")
            change = Alteration("retention.ms", AlterOperation.SET, "7")
            errors = await metadata.alter_configs(
                [(TopicResource("a"), [change]), (TopicResource("b"), [change])]
            )
            assert errors[0] is None
            assert isinstance(errors[1], UnknownTopic)
            assert dict(metadata.image.topics["a"].configs) == {"retention.ms": "7"}
            await metadata.replace_configs(
                [(TopicResource("a"), {}), (BrokerResource(None), {"max.connections": "5"})]
            )
            assert dict(metadata.image.topics["a"].configs) == {}
            assert dict(metadata.image.default_broker_config) == {"max.connections": "5"}

    run(body())


def test_two_brokers_on_one_store_never_get_the_same_producer_ids() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            blocks = await asyncio.gather(
                *(who.allocate_producer_ids() for who in (one, other) for _ in range(8))
            )
            taken = [producer_id for block in blocks for producer_id in block]
            assert len(set(taken)) == len(taken) == 16_000

    run(body())


def test_concurrent_changes_of_one_topic_all_happen() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            await create(one, "a")
            settings = ["retention.ms", "segment.ms", "flush.ms", "retention.bytes", "delete.retention.ms"]
            await asyncio.gather(
                *(
                    who.alter_configs([(TopicResource("a"), [Alteration(name, AlterOperation.SET, "77")])])
                    for who, name in zip([one, other] * 3, settings, strict=False)
                )
            )
            while other.image.revision < one.image.revision:
                await asyncio.sleep(0)
            assert sorted(other.image.topics["a"].configs) == sorted(settings)

    run(body())


def test_of_two_creators_of_one_topic_one_wins_and_the_other_is_told() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            outcomes = await asyncio.gather(
                one.create_topics([topic("a.b")]), other.create_topics([topic("a_b")])
            )
            kinds = sorted(type(outcome[0]).__name__ for outcome in outcomes)
            assert kinds == ["InvalidTopicName", "TopicState"]

    run(body())


def test_a_store_with_a_limit_on_operations_takes_large_changes_in_parts() -> None:
    async def body() -> None:
        store = MemoryStore(operations_max=16)
        async with running(store) as metadata:
            await create(metadata, "large", 100)
            assert len(metadata.image.topics["large"].partitions) == 100
            outcomes = await metadata.create_topics([topic(f"t{number}", 3) for number in range(20)])
            assert all(isinstance(outcome, TopicState) for outcome in outcomes)
            await metadata.delete_topics(["large"])
            assert len(metadata.image.unclaimed) == 0
            assert len(metadata.image.topics) == 20

    run(body())


def test_a_restart_finds_the_same_cluster() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store, found_cluster_id="from the disk") as metadata:
            assert metadata.image.cluster_id == "from the disk"
            before = await create(metadata, "a", 3)
        async with running(store, found_cluster_id="from the disk") as again:
            assert again.image.topics["a"] == before
        with pytest.raises(ClusterMismatch):
            async with running(store, found_cluster_id="of somebody else"):
                pass

    run(body())


def test_a_new_cluster_gets_an_id_of_its_own() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            assert len(metadata.image.cluster_id) == 22

    run(body())


def test_a_living_broker_keeps_its_node_id() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            await metadata.register_broker(broker(2, directory_ids=["x"]))
            with pytest.raises(NodeIdInUse):
                await metadata.register_broker(broker(2, incarnation="second", directory_ids=["y"]))
            await metadata.unregister_broker(NodeId(2), "first")
            assert list(metadata.image.brokers) == [1]

    run(body())


def test_logs_on_disk_become_topics_of_a_fresh_store() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            taken = await create(metadata, "taken")
            stray = FoundLog("taken", 0, topic_id(77))
            found = [FoundLog("a", 0, topic_id(5), Epoch(3)), FoundLog("taken", 0, taken.topic_id), stray]
            assert await metadata.adopt_logs(found, node_id=NodeId(1), next_producer_id=4_000) == [stray]
            assert metadata.image.topics["a"].partitions[0].leader_epoch == 3
            assert (await metadata.allocate_producer_ids()).start == 4_000
            assert await metadata.adopt_logs(found, node_id=NodeId(1)) == [stray]

    run(body())


def test_the_broker_outlives_a_store_that_is_away() -> None:
    # F12: no restart needed, and what happened meanwhile is seen.
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as metadata, running(store) as other:
            store.set_available(False)
            with pytest.raises(StoreUnavailable):
                await metadata.create_topics([topic("a")])
            await asyncio.sleep(0)
            store.set_available(True)
            await create(other, "b")
            await create(metadata, "c")
            assert sorted(metadata.image.topics) == ["b", "c"]

    run(body())


def test_a_watch_that_missed_changes_reloads_everything() -> None:
    # F13: the store forgets how it came here while nobody can watch.
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as metadata:
            store.set_available(False)
            await asyncio.sleep(0)
            store.set_available(True)
            await store.commit(puts=[Put("producer_ids", b'{"next":5}')])
            store.compact()
            while metadata.image.next_producer_id != 5:
                await asyncio.sleep(0.005)
            await create(metadata, "after")

    run(body())


def test_a_store_that_goes_back_ends_the_broker() -> None:
    # F14: decisions on revisions that do not exist any more would contradict those of others.
    async def body() -> None:
        store = MemoryStore()
        early = await store.load()

        async def set_back_while_running() -> None:
            async with running(store) as metadata:
                await create(metadata, "a")
                store.restore(early)
                await asyncio.sleep(5)

        with pytest.raises(StoreWentBack):
            await set_back_while_running()

    run(body())


def test_a_broker_that_fails_to_follow_the_metadata_again_and_again_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would act for ever on what is long gone."""
    bug = ValueError("a bug")
    tries = 0

    async def fail(committed: CommittedImage) -> None:
        nonlocal tries
        tries += 1
        raise bug

    async def body() -> None:
        monkeypatch.setattr(CommittedImage, "_follow", fail)
        owner = Background(random.Random(1))
        await CommittedImage(MemoryStore(), policy=Policy, chance=random.Random(1)).begin(owner)
        await asyncio.sleep(3_600)
        assert owner.fatal is bug
        assert tries == ATTEMPTS_MAX
        await owner.end()

    run_virtually(body())


def test_commands_wait_until_this_broker_has_made_it_so() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            applied = asyncio.Event()
            asked: list[int] = []

            async def wait(revision: int) -> None:
                asked.append(revision)
                await applied.wait()

            metadata.applied_by(wait)
            creating = asyncio.ensure_future(create(metadata, "a"))
            while "a" not in metadata.image.topics:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not creating.done()
            applied.set()
            await creating
            assert asked == [metadata.image.revision]

    run(body())
