"""New brokers get their share of the replicas, few partitions at a time, whoever is the controller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.balance import plan_fill
from millrace.metadata.commands import (
    AlterIsr,
    Change,
    ClaimController,
    EndFilling,
    Policy,
    RegisterBroker,
    RemoveMember,
)
from millrace.metadata.controller import as_batch
from millrace.metadata.filling import filled, next_moves
from millrace.metadata.fold import fold
from millrace.metadata.image import EMPTY, Image
from millrace.metadata.leadership import PartitionUpdate
from millrace.metadata.placement import place_replicas
from millrace.metadata.store import LeaseId
from tests.unit.metadata.brokers import Cluster, cluster_of
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import apply, broker, new_topic

FILLING = Policy(is_filling_enabled=True)
LEASE = LeaseId(7)


def joined(image: Image, node_id: int, rack: str | None = None, policy: Policy = FILLING) -> Image:
    return apply(image, RegisterBroker(broker(node_id, rack), LEASE), policy=policy)


def cluster(*racks: str | None, partitions: int = 12) -> Image:
    image = EMPTY
    for number, rack in enumerate(racks, 1):
        image = joined(image, number, rack)
    return apply(image, new_topic("t", 1, partitions=partitions, replicas=min(3, len(racks))))


def written(image: Image, updates: list[PartitionUpdate]) -> Image:
    return fold(image, as_batch(image, Change(puts=tuple(update.put() for update in updates))))


def arrived(image: Image) -> Image:
    """All replicas that were added are in sync."""
    for number, state in enumerate(image.topics["t"].partitions):
        if state.adding:
            request = AlterIsr(
                topic_id=image.topics["t"].topic_id,
                partition=number,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                isr=state.replicas,
            )
            image = apply(image, request)
    return image


def held(image: Image) -> Mapping[int, int]:
    return Counter(node_id for state in image.topics["t"].partitions for node_id in state.replicas)


def test_only_a_broker_that_joins_for_the_first_time_is_filled_and_only_when_asked() -> None:
    image = cluster("a", "b", "c")
    assert not image.filling, "there was nothing to give when these joined"
    assert not joined(image, 4, policy=Policy()).filling
    image = joined(image, 4)
    assert list(image.filling) == [4]
    again = apply(image, ClaimController(NodeId(1), "first"), EndFilling(NodeId(4), image.revision + 1))
    assert not again.filling
    assert not joined(again, 4).filling, "it is a member now, perhaps one that was emptied on purpose"


def test_few_partitions_move_at_a_time_until_it_has_its_share() -> None:
    image = joined(cluster("a", "b", "c"), 4, "d")
    steps = 0
    while not filled(image):
        updates = next_moves(image, FILLING, partitions_max=2)
        assert 1 <= len(updates) <= 2
        assert all(update.after.adding == (4,) for update in updates)
        image = written(image, updates)
        assert next_moves(image, FILLING, partitions_max=2) == [], "so many are under way"
        assert filled(image) == []
        image = arrived(image)
        steps += 1
    assert held(image) == dict.fromkeys((1, 2, 3, 4), 9)
    assert steps == 5
    preferred = Counter(state.replicas[0] for state in image.topics["t"].partitions)
    assert preferred[NodeId(4)] == 3, preferred


def test_racks_stay_apart() -> None:
    image = joined(cluster("a", "b", "c"), 4, "a")
    while not filled(image):
        image = arrived(written(image, next_moves(image, FILLING, partitions_max=5)))
    racks = {1: "a", 2: "b", 3: "c", 4: "a"}
    for state in image.topics["t"].partitions:
        assert sorted(racks[node_id] for node_id in state.replicas) == ["a", "b", "c"]
    assert held(image)[4] == 6, "it shares with the broker of its rack"


def test_a_move_that_is_lost_or_a_new_broker_that_is_down_changes_nothing() -> None:
    image = joined(cluster("a", "b", "c"), 4)
    down = fold(image, as_batch(image, Change(deletes=("brokers/4",))))
    assert next_moves(down, FILLING, partitions_max=5) == []
    assert filled(down) == [], "it is filled when it is back"
    assert not apply(down, RemoveMember(NodeId(4))).filling


def test_two_new_brokers_are_filled_side_by_side() -> None:
    image = joined(joined(cluster("a", "b", "c", partitions=20), 4), 5)
    for _ in range(100):
        done = filled(image)
        if len(done) == 2:
            break
        image = arrived(written(image, next_moves(image, FILLING, partitions_max=1)))
    assert held(image) == dict.fromkeys((1, 2, 3, 4, 5), 12)


def test_the_whole_plan_moves_to_that_broker_only() -> None:
    racks: dict[NodeId, str | None] = {NodeId(number): None for number in (1, 2, 3)}
    placed = place_replicas(racks, partition_count=40, replication_factor=3, start=0)
    before = {TopicPartition("t", number): nodes for number, nodes in enumerate(placed)}
    racks[NodeId(4)] = None
    plan = plan_fill(before, racks, NodeId(4))
    assert len(plan) == 30
    for name, nodes in plan.items():
        assert set(nodes) - set(before[name]) == {4}
    after = {**before, **plan}
    assert Counter(node for nodes in after.values() for node in nodes) == dict.fromkeys((1, 2, 3, 4), 30)
    assert plan_fill(after, racks, NodeId(4)) == {}


async def catch_up(live: Cluster) -> None:
    """What a leader would do: whoever was added is in sync after a while."""
    topic = live.any.metadata.image.topics["t"]
    for number, state in enumerate(topic.partitions):
        if state.adding:
            await live.any.metadata.alter_isr(
                topic.topic_id,
                number,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                isr=state.replicas,
                partition_epoch=state.partition_epoch,
            )


def test_another_controller_goes_on_where_the_first_one_stopped() -> None:
    async def body() -> None:
        async with cluster_of(1, 2, 3, is_filling=True) as live:
            await live.create_topic({number: [1, 2, 3] for number in range(8)})
            await live.start(4)
            await asyncio.sleep(1)
            assert sum(bool(live.partition(number).adding) for number in range(8)) == 2
            await catch_up(live)
            first = live.any.metadata.image.controller_id
            assert first is not None
            live.crash(first)
            await asyncio.sleep(30)
            assert live.any.metadata.image.controller_id not in (None, first)
            await live.start(first, start=2)
            for _ in range(10):
                await catch_up(live)
                await asyncio.sleep(1)
            image = live.any.metadata.image
            assert not image.filling
            assert sum(4 in state.replicas for state in image.topics["t"].partitions) == 6
            assert not any(state.adding or state.removing for state in image.topics["t"].partitions)

    run_virtually(body())
