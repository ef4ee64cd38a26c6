"""A keeper for each partition of the store: it goes on after failures, and ends with its partition."""

from __future__ import annotations

import asyncio

from millrace.broker.queues.delayed.service import DelayedDelivery
from millrace.core.ids import TopicPartition
from millrace.metadata.topic_names import DELAYED_TOPIC
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS
from tests.unit.broker.queues.delayed.world import TOPIC, World


async def until(delivery: DelayedDelivery, count: int) -> None:
    while delivery.figures.delivered < count:
        await asyncio.sleep(0.01)


def delivery_of(world: World) -> DelayedDelivery:
    return DelayedDelivery(world.broker.services.partitions, world.volume, world.parts, world.background)


def test_messages_come_by_themselves_and_a_clean_end_leaves_nothing_to_read(world: World) -> None:
    world.add(world.message(NOW_MS), world.message(NOW_MS + 3_600_000))
    delivery = delivery_of(world)

    async def live() -> None:
        delivery.start()
        await until(delivery, 1)
        assert delivery.pending_count == 2 or delivery.pending_count == 1
        await delivery.close()

    world.broker.run(live())
    assert world.keys() == [0]
    keeper = world.keeper()
    world.broker.run(keeper.tail.open())
    assert keeper.tail.index.state.next_offset >= 2


def test_other_topics_are_nothing_to_it_and_partitions_come_and_go(world: World) -> None:
    world.add(world.message(NOW_MS + 3_600_000))
    delivery = delivery_of(world)
    other = world.broker.services.partitions.find(TOPIC, 0)
    assert other is not None

    async def live() -> None:
        delivery.partition_changed(other)
        assert len(world.background) == 0
        delivery.partition_changed(world.partition)
        delivery.partition_changed(world.partition)
        assert len(world.background) == 1
        partition = world.partition
        world.broker.services.partitions.remove(TopicPartition(DELAYED_TOPIC, 0))
        delivery.partition_changed(partition)
        await asyncio.sleep(0.01)
        assert len(world.background) == 0

    world.broker.run(live())


def test_a_follower_indexes_and_delivers_nothing_until_it_leads(world: World) -> None:
    world.add(world.message(NOW_MS))
    partition = world.partition
    epoch = partition.leader_epoch
    keeper = world.keeper()
    partition.follow(7, epoch + 1)
    world.step(keeper, 2)
    assert world.keys() == []
    assert keeper.pending_count == 0
    assert keeper.tail.index.state.pending_count == 1
    partition.lead(NODE_ID, epoch + 2)
    world.step(keeper, 2)
    assert world.keys() == [0]


def test_a_leader_that_loses_its_term_begins_the_next_from_what_is_stored(world: World) -> None:
    world.add(world.message(NOW_MS), world.message(NOW_MS + 100))
    keeper = world.keeper()
    world.step(keeper)
    partition = world.partition
    partition.follow(7, partition.leader_epoch + 1)
    world.step(keeper)
    partition.lead(NODE_ID, partition.leader_epoch + 1)
    world.clock.now_ms += 200
    world.step(keeper, 3)
    assert world.keys() == [0, 1]
    assert keeper.tail.index.state.open_intents == {}
