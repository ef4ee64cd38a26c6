"""The roles that the metadata gives to partitions with several replicas, and the rates of replication."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from millrace.broker.replication.fetcher import FetcherSettings
from millrace.broker.replication.replication import Replication, ReplicationSettings
from millrace.core.background import Background
from millrace.core.ids import Epoch, NodeId, TopicPartition
from millrace.metadata.image import Image, PartitionState
from millrace.metadata.service import Metadata
from millrace.replica.partition import NotLeader, Partition, TopicStats
from millrace.replica.partitions import Partitions
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks
from tests.unit.log.support import PARTITION, TOPIC_ID
from tests.unit.metadata.worlds import apply, cluster, new_topic

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
SETTINGS = ReplicationSettings(
    lag_ms_max=1_000,
    fetcher=FetcherSettings(),
    leader_bytes_per_second=100,
    follower_bytes_per_second=200,
    new_broker_bytes_per_second=300,
)


class World:
    def __init__(self) -> None:
        self.disks = Disks(SimVolume(random.Random(1)))
        self.metadata = SimpleNamespace(image=self._image(), declare_dead=None)
        self.partitions = Partitions()
        self.partition = Partition(PARTITION, TOPIC_ID, self.disks.log(), TopicStats(), lambda _: None)
        self.partitions.add(self.partition)
        self.replication = Replication(
            cast("Metadata", self.metadata),
            self.partitions,
            node_id=ME,
            settings=SETTINGS,
            background=Background(random.Random(1)),
            chance=random.Random(1),
        )

    def _image(self) -> Image:
        image = cluster("a", "b", "c")
        topic = replace(new_topic(PARTITION.topic, 1, assignments={0: [1, 2, 3]}), topic_id=TOPIC_ID)
        return apply(image, topic)

    def state(
        self, leader: NodeId = ME, epoch: int = 1, isr: tuple[NodeId, ...] = (ME, OTHER)
    ) -> PartitionState:
        return PartitionState(leader, Epoch(epoch), (ME, OTHER, THIRD), isr, 1)

    def lead(self, state: PartitionState) -> None:
        async def main() -> None:
            self.replication.lead(self.partition, state)

        self.disks.run(main())


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.disks.dispose()


def test_a_leader_knows_its_followers_and_keeps_what_it_knows_within_its_term(world: World) -> None:
    world.lead(world.state())
    first = world.partition.leadership
    assert first is not None
    assert (first.isr, [follower.node_id for follower in first.followers]) == ((ME, OTHER), [OTHER, THIRD])
    world.partition.refuse_unless_leader()
    world.lead(world.state(isr=(ME, OTHER, THIRD))._replace(partition_epoch=2))
    assert world.partition.leadership is first
    assert first.isr == (ME, OTHER, THIRD)
    world.lead(world.state(epoch=2))
    assert world.partition.leadership is not first


def test_a_follower_fetches_from_its_leader_or_waits_for_one(world: World) -> None:
    replication = world.replication

    async def main() -> None:
        replication.follow(world.partition, OTHER, world.state(OTHER))
        assert list(replication.fetchers._leader_of.values()) == [OTHER]
        with pytest.raises(NotLeader) as refused:
            world.partition.refuse_unless_leader()
        assert refused.value.leader_id == OTHER
        replication.follow(world.partition, NodeId(-1), world.state(NodeId(-1), epoch=2))
        assert not replication.fetchers._leader_of
        replication.follow(world.partition, THIRD, world.state(THIRD, epoch=3))
        replication.forget(world.partition)
        assert not replication.fetchers._leader_of

    world.disks.run(main())


def test_whoever_leads_fetches_no_more(world: World) -> None:
    async def main() -> None:
        world.replication.follow(world.partition, OTHER, world.state(OTHER))
        world.replication.lead(world.partition, world.state(epoch=2))

    world.disks.run(main())
    assert not world.replication.fetchers._leader_of


def test_what_the_metadata_says_of_a_partition(world: World) -> None:
    state = world.replication.state_of(world.partition)
    assert state is world.metadata.image.topics[PARTITION.topic].partitions[0]
    unknown = Partition(
        TopicPartition(PARTITION.topic, 7), TOPIC_ID, world.disks.log(), TopicStats(), lambda _: None
    )
    assert world.replication.state_of(unknown) is None


def test_rates_are_taken_over_while_it_runs(world: World) -> None:
    async def main() -> None:
        replication = world.replication
        replication.reconfigure(replace(SETTINGS, leader_bytes_per_second=7))
        rates = [each.rate for each in (replication.sessions.throttle, replication.throttles.named)]
        assert rates == [7, 200]
        assert replication.throttles.arriving.rate == 300

    world.disks.run(main())
