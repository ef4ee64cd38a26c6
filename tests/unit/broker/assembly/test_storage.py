"""The logs of a broker: who it is by its directories, and what it takes in that the metadata lacks."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.assembly.cluster import start_metadata
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.storage import (
    Storage,
    build_reconciler,
    build_replicas,
    build_storage,
    load_logs,
    open_directories,
)
from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.survey import LoadProgress
from millrace.log.errors import LogDirectoryOffline
from millrace.metadata.commands import RegisterBroker
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.service import Metadata
from tests.harness.background import background
from tests.unit.broker.assembly.grounds import CLUSTERED, ground_of
from tests.unit.metadata.worlds import broker, topic_id

ORDERS = TopicPartition("orders", 0)


async def opened(ground: Ground) -> tuple[Storage, str | None]:
    storage = build_storage(ground)
    return storage, await open_directories(ground, storage.directories)


async def write_identity(ground: Ground, node_id: int) -> None:
    storage, _ = await opened(ground)
    storage.directories.ensure_identity(node_id=node_id, cluster_id="the-cluster")
    await storage.directories.close()


def test_a_broker_without_a_number_takes_that_of_its_directory(tmp_path: Path) -> None:
    async def main() -> None:
        await write_identity(ground_of(tmp_path), 7)
        ground = ground_of(tmp_path)
        storage, cluster_id = await opened(ground)
        assert (ground.config.now.node_id, cluster_id) == (7, "the-cluster")
        await storage.directories.close()

    asyncio.run(main())


def test_a_broker_of_a_cluster_gets_its_number_from_the_file_or_its_directory(tmp_path: Path) -> None:
    without = {name: value for name, value in CLUSTERED.items() if name != "node.id"}

    async def main() -> None:
        with pytest.raises(InvalidConfig, match=r"node\.id"):
            await opened(ground_of(tmp_path / "new", without))
        await write_identity(ground_of(tmp_path / "used"), 5)
        ground = ground_of(tmp_path / "used", without)
        storage, _ = await opened(ground)
        assert ground.config.now.node_id == 5
        await storage.directories.close()

    asyncio.run(main())


def test_a_store_whose_directory_is_away_is_not_begun_anew(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"log.dirs": f"{first},{second}", "metadata.store.path": f"{second}/metadata.sqlite"}

    async def main() -> None:
        await write_identity(ground_of(tmp_path, settings), 1)
        shutil.rmtree(second)
        ground = ground_of(tmp_path, settings)
        alone = build_storage(ground)
        with pytest.raises(LogDirectoryOffline, match="the metadata store is in it"):
            await open_directories(ground, alone.directories)
        await alone.directories.close()
        # In a cluster the store is elsewhere: one disk less is no reason to stay away.
        storage, _ = await opened(ground_of(tmp_path, {**settings, **CLUSTERED, "node.id": "1"}))
        assert list(storage.directories.offline) == [str(second)]
        await storage.directories.close()

    asyncio.run(main())


def test_settings_of_the_metadata_replace_those_of_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, {"node.id": "1", "num.partitions": "2"}, background=tasks)
            storage, found = await opened(ground)
            knowledge = await start_metadata(ground, storage, found)
            reconciler = build_reconciler(ground, knowledge.metadata, build_replicas(ground, storage, None))
            heard: list[int] = []
            ground.config.subscribe(lambda _, new: heard.append(new.policy().num_partitions))
            image = knowledge.metadata.image
            reconciler.load_settings(replace(image, default_broker_config={"num.partitions": "9"}))
            assert heard == [9]
            assert ground.config.now.node_id == 1
            await storage.directories.close()
            await knowledge.metadata.close()

    asyncio.run(main())


async def _load(ground: Ground, members: int = 0) -> tuple[Storage, Metadata, list[LoadProgress]]:
    storage, found = await opened(ground)
    knowledge = await start_metadata(ground, storage, found)
    metadata = knowledge.metadata
    if members:
        await metadata._committed.submit(
            [RegisterBroker(broker(9), await knowledge.store.grant_lease(60_000))],
            lambda *_: None,
            is_local=False,
        )
    reconciler = build_reconciler(ground, metadata, build_replicas(ground, storage, None))
    told: list[LoadProgress] = []
    await load_logs(ground, storage.directories, metadata, reconciler, told.append)
    await storage.directories.close()
    await metadata.close()
    return storage, metadata, told


@pytest.mark.parametrize("is_clustered", [False, True])
def test_a_log_of_an_unknown_topic_is_taken_in_unless_a_cluster_knows_better(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clustered: bool
) -> None:
    settings = {"node.id": "1"}

    async def main() -> None:
        storage, _ = await opened(ground_of(tmp_path, settings))
        storage.directories.ensure_identity(node_id=1, cluster_id="c")
        storage.directories.create(ORDERS, topic_id(4), LogConfig())
        await storage.directories.close()
        async with background() as tasks:
            ground = ground_of(tmp_path, settings, background=tasks)
            storage, metadata, told = await _load(ground, members=int(is_clustered))
        assert told[-1].logs_done == 1
        if is_clustered:
            assert "orders" not in metadata.image.topics
            assert "unknown topic is left alone" in caplog.text
        else:
            assert metadata.image.topics["orders"].topic_id == topic_id(4)
        assert ORDERS in storage.directories.logs or is_clustered

    asyncio.run(main())
