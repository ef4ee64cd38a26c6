"""What the checkpoints of a data directory say about its logs, and when they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from millrace.core.ids import TopicPartition
from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.segments import checkpoints

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


class DirectoryCheckpoints:
    """Reads the table of logs on the loop; a thread gets the numbers and writes them."""

    def __init__(self, volume: Volume, path: str, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._volume = volume
        self._path = path
        self._logs = logs
        self._saved: dict[str, dict[TopicPartition, int]] = {}
        """What the checkpoints say, by file: what has not changed is not written again."""
        self._saving = asyncio.Lock()

    async def save_all(self) -> None:
        for name, offsets_now in self._all():
            await self._save(name, offsets_now)

    async def save_log_start_offsets(self) -> None:
        await self._save(checkpoints.LOG_START_OFFSETS, self._log_start_offsets)

    async def save_cleaner_offsets(self) -> None:
        await self._save(checkpoints.CLEANER_OFFSETS, self._cleaner_offsets)

    async def save_high_watermarks(self) -> None:
        await self._save(checkpoints.HIGH_WATERMARKS, self._high_watermarks)

    async def forget_deleted(self) -> None:
        """Write those checkpoints again that name a log that is gone."""
        for name, offsets_now in self._all():
            async with self._saving:
                saved = self._saved.get(name)
            if saved is None or any(partition not in self._logs for partition in saved):
                await self._save(name, offsets_now)

    async def lower_recovery_point(self, log: PartitionLog) -> None:
        """Save the recovery point after a cut: what takes the place of flushed records must be checked."""
        async with self._saving:
            # A checkpoint that was under way may have taken the number from before the cut. If this process
            # has written none yet, the file may say anything.
            saved = self._saved.get(checkpoints.RECOVERY_POINTS)
        if saved is None or saved.get(log.topic_partition, 0) > log.flushed_offset:
            await self._save(checkpoints.RECOVERY_POINTS, self._recovery_points)

    def _all(self) -> Iterator[tuple[str, Callable[[], dict[TopicPartition, int]]]]:
        yield checkpoints.RECOVERY_POINTS, self._recovery_points
        yield checkpoints.LOG_START_OFFSETS, self._log_start_offsets
        yield checkpoints.HIGH_WATERMARKS, self._high_watermarks
        yield checkpoints.CLEANER_OFFSETS, self._cleaner_offsets

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {partition: log.flushed_offset for partition, log in self._logs.items()}

    def _log_start_offsets(self) -> dict[TopicPartition, int]:
        return {
            partition: log.log_start_offset
            for partition, log in self._logs.items()
            if log.log_start_offset > log.segments[0].base_offset
            # Its only file may never have been flushed, and a power loss would take the start with it.
            or 0 < log.log_start_offset >= log.flushed_offset
        }

    def _cleaner_offsets(self) -> dict[TopicPartition, int]:
        return {
            partition: log.first_dirty_offset
            for partition, log in self._logs.items()
            if log.first_dirty_offset
        }

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition: log.high_watermark for partition, log in self._logs.items()}

    async def _save(self, name: str, offsets_now: Callable[[], dict[TopicPartition, int]]) -> None:
        """Write a checkpoint, one at a time: two writers of a file would write into each other, and the older
        numbers might stay."""
        async with self._saving:
            offsets = offsets_now()
            if offsets != self._saved.get(name):
                path = f"{self._path}/{name}"
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(
                    self._volume.lane(Waits.SYNC, path),
                    checkpoints.write_offsets,
                    self._volume,
                    path,
                    offsets,
                )
                self._saved[name] = offsets
