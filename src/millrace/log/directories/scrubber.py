"""Goes through all logs, one after the other, and looks for what the disk has damaged since it was flushed.

A start checks what comes behind the recovery point only; what lies before it may be years old. What is found
damaged goes into quarantine, where replicas mend it; indexes are made again from the batches. The scrubber
writes down when it last went through each log, so that after a restart it goes on with the log that has
waited longest; it begins again with the log that was under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.lanes import Waits
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.partition.isolation import past_damage, put_in_quarantine
from millrace.log.partition.log_home import LogHome
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.scrubbing import (
    Beside,
    Scrubbed,
    Stored,
    check_beside,
    scratch_path,
    scrub_some,
    with_lost_end,
)
from millrace.log.segments import checkpoints
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment, segment_path
from millrace.log.state.epochs import epochs_from_batches, save_epochs

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES_MAX: Final = 4 * 1024 * 1024
PIECE_BYTES_MIN: Final = 64 * 1024
PIECES_PER_SECOND_MIN: Final = 2
SAVE_INTERVAL_S: Final = 10.0
REST_S_MAX: Final = 60.0
"""How long to sleep when no log is due: settings may change, and logs come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubConfig:
    """How often all logs are read again, and how fast."""

    bytes_per_second: int
    """The pace of reading; 0 switches the scrub off."""
    interval_ms: int
    """How long after its last scrub a log is due again."""


@dataclass(slots=True)
class ScrubMetrics:
    """What scrubbing has read and found since the start."""

    bytes_read: int = 0
    logs_count: int = 0
    failures_count: int = 0
    damaged_count: int = 0
    rebuilt_count: int = 0
    """Indexes of any kind that were made again."""
    scrubbing: str = ""
    """The log that is gone through now."""
    progress: float = 0.0
    """How much of that log is done."""


class Scrubber:
    """Built by the broker's assembly; nothing runs before `run`."""

    def __init__(
        self, directories: Callable[[], Sequence[LogDirectory]], clock: Clock, config: ScrubConfig
    ) -> None:
        self._directories = directories
        self._clock = clock
        self.config = config
        """May be replaced while running."""
        self.metrics = ScrubMetrics()
        self._scrubbed: dict[LogDirectory, dict[TopicPartition, int]] = {}
        """When each log was last gone through, by directory; read when first needed."""
        self._saved: dict[LogDirectory, dict[TopicPartition, int]] = {}
        self._saved_at = -SAVE_INTERVAL_S

    async def run(self) -> None:
        """Scrub until cancelled."""
        while True:
            for directory, log in await self._due():
                if self.config.bytes_per_second > 0:
                    await self.scrub(directory, log)
            await self._save_times()
            await asyncio.sleep(min(REST_S_MAX, self.config.interval_ms / 1000))

    async def _due(self) -> list[tuple[LogDirectory, PartitionLog]]:
        """The logs that have waited for long enough, longest first."""
        config, now_ms = self.config, self._clock.wall_ms()
        if config.bytes_per_second <= 0:
            return []
        waiting = [
            (last, str(log.topic_partition), directory, log)
            for directory, log, last in await self._logs()
            # A clock that was set back makes a log due at once, rather than never.
            if last > now_ms or now_ms - last >= config.interval_ms
        ]
        return [(directory, log) for _, _, directory, log in sorted(waiting, key=lambda each: each[:2])]

    async def _logs(self) -> list[tuple[LogDirectory, PartitionLog, int]]:
        found = []
        for directory in self._directories():
            times = self._scrubbed.get(directory)
            if times is None:
                path = f"{directory.path}/{checkpoints.SCRUB_TIMES}"
                times = await _in_executor(directory, checkpoints.read_offsets, directory.volume, path)
                self._scrubbed[directory] = times
            found += [
                (directory, log, times.get(log.topic_partition, 0)) for log in list(directory.logs.values())
            ]
        return found

    async def scrub(self, directory: LogDirectory, log: PartitionLog) -> None:
        """Go through one log, and note when that was."""
        metrics = self.metrics
        metrics.scrubbing, metrics.progress = str(log.topic_partition), 0.0
        done_bytes, total_bytes = 0, max(log.size_bytes, 1)
        try:
            for segment in log.segments:
                if log.is_closed or directory.offline_reason is not None:
                    return
                if segment.size_bytes and segment in log.segments:
                    await self._scrub_segment(log, segment)
                elif segment in log.segments[:-1]:
                    self._take(
                        log, segment, stored := _stored(log, segment), with_lost_end(stored, Scrubbed())
                    )
                done_bytes += segment.size_bytes
                metrics.progress = min(done_bytes / total_bytes, 1.0)
            metrics.logs_count += 1
        except MillraceError as error:
            # Most likely retention took a file away. The log has its turn again after the others.
            metrics.failures_count += 1
            logger.warning("the scrub of %s was broken off: %s", log.topic_partition, error)
        finally:
            metrics.scrubbing = ""
        self._scrubbed.setdefault(directory, {})[log.topic_partition] = self._clock.wall_ms()
        if asyncio.get_running_loop().time() - self._saved_at >= SAVE_INTERVAL_S:
            await self._save_times()

    async def _save_times(self) -> None:
        """Write down when logs were scrubbed. Not after every log, of which there may be thousands: what a
        crash loses is only scrubbed again."""
        self._saved_at = asyncio.get_running_loop().time()
        for directory, times in self._scrubbed.items():
            present = {partition: last for partition, last in times.items() if partition in directory.logs}
            self._scrubbed[directory] = present
            if directory.offline_reason is not None or present == self._saved.get(directory):
                continue
            self._saved[directory] = dict(present)
            path = f"{directory.path}/{checkpoints.SCRUB_TIMES}"
            try:
                await _in_executor(
                    directory, checkpoints.write_offsets, directory.volume, path, dict(present)
                )
            except MillraceError as error:
                logger.warning("the times of the last scrubs could not be written down: %s", error)

    async def _scrub_segment(self, log: PartitionLog, segment: Segment) -> None:
        stored = _stored(log, segment)
        handle = segment.file.handle()
        found = Scrubbed()
        loop = asyncio.get_running_loop()
        while found.position < stored.size_bytes:
            started, before = loop.time(), found.position
            rate = max(self.config.bytes_per_second, 1)
            piece = min(PIECE_BYTES_MAX, max(rate // PIECES_PER_SECOND_MIN, PIECE_BYTES_MIN))
            found = await _in_executor(log.home, scrub_some, handle, stored, found, piece)
            read_bytes = found.position - before
            self.metrics.bytes_read += read_bytes
            await asyncio.sleep(max(read_bytes / rate - (loop.time() - started), 0.0))
            if not _is_unchanged(log, segment, stored):
                return
        if found.odd_epoch >= 0 and not found.damage:
            self._read_epochs_again(log)
        found = with_lost_end(stored, found)
        if self._take(log, segment, stored, found) or stored.is_active or stored.damage:
            return
        beside = await _in_executor(log.home, check_beside, log.home.volume, stored, found)
        if _is_unchanged(log, segment, stored):
            self._put_right(log, segment, beside)

    def _read_epochs_again(self, log: PartitionLog) -> None:
        logger.error("%s: its leader epochs contradict the batches and are made again", log.path)
        epochs = past_damage(log, lambda: epochs_from_batches(log.segments))
        log.adopt(log.producers, epochs)
        save_epochs(log.home.volume, log.path, epochs, durable=True)
        self.metrics.rebuilt_count += 1

    def _take(self, log: PartitionLog, segment: Segment, stored: Stored, found: Scrubbed) -> bool:
        """Put into quarantine what was found damaged; returns whether there was something."""
        if not found.damage or segment.damage != stored.damage:
            return False
        put_in_quarantine(log.home.volume, segment, found.damage)
        self.metrics.damaged_count += len(found.damage)
        log.home.damage_found(log)
        return True

    def _put_right(self, log: PartitionLog, segment: Segment, beside: Beside) -> None:
        volume = log.home.volume
        if beside.rebuilt_indexes:
            scratch = scratch_path(segment.directory)
            segment.forget_indexes()
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                volume.rename(segment_path(scratch, segment.base_offset, suffix), segment.path(suffix))
            volume.remove_tree(scratch)
            segment.max_timestamp = -1
            log.sync_later(directory=log.path)
            self.metrics.rebuilt_count += 1
            logger.error("%s: its indexes were wrong and are made again", segment.file.path)
        if beside.aborted is not None:
            segment.replace_aborted(list(beside.aborted))
            log.aborted_replaced()
            self.metrics.rebuilt_count += 1
            logger.error(
                "%s: its index of aborted transactions was wrong and is made again", segment.file.path
            )


def _stored(log: PartitionLog, segment: Segment) -> Stored:
    segments = log.segments
    number = segments.index(segment)
    is_active = number + 1 == len(segments)
    return Stored(
        directory=segment.directory,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        upper_offset=log.log_end_offset if is_active else segments[number + 1].base_offset,
        is_active=is_active,
        damage=segment.damage,
        epoch_starts=tuple((start.epoch, start.start_offset) for start in log.epochs.starts),
        index_interval_bytes=segment.index_interval_bytes,
        compacted_end=log.compacted_end,
        log_start_offset=log.log_start_offset,
    )


def _is_unchanged(log: PartitionLog, segment: Segment, stored: Stored) -> bool:
    """Whether what a thread read is still what the log has: retention, compaction, a cut or mending may have
    changed it."""
    return (
        not log.is_closed
        and log.home.offline_reason is None
        and segment in log.segments
        and segment.directory == stored.directory
        and segment.damage == stored.damage
        and (
            segment.size_bytes == stored.size_bytes
            or (stored.is_active and log.log_end_offset >= stored.upper_offset)
        )
    )


async def _in_executor(home: LogHome, work: Callable[..., T], *arguments: object) -> T:
    lane = home.volume.lane(Waits.FILES, home.path)
    return await asyncio.get_running_loop().run_in_executor(lane, work, *arguments)
