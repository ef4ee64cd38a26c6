"""The controller: there is one, it is replaced when it is lost, and it cannot write when it was."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.core.ids import Epoch, NodeId
from millrace.metadata import records
from millrace.metadata.commands import Policy
from millrace.metadata.controller_task import ControllerTask
from millrace.metadata.errors import Conflict
from millrace.metadata.image import NO_LEADER
from millrace.metadata.service import Metadata, NewTopic
from millrace.metadata.store import Compare, Put
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.brokers import REBALANCE_MS, cluster_of
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import CountedIds, broker


def test_the_first_broker_is_the_controller_and_all_know_it() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            await asyncio.sleep(1)
            assert [broker.metadata.image.controller_id for broker in cluster.brokers.values()] == [1, 1, 1]

    run_virtually(body())


def test_a_lost_controller_is_replaced_and_its_partitions_get_leaders() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            await cluster.create_topic({0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
            revision = cluster.any.metadata.image.controller_revision
            cluster.crash(1)
            await cluster.until_led_by(2, number=0)
            image = cluster.any.metadata.image
            assert image.controller_id in (2, 3)
            assert image.controller_revision > revision
            assert [cluster.partition(number).isr for number in range(3)] == [(2, 3), (2, 3), (3, 2)]
            assert [cluster.partition(number).leader_epoch for number in range(3)] == [1, 0, 0]

    run_virtually(body())


def test_a_controller_that_was_replaced_writes_nothing() -> None:
    async def body() -> None:
        store = MemoryStore(operations_max=128)
        async with background() as tasks:
            metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await metadata.start(tasks)
            leases = {node_id: await store.grant_lease(600_000) for node_id in (1, 2)}
            for node_id, lease_id in leases.items():
                await metadata.register_broker(broker(node_id), lease_id=lease_id)
            await metadata.create_topics([NewTopic(name="t", assignments={0: [1, 2]}, configs={})])
            assert await metadata.claim_controller(NodeId(1), "first") == 1
            old_office = metadata.image.controller_revision
            await store.revoke_lease(leases[1])
            await asyncio.sleep(0.1)
            assert await metadata.claim_controller(NodeId(2), "first") == 2
            new_office = metadata.image.controller_revision

            assert await metadata.assign_leaders(controller_revision=old_office) == 0
            assert metadata.image.topics["t"].partitions[0].leader == 1
            with pytest.raises(Conflict):
                await store.commit(
                    compares=[Compare(records.CONTROLLER_KEY, old_office)], puts=[Put("any", b"")]
                )
            assert await metadata.assign_leaders(controller_revision=new_office) == 1
            assert metadata.image.topics["t"].partitions[0].leader == 2
            await metadata.close()

    run_virtually(body())


def test_a_topic_created_on_a_broker_that_just_died_gets_a_leader() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            cluster.crash(3)
            await cluster.create_topic({0: [3, 2]})
            assert cluster.partition().leader == 3
            await cluster.until_led_by(2)

    run_virtually(body())


def test_leaders_go_back_to_where_they_are_preferred() -> None:
    async def body() -> None:
        async with cluster_of(1, 2) as cluster:
            topic = await cluster.create_topic({0: [2, 1]})
            cluster.crash(2)
            await cluster.until_led_by(1)
            await cluster.start(2, start=2)
            state = cluster.partition()
            await cluster.any.metadata.alter_isr(
                topic.topic_id,
                0,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                isr=(NodeId(2), NodeId(1)),
                partition_epoch=state.partition_epoch,
            )
            assert cluster.partition().leader == 1
            await cluster.until_led_by(2, within_s=2 * REBALANCE_MS / 1000)

    run_virtually(body())


def test_brokers_that_are_not_the_controller_sleep_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time came to look at preferred leaders they found that it was not for them to do, and looked
    again at once, for ever: an idle broker kept a core busy."""
    steps: list[NodeId] = []
    step = ControllerTask._step

    async def counted_step(task: ControllerTask, *, is_rebalance_due: bool) -> None:
        steps.append(task._node_id)
        assert len(steps) < 1_000, "it never sleeps"
        await step(task, is_rebalance_due=is_rebalance_due)

    monkeypatch.setattr(ControllerTask, "_step", counted_step)

    async def body() -> None:
        async with cluster_of(1, 2, 3):
            await asyncio.sleep(1)
            begun = len(steps)
            await asyncio.sleep(10 * REBALANCE_MS / 1000)
            assert len(steps) - begun <= 3 * 11

    run_virtually(body())


def test_a_controlled_shutdown_hands_over_before_the_broker_is_gone() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3) as cluster:
            topic = await cluster.create_topic({0: [1, 2], 1: [1, 3], 2: [1, 3], 3: [2, 1]})
            await cluster.any.metadata.alter_isr(
                topic.topic_id,
                2,
                leader_id=NodeId(1),
                leader_epoch=Epoch(0),
                isr=(NodeId(1),),
                partition_epoch=0,
            )
            left = await cluster.brokers[1].metadata.begin_controlled_shutdown(NodeId(1))
            assert left == 1, "nobody else has all of partition 2"
            leaders = [cluster.partition(number).leader for number in range(4)]
            assert leaders == [2, 3, 1, 2]
            # It has everything until the last one in sync says that it goes on alone.
            assert [cluster.partition(number).isr for number in range(4)] == [(1, 2), (1, 3), (1,), (2, 1)]
            await cluster.brokers.pop(1).stop()
            await cluster.until_led_by(NO_LEADER, number=2)
            await cluster.start(1, start=2, is_clean=True)
            await cluster.until_led_by(1, number=2)
            assert not cluster.any.metadata.image.stopping

    run_virtually(body())


def test_many_partitions_move_in_few_transactions() -> None:
    """10,000 partitions must have new leaders within two seconds; each transaction costs milliseconds."""

    async def body() -> None:
        store = MemoryStore(operations_max=128)
        async with cluster_of(1, 2, 3, store=store) as cluster:
            await cluster.create_topic({number: [3, 1, 2] for number in range(1_000)})
            commits = store.commit_count
            cluster.crash(3)
            await cluster.until_led_by(1, number=999)
            assert all(cluster.partition(number).leader == 1 for number in range(1_000))
            # Each has the controller's office among its compares.
            assert store.commit_count - commits <= 1_000 // 127 + 2

    run_virtually(body())
