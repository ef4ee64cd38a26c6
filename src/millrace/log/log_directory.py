"""One data directory on one disk: all its logs, their checkpoints, the lock, and the background work.

After a disk failure the directory is fenced: no log in it takes writes until a restart has checked what is
there. Nothing is ever deleted because a small file beside it cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.core.clock import Clock, IdSource
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition, format_topic_id
from millrace.log import checkpoints
from millrace.log.config import INT64_MAX, LogConfig
from millrace.log.errors import (
    DirectoryMismatch,
    DiskFailed,
    FileMissing,
    LogClosed,
    LogDirectoryOffline,
    ReadOnlyDisk,
    StorageError,
)
from millrace.log.group_commit import GroupCommit, Round
from millrace.log.layout import deleted_directory_name, stray_directory_name
from millrace.log.log_files import LogFiles
from millrace.log.partition_log import PartitionLog
from millrace.log.recovery import RecoveredLog, recover_log
from millrace.log.segment import Segment
from millrace.log.survey import FoundPartition, LoadProgress, Survey, survey
from millrace.log.unread_cache import CachedRange, drop
from millrace.log.volume import DirectoryLock, Volume

logger: Final = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
_META_VERSION: Final = "1"
_CONCURRENCY: Final = 4
_TOGETHER_MIN: Final = 32
"""From so many logs on, one sync of the whole disk is cheaper than one of each, whatever else lies on it."""
_PIECE: Final = 128
_TICK_S_MIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """How often the background work is done, and how much of it at once."""

    flush_interval_ms: int = 1000
    checkpoint_interval_ms: int = 60_000
    high_watermark_interval_ms: int = 5_000
    recovery_threads: int = 2
    """How many logs are checked at the same time at the start."""
    unread_cache_bytes: int | None = None
    """How much of the end of each log that nobody reads stays in the page cache; None leaves it to the
    system."""
    gives_up_unwritable: bool = False
    """Whether a file system that refuses writes takes the directory offline for good. Where others can lead,
    they should; alone it is better to wait until it is writable again."""


@dataclass(frozen=True, slots=True)
class _Removal:
    path: str
    is_tree: bool
    delay_ms: int


class LogDirectory:
    def __init__(
        self,
        volume: Volume,
        path: str,
        *,
        clock: Clock,
        ids: IdSource,
        random_source: random.Random,
        settings: DirectorySettings | None = None,
    ) -> None:
        self.volume = volume
        self.path = path
        self.settings = settings or DirectorySettings()
        self.unread_cache_bytes = self.settings.unread_cache_bytes
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline_reason: str | None = None
        self.directory_id = ""
        """Its own for all time, from its meta.properties; empty until that is read."""
        self.on_offline: Callable[[LogDirectory], None] = _nobody_listens
        """Set by the owner: told when the directory is fenced."""
        self.arriving: dict[TopicPartition, str] = {}
        """Copies that are being made here of logs in other directories, with the path of each."""
        self.progress = LoadProgress()
        self.recovered: dict[TopicPartition, RecoveredLog] = {}
        """What recovery found at this start, for those logs that needed it."""
        self._clock = clock
        self._ids = ids
        self._random = random_source
        self._lock: DirectoryLock | None = None
        self._dirty: dict[LogFiles, None] = {}
        self._resting: asyncio.Event | None = None
        """Set when there is something to flush or to remove; None while nobody waits for that."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._saved: dict[str, dict[TopicPartition, int]] = {}
        """What the checkpoints say, by file: what has not changed is not written again."""
        self._saving = asyncio.Lock()
        self._new_removals: list[_Removal] = []
        self._removals: list[tuple[float, _Removal]] = []

    # What logs ask of their home

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def roll_jitter_ms(self, jitter_ms_max: int) -> int:
        return self._random.randrange(jitter_ms_max) if jitter_ms_max > 0 else 0

    def mark_dirty(self, log: LogFiles) -> None:
        self._dirty[log] = None
        self._stir()

    def fence(self, reason: str) -> None:
        """Take no more writes: what the disk last did to them is unknown."""
        if self.offline_reason is None:
            logger.error("log directory %s goes offline: %s", self.path, reason)
            self.offline_reason = reason
            for log in self.logs.values():
                log.forbid_appends()
            self.on_offline(self)

    def write_refused(self, error: StorageError) -> None:
        """A write was not possible, and may or may not be later."""
        if error.operation == "read":
            # Other bytes may be readable, and what was written is not in doubt.
            return
        if isinstance(error, DiskFailed) or (
            self.settings.gives_up_unwritable and isinstance(error, ReadOnlyDisk | FileMissing)
        ):
            self.fence(str(error))

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._new_removals += [_Removal(path, is_tree=False, delay_ms=delay_ms) for path in paths]
        self._stir()

    # Starting

    async def open(self) -> None:
        """Create the directory if needed and keep every other broker out of it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.volume.make_directory, self.path)
        self._lock = self.volume.lock(f"{self.path}/{LOCK_FILE}")

    def ensure_identity(self, *, node_id: int, cluster_id: str) -> str:
        """Check whose directory this is, or make it ours; returns the directory's id."""
        path = f"{self.path}/{checkpoints.META_PROPERTIES}"
        found = checkpoints.read_properties(self.volume, path)
        wanted = {"version": _META_VERSION, "cluster.id": cluster_id, "node.id": str(node_id)}
        if found is None:
            self.directory_id = format_topic_id(self._ids.topic_id())
            checkpoints.write_properties(self.volume, path, {**wanted, "directory.id": self.directory_id})
            return self.directory_id
        for key, value in wanted.items():
            if found.get(key) != value:
                raise DirectoryMismatch(f"{path} has {key}={found.get(key)}, this broker has {value}")
        if "directory.id" not in found:
            found["directory.id"] = format_topic_id(self._ids.topic_id())
            checkpoints.write_properties(self.volume, path, found)
        self.directory_id = found["directory.id"]
        return self.directory_id

    def read_identity(self) -> dict[str, str] | None:
        """The pairs of meta.properties, or None for a new directory."""
        return checkpoints.read_properties(self.volume, f"{self.path}/{checkpoints.META_PROPERTIES}")

    async def load(
        self,
        config_of: Callable[[TopicPartition], LogConfig],
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
    ) -> None:
        """Find all logs. After an orderly end their sizes are believed; else each one is recovered."""
        await self.load_found(await self.survey(), config_of, on_progress)

    async def survey(self) -> Survey:
        """What lies here, for `load_found`; a mark of an orderly end is used up by it."""
        return await asyncio.get_running_loop().run_in_executor(None, survey, self.volume, self.path)

    async def load_found(
        self,
        found: Survey,
        config_of: Callable[[TopicPartition], LogConfig],
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
    ) -> None:
        """Take in the logs of a survey."""
        self.progress = found.progress()
        # A copy that is left is made anew, if at all.
        doomed = [*found.deleted, *(future.directory for future in found.futures)]
        self._new_removals += [_Removal(path, is_tree=True, delay_ms=0) for path in doomed]
        self._stir()
        on_progress(self.progress)
        untrusted = []
        for item in found.partitions.values():
            if item.segments is None:
                untrusted.append(item)
            else:
                self._add_log(
                    item, found, config_of(item.topic_partition), item.segments, item.log_end_offset
                )
                self.progress.logs_done += 1
        on_progress(self.progress)
        gate = asyncio.Semaphore(self.settings.recovery_threads)

        async def recover(item: FoundPartition) -> None:
            async with gate:
                await self._recover(item, found, config_of(item.topic_partition))
                self.progress.logs_done += 1
                on_progress(self.progress)

        await asyncio.gather(*(recover(item) for item in untrusted))
        if untrusted or not found.is_clean:
            # Also without logs: what the checkpoints say of one that is gone must not be said of the next.
            await self.save_checkpoints()

    def abandon(self, reason: str) -> None:
        """Serve nothing of it: it could not be loaded as a whole."""
        for log in self.logs.values():
            log.discard()
        self.logs.clear()
        self._dirty.clear()
        self._new_removals.clear()
        self.fence(reason)

    async def _recover(self, item: FoundPartition, found: Survey, config: LogConfig) -> None:
        loop = asyncio.get_running_loop()
        cleaned_offset = found.cleaner_offsets.get(item.topic_partition, 0)

        def work() -> RecoveredLog:
            return recover_log(
                self.volume,
                item.directory,
                recovery_point=item.log_end_offset,
                log_start_offset=found.log_starts.get(item.topic_partition, 0),
                # A topic that is not compacted any more keeps the gaps.
                compacted_end=INT64_MAX if config.cleanup_compact else cleaned_offset,
                index_interval_bytes=config.index_interval_bytes,
                now_ms=self._clock.wall_ms(),
                on_bytes=self._count_recovered,
            )

        recovered = await loop.run_in_executor(None, work)
        log = self._add_log(item, found, config, recovered.segments, recovered.log_end_offset)
        log.adopt(recovered.producers, recovered.epochs)
        self.recovered[item.topic_partition] = recovered
        logger.info(
            "%s recovered: ends at %d, %d bytes cut, %d damaged ranges",
            item.topic_partition,
            recovered.log_end_offset,
            recovered.truncated_bytes,
            len(recovered.damage),
        )

    def _count_recovered(self, size_bytes: int) -> None:
        self.progress.bytes_done += size_bytes

    def _add_log(
        self,
        item: FoundPartition,
        found: Survey,
        config: LogConfig,
        segments: list[Segment],
        log_end_offset: int,
    ) -> PartitionLog:
        log = PartitionLog(
            self,
            item.directory,
            item.topic_partition,
            item.topic_id,
            config,
            segments,
            log_end_offset=log_end_offset,
        )
        partition = item.topic_partition
        log.log_start_offset = min(
            max(log.log_start_offset, found.log_starts.get(partition, 0)), log_end_offset
        )
        log.high_watermark = min(
            max(found.high_watermarks.get(partition, 0), log.log_start_offset), log_end_offset
        )
        log.first_dirty_offset = found.cleaner_offsets.get(partition, 0)
        self.logs[partition] = log
        return log

    # Logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self.logs.get(topic_partition)

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> PartitionLog:
        """The log of this partition of this topic id.

        One with the same name and another id is put aside first.
        """
        if self.offline_reason is not None:
            raise LogDirectoryOffline(self.path, self.offline_reason)
        log = self.logs.get(topic_partition)
        if log is not None and log.topic_id not in (topic_id, NO_TOPIC_ID):
            # Of another topic with this name. Nobody has said that it was deleted.
            self.set_aside(topic_partition)
            log = None
        if log is not None:
            if log.topic_id == NO_TOPIC_ID:
                # The small file was lost, which is no reason to lose the data.
                checkpoints.write_partition_metadata(self.volume, log.path, topic_id)
                log.topic_id = topic_id
            log.set_config(config)
            return log
        directory = f"{self.path}/{topic_partition}"
        self.volume.make_directory(directory)
        checkpoints.write_partition_metadata(self.volume, directory, topic_id, durable=False)
        # Its file is made by the first append: many partitions never see one.
        segment = Segment(self.volume, directory, 0, 0, create=True)
        log = PartitionLog(self, directory, topic_partition, topic_id, config, [segment], log_end_offset=0)
        log.sync_later(f"{directory}/{checkpoints.PARTITION_METADATA}")
        log.sync_later(directory=self.path)
        self.mark_dirty(log)
        self.logs[topic_partition] = log
        return log

    async def delete(self, topic_partition: TopicPartition) -> None:
        """The log is gone at once; its files go a while later."""
        log = self.logs.get(topic_partition)
        if log is not None:
            self._put_aside(log)
            await asyncio.get_running_loop().run_in_executor(None, self.volume.sync_directory, self.path)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Take a log that belongs to no topic out of service.

        Its files are kept under another name, for people.
        """
        log = self.logs.pop(topic_partition)
        self._dirty.pop(log, None)
        log.discard()
        aside = f"{self.path}/{stray_directory_name(topic_partition, self._ids.topic_id().hex())}"
        self.volume.rename(log.path, aside)
        logger.warning("%s belongs to no topic: kept as %s", topic_partition, aside)

    def take_over(self, log: PartitionLog) -> None:
        """A log that was copied here is one of this directory's now."""
        assert log.topic_partition not in self.logs, log
        self.logs[log.topic_partition] = log

    def give_up(self, topic_partition: TopicPartition) -> None:
        """A log that was here lives elsewhere now, and its files are for whoever moved it to deal with."""
        self._dirty.pop(self.logs.pop(topic_partition), None)

    def unique(self) -> str:
        """For the name of a directory that is not to meet another."""
        return self._ids.topic_id().hex()

    def remove_tree_later(self, path: str, delay_ms: int) -> None:
        self._new_removals.append(_Removal(path, is_tree=True, delay_ms=delay_ms))
        self._stir()

    def _put_aside(self, log: PartitionLog) -> None:
        del self.logs[log.topic_partition]
        self._dirty.pop(log, None)
        log.discard()
        aside = f"{self.path}/{deleted_directory_name(log.topic_partition, self._ids.topic_id().hex())}"
        self.volume.rename(log.path, aside)
        self.remove_tree_later(aside, log.config.file_delete_delay_ms)

    # Background work

    async def run(self) -> None:
        """Flush, remove and save checkpoints until cancelled."""
        loop = self._loop = asyncio.get_running_loop()
        settings = self.settings
        next_checkpoint = loop.time() + settings.checkpoint_interval_ms / 1000
        next_high_watermark = loop.time() + settings.high_watermark_interval_ms / 1000
        while True:
            await self._rest(until_s=min(next_checkpoint, next_high_watermark))
            try:
                await self.flush_dirty()
                await self.remove_due()
                if self.offline_reason is not None:
                    continue
                if loop.time() >= next_checkpoint:
                    next_checkpoint = loop.time() + settings.checkpoint_interval_ms / 1000
                    await self.save_checkpoints()
                elif loop.time() >= next_high_watermark:
                    next_high_watermark = loop.time() + settings.high_watermark_interval_ms / 1000
                    await self._check_presence()
                    await self._save(checkpoints.HIGH_WATERMARKS, self._high_watermarks)
            except StorageError as error:
                # Disk full, most likely: the next round tries again, and appends report it themselves.
                logger.warning("background work in %s: %s", self.path, error)
                self.write_refused(error)

    async def _check_presence(self) -> None:
        """A disk that was unmounted leaves an empty directory in its place, which takes writes as well."""
        lock = f"{self.path}/{LOCK_FILE}"
        if not await asyncio.get_running_loop().run_in_executor(None, self.volume.exists, lock):
            raise FileMissing("find", lock, "the directory's content is gone")

    async def _rest(self, *, until_s: float) -> None:
        """Until it is time to flush what was written. A directory in which nothing happens is left alone
        until the next checkpoint is due."""
        # Before the look: what comes after it is told.
        stirred = self._resting = asyncio.Event()
        try:
            if self.offline_reason is None and not (self._dirty or self._new_removals or self._removals):
                async with asyncio.timeout_at(until_s):
                    await stirred.wait()
        except TimeoutError:
            return
        finally:
            self._resting = None
        await asyncio.sleep(self._tick_s())

    def _stir(self) -> None:
        """There is something to do, said by whatever thread."""
        resting = self._resting
        if resting is not None and self._loop is not None:
            self._resting = None
            self._loop.call_soon_threadsafe(resting.set)

    def _tick_s(self) -> float:
        shortest_ms = min(
            (log.config.flush_ms for log in self._dirty), default=self.settings.flush_interval_ms
        )
        return max(min(shortest_ms, self.settings.flush_interval_ms) / 1000, _TICK_S_MIN)

    async def flush_dirty(self) -> None:
        """Flush every log that was written since its last flush."""
        dirty, self._dirty = list(self._dirty), {}
        if len(dirty) >= _TOGETHER_MIN and self.volume.can_sync_everything:
            dirty = await self._flush_together(dirty)
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def flush(log: LogFiles) -> None:
            async with gate:
                try:
                    await log.flush()
                except StorageError:
                    if self.offline_reason is None:
                        self.mark_dirty(log)
                except MillraceError:
                    # Closed or fenced meanwhile; both have been reported where they happened.
                    return

        await asyncio.gather(*(flush(log) for log in dirty if not log.is_closed))

    async def _flush_together(self, dirty: list[LogFiles]) -> list[LogFiles]:
        """Flush many logs by one sync of the disk; returns those that must be flushed by themselves."""
        left: list[LogFiles] = []
        rounds: list[tuple[GroupCommit, Round]] = []
        error: MillraceError | None = LogClosed("the broker stops")
        try:
            for number, log in enumerate(dirty):
                if number % _PIECE == _PIECE - 1:
                    # Requests have waited long enough.
                    await asyncio.sleep(0)
                joined = None if log.is_closed else log.join_flush()
                if joined is None:
                    left.append(log)
                else:
                    rounds.append(joined)
            if rounds:
                loop = asyncio.get_running_loop()
                unread = [range_ for _, round_ in rounds for range_ in round_.to_sync.unread]
                await loop.run_in_executor(None, self._sync_everything, unread)
            error = None
        except StorageError as failure:
            logger.error("flush of %d logs failed: %s", len(rounds), failure)
            error = failure
        finally:
            for commit, round_ in rounds:
                commit.end(round_, error)
        return left

    def _sync_everything(self, unread: list[CachedRange]) -> None:
        self.volume.sync_everything(self.path)
        drop(unread)

    async def remove_due(self) -> None:
        """Remove the files whose delay is over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        new, self._new_removals = self._new_removals, []
        self._removals += [(now + removal.delay_ms / 1000, removal) for removal in new]
        due = [removal for due_at, removal in self._removals if due_at <= now]
        if due:
            self._removals = [(due_at, removal) for due_at, removal in self._removals if due_at > now]
            await loop.run_in_executor(None, self._remove, due)

    def _remove(self, removals: list[_Removal]) -> None:
        for removal in removals:
            try:
                if removal.is_tree:
                    self.volume.remove_tree(removal.path)
                else:
                    self.volume.remove(removal.path)
            except StorageError as error:
                logger.warning("left for the next start: %s", error)

    def enforce_retention(self, now_ms: int) -> int:
        """Delete old segments and forget idle producers everywhere; returns the number of segments."""
        deleted = 0
        for log in list(self.logs.values()):
            try:
                deleted += log.delete_old_segments(now_ms)
            except StorageError as error:
                logger.warning("retention of %s: %s", log.topic_partition, error)
            log.expire_producers(now_ms)
        return deleted

    # Checkpoints

    async def save_checkpoints(self) -> None:
        for name, offsets_now in self._checkpoints():
            await self._save(name, offsets_now)

    async def save_log_start_offsets(self) -> None:
        await self._save(checkpoints.LOG_START_OFFSETS, self._log_start_offsets)

    async def save_cleaner_offsets(self) -> None:
        await self._save(checkpoints.CLEANER_OFFSETS, self._cleaner_offsets)

    async def forget_deleted(self) -> None:
        """Let no checkpoint speak of a log that is gone: after a crash a new one with its name would be taken
        for it, and begin where the old one did, or be trusted as far."""
        try:
            for name, offsets_now in self._checkpoints():
                async with self._saving:
                    saved = self._saved.get(name)
                if saved is None or any(partition not in self.logs for partition in saved):
                    await self._save(name, offsets_now)
        except StorageError as error:
            # A full disk is no reason to keep what is to be deleted; the background work writes them later.
            logger.warning("checkpoints of %s still name deleted logs: %s", self.path, error)
            self.write_refused(error)

    def _checkpoints(self) -> Iterator[tuple[str, Callable[[], dict[TopicPartition, int]]]]:
        yield checkpoints.RECOVERY_POINTS, self._recovery_points
        yield checkpoints.LOG_START_OFFSETS, self._log_start_offsets
        yield checkpoints.HIGH_WATERMARKS, self._high_watermarks
        yield checkpoints.CLEANER_OFFSETS, self._cleaner_offsets

    async def lower_recovery_point(self, log: LogFiles) -> None:
        """After a cut: recovery must not pass over what is written in the place of flushed records."""
        async with self._saving:
            # One that was being written may have been the old one still. Until one was written, who knows.
            saved = self._saved.get(checkpoints.RECOVERY_POINTS)
        if saved is None or saved.get(log.topic_partition, 0) > log.flushed_offset:
            await self._save(checkpoints.RECOVERY_POINTS, self._recovery_points)

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {partition: log.flushed_offset for partition, log in self.logs.items()}

    def _log_start_offsets(self) -> dict[TopicPartition, int]:
        return {
            partition: log.log_start_offset
            for partition, log in self.logs.items()
            if log.log_start_offset > log.segments[0].base_offset
            # Its only file may never have been flushed: with it a power loss takes where the log began.
            or 0 < log.log_start_offset >= log.flushed_offset
        }

    def _cleaner_offsets(self) -> dict[TopicPartition, int]:
        return {
            partition: log.first_dirty_offset
            for partition, log in self.logs.items()
            if log.first_dirty_offset
        }

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition: log.high_watermark for partition, log in self.logs.items()}

    async def _save(self, name: str, offsets_now: Callable[[], dict[TopicPartition, int]]) -> None:
        """Write a checkpoint. One at a time: two that write the same file would write into each other, and
        the older one might stay."""
        async with self._saving:
            offsets = offsets_now()
            if offsets != self._saved.get(name):
                path = f"{self.path}/{name}"
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, checkpoints.write_offsets, self.volume, path, offsets)
                self._saved[name] = offsets

    # Sums

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self.logs.values())

    def free_bytes(self) -> int:
        return self.volume.free_bytes(self.path)

    def total_bytes(self) -> int:
        return self.volume.total_bytes(self.path)

    # The end

    async def close(self) -> None:
        """Flush and close all logs; the clean mark is left only if every one of them could be."""
        gate = asyncio.Semaphore(_CONCURRENCY)
        failures: list[MillraceError] = []

        async def close(log: PartitionLog) -> None:
            async with gate:
                try:
                    await log.close()
                except MillraceError as error:
                    logger.error("closing %s: %s", log.topic_partition, error)
                    failures.append(error)

        await asyncio.gather(*(close(log) for log in self.logs.values()))
        try:
            if self.offline_reason is None and not failures:
                await self.save_checkpoints()
                checkpoints.write_clean_shutdown(self.volume, self.path)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None


def _nobody_listens(_directory: LogDirectory) -> None:
    """Until the owner says who does."""
