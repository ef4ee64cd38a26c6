"""What failed disks mean to the cluster: their replicas are reported, at the start and when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pytest

from millrace.broker.replication import failed_disks
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.core.ids import NodeId, TopicId
from millrace.metadata.errors import StoreUnavailable
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks
from tests.unit.log.support import PARTITION, TOPIC_ID
from tests.unit.metadata.worlds import apply, cluster, new_topic

ME = NodeId(1)
TURNS = 5


class Reports:
    """The metadata, as far as it is told of replicas."""

    def __init__(self) -> None:
        self.failures_left = 0
        self.heard = asyncio.Event()
        self.told: list[dict[TopicId, list[int]]] = []

    async def report_offline(
        self, node_id: NodeId, incarnation: str, replicas: Mapping[TopicId, Sequence[int]]
    ) -> None:
        assert (node_id, incarnation) == (ME, "first")
        if self.failures_left:
            self.failures_left -= 1
            raise StoreUnavailable("away")
        self.heard.set()
        self.told.append({topic_id: list(numbers) for topic_id, numbers in replicas.items()})


class World:
    def __init__(self) -> None:
        self.disks = Disks(SimVolume(random.Random(1)))
        self.reports = Reports()
        self.disks.log()
        self.failed = FailedDisks(
            self.disks.directories, cast("Metadata", self.reports), node_id=ME, incarnation="first"
        )

    def run(self, *, fail: bool) -> None:
        """For some turns of the loop; with a disk that fails, until that was told."""

        async def main() -> None:
            reporting = asyncio.ensure_future(self.failed.run())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if fail:
                self.disks.directories.at(self.disks.home()).fence("the disk is gone")
                async with asyncio.timeout(10):
                    await self.reports.heard.wait()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporting

        self.disks.run(main())


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.disks.dispose()


def image_with_a_topic() -> Image:
    return apply(cluster("a"), new_topic("gone", 9, partitions=2))


def test_sound_disks_are_not_worth_a_word(world: World) -> None:
    world.run(fail=False)
    assert world.reports.told == []
    assert world.failed.offline_replicas() == {}
    assert world.failed.lost_replicas() == {}


def test_a_disk_that_fails_is_reported_with_its_replicas(world: World) -> None:
    world.run(fail=True)
    assert world.reports.told == [{TOPIC_ID: [PARTITION.partition]}]


def test_what_cannot_be_told_now_is_told_later(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_disks, "RETRY_S", 0.001)
    world.reports.failures_left = 1
    world.run(fail=True)
    assert world.reports.told == [{TOPIC_ID: [PARTITION.partition]}]
    assert "cannot be reported yet" in caplog.text


def test_what_the_registration_has_told_is_not_told_again(world: World) -> None:
    world.disks.directories.at(world.disks.home()).fence("the disk is gone")
    world.run(fail=False)
    assert world.reports.told == []


def test_replicas_on_a_disk_that_is_away_are_offline_and_not_lost(world: World) -> None:
    disks = world.disks
    away = next(path for path in disks.paths if path != disks.home())
    disks.directories.at(away).fence("not mounted")
    image = image_with_a_topic()
    world.failed.compare(image)
    topic_id = image.topics["gone"].topic_id
    assert world.failed.offline_replicas() == {topic_id: [0, 1]}
    assert world.failed.lost_replicas() == {}


def test_replicas_on_a_disk_that_was_given_up_are_lost(world: World) -> None:
    world.disks.directories.has_lost = True
    image = image_with_a_topic()
    world.failed.compare(image)
    topic_id = image.topics["gone"].topic_id
    assert list(world.failed.lost_replicas()) == [(topic_id, 0), (topic_id, 1)]
    assert world.failed.offline_replicas() == {}
