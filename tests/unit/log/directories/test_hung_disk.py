"""A disk that never answers a sync keeps its own logs waiting, and nobody else."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.lanes import Lanes
from millrace.core.override import override
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.disk.volume import DiskFile, DiskHandle, DiskVolume
from millrace.log.partition.time_lookup import find_offset_by_timestamp
from millrace.metadata.store import Put
from millrace.metadata.store.embedded import EmbeddedStore
from tests.unit.log.support import NOW_MS, CountingIds, FixedClock, append

LOGS = 60
"""More than the threads that the default executor may have."""


class HangingVolume(DiskVolume):
    """Files below `hung` sync when `goes_on` is set, and not before."""

    def __init__(self, hung: str, lanes: Lanes | None) -> None:
        super().__init__(lanes=lanes)
        self._hung = hung
        self.is_hanging = False
        self.goes_on = threading.Event()

    @override
    def file(self, path: str, *, create: bool = False) -> DiskFile:
        return HangingFile(self, path, create=create)

    @override
    def sync_directory(self, path: str) -> None:
        self.wait(path)

    def wait(self, path: str) -> None:
        if self.is_hanging and path.startswith(self._hung):
            assert self.goes_on.wait(30)


class HangingFile(DiskFile):
    def __init__(self, volume: HangingVolume, path: str, *, create: bool) -> None:
        super().__init__(volume.pool, path, create=create)
        self._volume = volume

    @override
    def handle(self) -> DiskHandle:
        opened = super().handle()
        return HangingHandle(self._volume, opened)


class HangingHandle(DiskHandle):
    __slots__ = ("_volume",)

    def __init__(self, volume: HangingVolume, opened: DiskHandle) -> None:
        super().__init__(os.dup(opened.fileno()), opened.path, writable=opened.writable)
        self._volume = volume

    @override
    def sync(self) -> None:
        self._volume.wait(self.path)


def test_other_directories_and_the_metadata_go_on_while_one_disk_hangs(tmp_path: Path) -> None:
    hung, sound = str(tmp_path / "hung"), str(tmp_path / "sound")
    lanes = Lanes([hung, sound], time.monotonic)
    volume = HangingVolume(hung, lanes)
    directories = LogDirectories(
        volume, [hung, sound], clock=FixedClock(), ids=CountingIds(), chance=random.Random(1)
    )

    async def body() -> None:
        await directories.open()
        config = LogConfig()
        await directories.load(lambda _: config)
        names = [TopicPartition("t", number) for number in range(2 * LOGS)]
        await directories.create_missing(names, TopicId(bytes(15) + b"\1"), config)
        store = EmbeddedStore(str(tmp_path / "metadata.db"), lane=lanes.metadata)
        await store.open()
        by_home = {home.path: list(home.logs.values()) for home in directories.all}
        for log in (*by_home[hung], *by_home[sound]):
            append(log, b"one")
            log.high_watermark = log.log_end_offset
        volume.is_hanging = True
        loop = asyncio.get_running_loop()
        stuck = [loop.create_task(log.flush()) for log in by_home[hung]]
        await asyncio.sleep(0.05)

        # Without lanes the loop could not even end: the threads have to be let go.
        loop.call_later(10, volume.goes_on.set)
        async with asyncio.timeout(8):
            await asyncio.gather(*(log.flush() for log in by_home[sound]))
            assert await store.commit(puts=[Put("key", b"value")]) > 0
            for log in (by_home[sound][0], by_home[hung][0]):
                assert await find_offset_by_timestamp(log, NOW_MS - 1) is not None
            assert await loop.run_in_executor(None, int) == 0
        assert not any(task.done() for task in stuck)
        told = {figures.name: figures for figures in lanes.figures()}
        assert told["sync-0"].queued > 0
        assert told["sync-0"].oldest_s > 0.04
        assert told["sync-1"] == ("sync-1", 0, 0.0)

        volume.goes_on.set()
        await asyncio.gather(*stuck)
        await store.close()
        await directories.close()

    try:
        asyncio.run(body())
    finally:
        volume.goes_on.set()
