"""The surroundings of a broker on a real machine."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.broker.assembly.this_machine import GC_THRESHOLDS, of_this_machine, open_store
from millrace.broker.config.config import BrokerConfig, load
from millrace.log.disk.volume import DiskVolume
from millrace.metadata.store.embedded import EmbeddedStore
from millrace.metadata.store.etcd import EtcdStore

CLUSTERED = {"metadata.store": "etcd", "etcd.endpoints": "http://127.0.0.1:1", "node.id": "1"}


def alone(directory: Path, **settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return load(None, {"log.dirs": str(directory), **named}, {})


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_broker_alone_keeps_its_metadata_in_a_file_of_its_own(tmp_path: Path) -> None:
    config = alone(tmp_path)
    store = open_store(config)
    assert isinstance(store, EmbeddedStore)

    async def load_it() -> int:
        await store.open()
        snapshot = await store.load()
        await store.close()
        return snapshot.revision

    assert asyncio.run(load_it()) == 0
    assert Path(config.metadata_store_path).parent == tmp_path
    assert Path(config.metadata_store_path).exists()


def test_a_broker_of_a_cluster_shares_its_metadata() -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    assert isinstance(open_store(load(None, {**CLUSTERED, **listeners}, {})), EtcdStore)


@pytest.mark.parametrize(
    "limit, expected", [("70", 70), ("-1", resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)]
)
def test_log_files_leave_descriptors_for_connections(tmp_path: Path, limit: str, expected: int) -> None:
    found = of_this_machine(alone(tmp_path, log_open_files_max=limit))
    assert isinstance(found.volume, DiskVolume)
    assert found.volume.pool.open_files_max == expected
    assert found.open_file_count() == 0


@pytest.mark.usefixtures("collector")
def test_what_lasts_is_not_looked_at_again_by_the_collector(tmp_path: Path) -> None:
    frozen = gc.get_freeze_count()
    of_this_machine(alone(tmp_path)).on_built()
    assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == GC_THRESHOLDS
