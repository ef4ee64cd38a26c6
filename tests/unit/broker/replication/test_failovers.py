"""Requests for metadata wait for new leaders: not without reason, and not for long."""

from __future__ import annotations

import asyncio

from millrace.broker.replication.failovers import WAIT_MS_MAX, Failovers
from millrace.core.ids import NodeId
from millrace.metadata.commands import BeginStop, Policy, RegisterBroker, UnregisterBroker
from millrace.metadata.fold import fold
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.leadership import assign_leaders
from millrace.metadata.store import ChangeBatch, KeyChange, LeaseId
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import apply, broker, new_topic


def three_brokers() -> Image:
    image = apply(EMPTY, *(RegisterBroker(broker(node_id), LeaseId(node_id)) for node_id in (1, 2, 3)))
    return apply(image, new_topic("t", 1, assignments={0: [1, 2], 1: [3, 1]}))


def with_leaders(image: Image) -> Image:
    updates = assign_leaders(image, image.topics.values(), Policy())
    revision = image.revision + 1
    changes = tuple(KeyChange(update.put().key, update.put().value, revision) for update in updates)
    return fold(image, ChangeBatch(revision, changes))


class World:
    def __init__(self) -> None:
        self.image = three_brokers()
        self.is_probing = False
        self.failovers = Failovers(lambda: self.image, lambda: self.is_probing)


def test_nobody_waits_while_all_is_well_or_has_leaders_again() -> None:
    world = World()
    assert not world.failovers.is_under_way()
    world.image = apply(world.image, UnregisterBroker(NodeId(1), "first"))
    assert world.failovers.is_under_way()
    world.image = with_leaders(world.image)
    assert not world.failovers.is_under_way()


def test_a_partition_that_nobody_else_can_lead_holds_nobody_up() -> None:
    world = World()
    for node_id in (1, 3):
        world.image = with_leaders(apply(world.image, UnregisterBroker(NodeId(node_id), "first")))
    assert world.image.topics["t"].partitions[1].leader == -1
    assert not world.failovers.is_under_way()


def test_a_leader_about_to_stop_is_noticed_also_while_another_broker_is_down() -> None:
    world = World()
    world.image = with_leaders(apply(world.image, UnregisterBroker(NodeId(3), "first")))
    assert not world.failovers.is_under_way()
    world.image = apply(world.image, BeginStop(NodeId(1), "first"))
    assert world.failovers.is_under_way()
    world.image = with_leaders(world.image)
    assert not world.failovers.is_under_way()


def test_the_wait_ends_with_the_failover() -> None:
    async def body() -> float:
        world = World()
        world.is_probing = True
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        loop.call_later(0.03, setattr, world, "is_probing", False)
        await world.failovers.wait()
        return loop.time() - started_s

    assert 0.029 <= run_virtually(body()) < 0.05


def test_the_wait_ends_when_it_takes_too_long() -> None:
    async def body() -> float:
        world = World()
        world.is_probing = True
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await world.failovers.wait()
        return loop.time() - started_s

    assert run_virtually(body()) * 1000 <= WAIT_MS_MAX + 1


def test_a_crowd_that_waits_looks_no_more_often_than_one() -> None:
    """In a failover all clients ask at once, and the loop has other work to do."""
    looks = 0
    probing_until_s = 0.0

    def is_probing() -> bool:
        nonlocal looks
        looks += 1
        return asyncio.get_running_loop().time() < probing_until_s

    async def body() -> list[float]:
        nonlocal probing_until_s
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        probing_until_s = started_s + 0.1
        failovers = Failovers(three_brokers, is_probing)

        async def wait() -> float:
            await failovers.wait()
            return loop.time() - started_s

        return await asyncio.gather(*(wait() for _ in range(1_000)))

    waits = run_virtually(body())
    assert 0.099 <= min(waits) <= max(waits) < 0.12
    assert looks < 3 * 1_000


def test_one_that_comes_late_has_its_own_time() -> None:
    async def body() -> float:
        world = World()
        world.is_probing = True
        loop = asyncio.get_running_loop()
        first = loop.create_task(world.failovers.wait())
        await asyncio.sleep(0.2)
        started_s = loop.time()
        loop.call_later(0.25, setattr, world, "is_probing", False)
        await world.failovers.wait()
        assert first.done()
        return loop.time() - started_s

    assert 0.249 <= run_virtually(body()) < 0.27
