"""How a broker presents itself to the metadata, and which place it gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from millrace.broker.assembly.cluster import (
    Knowledge,
    Neighbours,
    build_place,
    describe_broker,
    find_failed_disks,
    start_metadata,
)
from millrace.broker.assembly.storage import build_replicas, build_storage, open_directories
from millrace.broker.replication.membership import Alone, Membership
from millrace.metadata.errors import ClusterMismatch
from millrace.metadata.image import EMPTY, Endpoint
from millrace.metadata.service import Metadata
from millrace.metadata.store import Store
from tests.harness.background import background
from tests.unit.broker.assembly.grounds import CLUSTERED, ground_of


def test_a_broker_is_found_where_it_is_advertised_or_else_where_it_listens(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://10.0.0.1:9092,INTERNAL://10.0.0.2:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://broker.example:1234",
        "broker.rack": "r1",
    }
    found = describe_broker(ground_of(tmp_path, settings), ["disk"])
    assert found.endpoints == (
        Endpoint("PLAINTEXT", "broker.example", 1234, "PLAINTEXT"),
        Endpoint("INTERNAL", "10.0.0.2", 9093, "PLAINTEXT"),
    )
    assert (found.rack, found.directory_ids) == ("r1", ("disk",))


def test_only_a_broker_of_a_cluster_tells_of_its_machine(tmp_path: Path) -> None:
    """By it replicas are kept apart, and by its boot it is known whether the page cache survived."""
    alone = describe_broker(ground_of(tmp_path), [])
    assert (alone.rack, alone.boot_id) == (None, "")
    member = describe_broker(ground_of(tmp_path, CLUSTERED), [])
    assert (member.rack, member.boot_id) == ("machine", "boot")
    racked = describe_broker(ground_of(tmp_path, {**CLUSTERED, "broker.rack": "r1"}), [])
    assert racked.rack == "r1"
    assert describe_broker(ground_of(tmp_path), []).incarnation != alone.incarnation


@pytest.mark.parametrize("is_clustered", [True, False])
def test_a_broker_has_its_place_alone_or_among_others(tmp_path: Path, is_clustered: bool) -> None:
    ground = ground_of(tmp_path, CLUSTERED if is_clustered else {})
    storage = build_storage(ground)
    metadata = cast("Metadata", SimpleNamespace(image=EMPTY, declare_dead=None))
    knowledge = Knowledge(metadata, cast("Store", None), [])
    broker = describe_broker(ground, [])
    roles = Neighbours(ground, metadata, storage).replication if is_clustered else None
    replicas = build_replicas(ground, storage, roles)
    disks = find_failed_disks(knowledge, broker, storage)
    place = build_place(ground, knowledge, broker, storage, replicas, disks)
    assert isinstance(place, Membership if is_clustered else Alone)
    assert (place.before_requests is not None) == is_clustered


def test_the_directories_of_another_cluster_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, background=tasks)
            storage = build_storage(ground)
            await open_directories(ground, storage.directories)
            knowledge = await start_metadata(ground, storage, "ours")
            assert knowledge.metadata.image.cluster_id == "ours"
            assert len(knowledge.directory_ids) == 1
            stored = knowledge.store
            await knowledge.metadata.close()
            again = Metadata(
                stored,
                policy=ground.config.policy,
                ids=ground.surroundings.ids,
                chance=ground.surroundings.chance,
            )
            with pytest.raises(ClusterMismatch):
                await again.start(tasks, found_cluster_id="theirs")
            await again.close()
            await storage.directories.close()

    asyncio.run(main())
