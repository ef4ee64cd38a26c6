"""Every test of the log may ask for a disk: simulated unless it says otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk


@pytest.fixture
def sim_volume() -> SimVolume:
    return SimVolume(random.Random(1))


@pytest.fixture
def make_disk(sim_volume: SimVolume) -> Iterator[Callable[[LogConfig], Disk]]:
    disks: list[Disk] = []

    def make(config: LogConfig) -> Disk:
        disk = Disk(sim_volume, "/data", config)
        disks.append(disk)
        return disk

    yield make
    for disk in disks:
        disk.abandon()
        disk.dispose()


@pytest.fixture
def disk(make_disk: Callable[[LogConfig], Disk]) -> Disk:
    return make_disk(LogConfig(segment_bytes=2000, index_interval_bytes=250, file_delete_delay_ms=0))
