"""Several data directories on one simulated volume, which can be closed, abandoned and opened again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.duplicates import BelongsTo
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from tests.unit.log.support import PARTITION, TOPIC_ID, CountingIds, FixedClock

T = TypeVar("T")


class Disks:
    def __init__(
        self, volume: SimVolume, paths: Sequence[str] = ("/a", "/b"), config: LogConfig | None = None
    ) -> None:
        self.volume = volume
        self.paths = list(paths)
        self.config = config or LogConfig(
            segment_bytes=2000, index_interval_bytes=250, file_delete_delay_ms=0
        )
        self.clock = FixedClock()
        self.ids = CountingIds()
        self.loop = asyncio.new_event_loop()
        self.moved: list[tuple[PartitionLog, PartitionLog]] = []
        self.directory_ids: tuple[str, ...] = ()
        self.belongs_to: BelongsTo = lambda topic, topic_id: None
        self.directories = self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open(self) -> LogDirectories:
        directories = LogDirectories(
            self.volume,
            self.paths,
            clock=self.clock,
            ids=self.ids,
            chance=random.Random(1),
            settings=DirectorySettings(gives_up_unwritable=True),
        )
        directories.tell_of_moves(lambda original, copy: self.moved.append((original, copy)))
        self.run(directories.open())
        self.directory_ids = directories.ensure_identity(node_id=1, cluster_id="c")
        self.run(directories.load(lambda partition: self.config, belongs_to=self.belongs_to))
        self.directories = directories
        return directories

    def log(self, partition: TopicPartition = PARTITION) -> PartitionLog:
        return self.directories.create(partition, TOPIC_ID, self.config)

    def home(self, partition: TopicPartition = PARTITION) -> str:
        home = self.directories.home_of(partition)
        assert home is not None
        return home.path

    def move(self, path: str, partition: TopicPartition = PARTITION) -> None:
        """Begin to move, and come to the end."""
        self.directories.move(partition, self.directories.at(path))
        self.finish_moves()

    def finish_moves(self) -> None:
        async def until_idle() -> None:
            mover = asyncio.ensure_future(self.directories.mover.run())
            async with asyncio.timeout(20):
                while self.directories.mover.moves or self.directories.mover._under_way is not None:
                    assert not mover.done(), mover
                    await asyncio.sleep(0.001)
            mover.cancel()

        self.run(until_idle())

    def close(self) -> None:
        self.run(self.directories.close())

    def abandon(self) -> None:
        """The process is gone without a word: what it wrote is in the page cache."""
        for log in self.directories.all_logs():
            log.discard()
        self.volume.locks.clear()

    def lose_power(self) -> None:
        self.abandon()
        self.volume.crash()

    def dispose(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
