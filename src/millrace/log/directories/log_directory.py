"""One data directory on one disk: all its logs, their checkpoints, the lock, and the background work.

After a disk failure the directory is fenced: no log in it takes writes until a restart has checked what is
there. Nothing is ever deleted because a small file beside it cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.core.clock import Clock, IdSource
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition, format_topic_id
from millrace.core.lanes import Waits
from millrace.core.threads import TellLoop
from millrace.log.config import INT64_MAX, LogConfig
from millrace.log.directories.directory_checkpoints import DirectoryCheckpoints
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.joint_flush import flush_together
from millrace.log.directories.new_logs import NewLog, make_new_log
from millrace.log.directories.survey import FoundPartition, LoadProgress, Survey, survey
from millrace.log.disk.volume import DirectoryLock, Volume, WholeDisk
from millrace.log.errors import (
    DirectoryMismatch,
    DiskFailed,
    FileMissing,
    LogDirectoryOffline,
    ReadOnlyDisk,
    StorageError,
)
from millrace.log.partition.layout import deleted_directory_name, stray_directory_name
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.recovery import RecoveredLog, recover_log
from millrace.log.segments import checkpoints
from millrace.log.segments.segment import Segment

logger: Final = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
_META_VERSION: Final = "1"
_CONCURRENCY: Final = 4
_TOGETHER_MIN: Final = 32
"""From so many logs on, one sync of the whole disk is cheaper than one of each, whatever else lies on it."""
_TICK_S_MIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Removal:
    path: str
    is_tree: bool
    delay_ms: int


class LogDirectory:
    """One data directory, the home of its logs. The loop alone uses it; what blocks goes to threads."""

    def __init__(
        self,
        volume: Volume,
        path: str,
        *,
        clock: Clock,
        ids: IdSource,
        chance: random.Random,
        settings: DirectorySettings | None = None,
    ) -> None:
        self.volume = volume
        self.path = path
        self.settings = settings or DirectorySettings()
        self.unread_cache_bytes = self.settings.unread_cache_bytes
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline_reason: str | None = None
        self.directory_id = ""
        """The id in its meta.properties, which it keeps for ever; empty until that file is read."""
        self.on_offline: Callable[[LogDirectory], None] = _nobody
        """Set by the owner; called when the directory is fenced."""
        self.on_damage: Callable[[], None] = _nobody
        """Set by the owner; called on the loop when something went into quarantine."""
        self.quarantined_count = 0
        """How often something went into quarantine since the start."""
        self.arriving: dict[TopicPartition, str] = {}
        """Copies that are being made here of logs in other directories, with the path of each."""
        self.progress = LoadProgress()
        self.recovered: dict[TopicPartition, RecoveredLog] = {}
        """What recovery found at this start, for those logs that needed it."""
        self._clock = clock
        self._ids = ids
        self._chance = chance
        self._lock: DirectoryLock | None = None
        self._disk: WholeDisk | None = None
        """Held open from before the first write on: the system must not tell others alone of a disk error."""
        self._dirty: dict[PartitionLog, None] = {}
        self._resting: asyncio.Event | None = None
        """Set when there is something to flush or to remove; None while nobody waits for that."""
        self._checkpoints = DirectoryCheckpoints(volume, path, self.logs)
        self._are_names_synced = True
        """Whether the disk knows which logs are gone from here."""
        self._new_removals: list[_Removal] = []
        self._removals: list[tuple[float, _Removal]] = []

    # What logs ask of their home

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def roll_jitter_ms(self, jitter_ms_max: int) -> int:
        return self._chance.randrange(jitter_ms_max) if jitter_ms_max > 0 else 0

    def _lane(self, waits: Waits) -> Executor | None:
        return self.volume.lane(waits, self.path)

    def mark_dirty(self, log: PartitionLog) -> None:
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
        """Judge a write that was refused: give the directory up, or let later writes try again."""
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

    def damage_found(self, log: PartitionLog) -> None:
        self.quarantined_count += 1
        self.on_damage()

    # Starting

    async def open(self) -> None:
        """Create the directory if needed and keep every other broker out of it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._lane(Waits.FILES), self.volume.make_directory, self.path)
        self._lock = self.volume.lock(f"{self.path}/{LOCK_FILE}")
        self._disk = await loop.run_in_executor(self._lane(Waits.FILES), self.volume.whole_disk, self.path)

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
        """What lies here, for `load_found`. The survey uses up the mark of an orderly end."""
        return await asyncio.get_running_loop().run_in_executor(
            self._lane(Waits.FILES), survey, self.volume, self.path
        )

    async def load_found(
        self,
        found: Survey,
        config_of: Callable[[TopicPartition], LogConfig],
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
    ) -> None:
        """Take in the logs of a survey."""
        self.progress = found.progress()
        # An unfinished copy is never completed: the move makes it anew, if it goes on at all.
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
        if untrusted or found.has_strays or not found.is_clean:
            # Also without logs: what the checkpoints say of a lost log must not hold for its successor.
            await self.save_checkpoints()

    def abandon(self, reason: str) -> None:
        """Serve nothing of this directory, because it could not be loaded as a whole."""
        for log in self.logs.values():
            log.discard()
        self.logs.clear()
        self._dirty.clear()
        self._new_removals.clear()
        self.fence(reason)

    async def _recover(self, item: FoundPartition, found: Survey, config: LogConfig) -> None:
        loop = asyncio.get_running_loop()
        cleaned_offset = found.cleaner_offsets.get(item.topic_partition, 0)

        work = partial(
            recover_log,
            self.volume,
            item.directory,
            recovery_point=item.log_end_offset,
            log_start_offset=found.log_starts.get(item.topic_partition, 0),
            high_watermark=found.high_watermarks.get(item.topic_partition, 0),
            # A topic that is not compacted any more keeps the gaps.
            compacted_end=INT64_MAX if config.cleanup_compact else cleaned_offset,
            index_interval_bytes=config.index_interval_bytes,
            now_ms=self._clock.wall_ms(),
            on_bytes=TellLoop(loop, self._count_recovered),
        )
        recovered = await loop.run_in_executor(self._lane(Waits.FILES), work)
        log = self._add_log(item, found, config, recovered.segments, recovered.log_end_offset)
        log.adopt(recovered.producers, recovered.epochs)
        self.recovered[item.topic_partition] = recovered
        logger.info(
            "%s was recovered: it ends at %d, %d bytes were cut, %d ranges are damaged",
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
        log_start, high_watermark = found.ends_of(partition, log_end_offset)
        log.log_start_offset = min(max(log.log_start_offset, log_start), log_end_offset)
        log.high_watermark = min(max(high_watermark, log.log_start_offset), log_end_offset)
        log.first_dirty_offset = found.cleaner_offsets.get(partition, 0)
        self.logs[partition] = log
        return log

    # Logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self.logs.get(topic_partition)

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> PartitionLog:
        """The log of this partition of this topic id.

        A log with the same name and another id is put aside first.
        """
        if self.offline_reason is not None:
            raise LogDirectoryOffline(self.path, self.offline_reason)
        log = self.logs.get(topic_partition)
        if log is not None and log.topic_id not in (topic_id, NO_TOPIC_ID):
            # The log belongs to another topic with this name, which nobody has said to be deleted.
            self.set_aside(topic_partition)
            log = None
        if log is not None:
            if log.topic_id == NO_TOPIC_ID:
                # The small file was lost, which is no reason to lose the data.
                checkpoints.write_partition_metadata(self.volume, log.path, topic_id)
                log.topic_id = topic_id
            log.set_config(config)
            return log
        make_new_log(self.volume, self.plan(topic_partition, topic_id))
        return self.install(topic_partition, topic_id, config)

    def plan(self, topic_partition: TopicPartition, topic_id: TopicId) -> NewLog:
        """What a thread has to be told to make the directory of a log that is not here yet."""
        aside = stray_directory_name(topic_partition, self.unique())
        return NewLog(f"{self.path}/{topic_partition}", topic_id, f"{self.path}/{aside}")

    def install(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> PartitionLog:
        """Take in a new log whose directory was made as planned."""
        assert topic_partition not in self.logs, topic_partition
        directory = f"{self.path}/{topic_partition}"
        # The first append makes its file: many partitions never see one.
        segment = Segment(self.volume, directory, 0, 0, create=True)
        log = PartitionLog(self, directory, topic_partition, topic_id, config, [segment], log_end_offset=0)
        log.sync_later(f"{directory}/{checkpoints.PARTITION_METADATA}")
        log.sync_later(directory=self.path)
        self.mark_dirty(log)
        self.logs[topic_partition] = log
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove a log at once, and its files a while later. The deletion lasts once `forget_deleted`
        returns. If the directory cannot be renamed, the log stays in the table: otherwise nobody would try
        again, and the next start would find it under its name."""
        log = self.logs.get(topic_partition)
        if log is not None:
            aside = f"{self.path}/{deleted_directory_name(topic_partition, self.unique())}"
            self._take_away(log, aside)
            self.remove_tree_later(aside, log.config.file_delete_delay_ms)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Take a log that belongs to no topic out of service.

        Its files are kept under another name, for people.
        """
        aside = f"{self.path}/{stray_directory_name(topic_partition, self.unique())}"
        self._take_away(self.logs[topic_partition], aside)
        logger.warning("%s belongs to no topic: it is kept as %s", topic_partition, aside)

    def _take_away(self, log: PartitionLog, aside: str) -> None:
        """Rename the directory, then drop the log: what cannot be renamed must stay known."""
        try:
            self.volume.rename(log.path, aside)
        except FileMissing:
            if self.volume.exists(log.path):
                raise
            # Somebody removed the directory, so nothing of it could come back.
        self._are_names_synced = False
        del self.logs[log.topic_partition]
        self._dirty.pop(log, None)
        log.discard()

    async def forget_deleted(self) -> None:
        """Return when deletions last: the disk knows the new names, and no checkpoint speaks of the deleted
        logs. Else a power loss would bring their records back; or after a crash a new log would be taken for
        a deleted one of its name, and begin where that one did, or be trusted as far."""
        if not self._are_names_synced:
            self._are_names_synced = True
            try:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._lane(Waits.SYNC), self.volume.sync_directory, self.path)
            except BaseException as error:
                # Also when the sync was cancelled: the next attempt must not confirm what nobody knows.
                self._are_names_synced = False
                if isinstance(error, StorageError):
                    self.write_refused(error)
                raise
        if self.offline_reason is not None:
            return
        try:
            await self._checkpoints.forget_deleted()
        except StorageError as error:
            # A full disk is no reason to keep what is to be deleted; the background work writes them later.
            logger.warning("checkpoints of %s still name deleted logs: %s", self.path, error)
            self.write_refused(error)

    def take_over(self, log: PartitionLog) -> None:
        """Take in a log that was copied here."""
        assert log.topic_partition not in self.logs, log
        self.logs[log.topic_partition] = log

    def give_up(self, topic_partition: TopicPartition) -> None:
        """Let go of a log that lives elsewhere now; whoever moved it deals with its files."""
        self._dirty.pop(self.logs.pop(topic_partition), None)
        # If it is deleted where it lives now, its name must not come back here.
        self._are_names_synced = False

    def unique(self) -> str:
        """A part for the name of a directory, so that it meets no other."""
        return self._ids.topic_id().hex()

    def remove_tree_later(self, path: str, delay_ms: int) -> None:
        self._new_removals.append(_Removal(path, is_tree=True, delay_ms=delay_ms))
        self._stir()

    # Background work

    async def run(self) -> None:
        """Flush, remove and save checkpoints until cancelled."""
        loop = asyncio.get_running_loop()
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
                    await self._checkpoints.save_high_watermarks()
            except StorageError as error:
                # Disk full, most likely: the next round tries again, and appends report it themselves.
                logger.warning("background work in %s failed and is tried again: %s", self.path, error)
                self.write_refused(error)
                # The work is still due: without a pause the broker would do nothing else.
                await asyncio.sleep(self._tick_s())

    async def _check_presence(self) -> None:
        """Raise FileMissing if the disk was unmounted: the empty directory in its place takes writes, too."""
        lock = f"{self.path}/{LOCK_FILE}"
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._lane(Waits.FILES), self.volume.exists, lock):
            raise FileMissing("find", lock, "the directory's content is gone")

    async def _rest(self, *, until_s: float) -> None:
        """Wait until it is time to flush what was written. A directory in which nothing happens is left alone
        until the next checkpoint is due."""
        # The event comes before the look at the work: whatever comes after the look sets it.
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
        """Wake the background work, because there is something to do."""
        if self._resting is not None:
            self._resting.set()

    def _tick_s(self) -> float:
        shortest_ms = min(
            (log.config.flush_ms for log in self._dirty), default=self.settings.flush_interval_ms
        )
        return max(min(shortest_ms, self.settings.flush_interval_ms) / 1000, _TICK_S_MIN)

    async def flush_dirty(self) -> None:
        """Flush every log that was written since its last flush."""
        dirty, self._dirty = list(self._dirty), {}
        try:
            await self._flush_each(dirty)
        except Exception:
            # Nobody knows which of the logs are on disk: to flush one twice does no harm.
            for log in dirty:
                self.mark_dirty(log)
            raise

    async def _flush_each(self, dirty: list[PartitionLog]) -> None:
        if len(dirty) >= _TOGETHER_MIN and self._disk is not None:
            dirty = await flush_together(self._disk, dirty, self._lane(Waits.SYNC))
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def flush(log: PartitionLog) -> None:
            async with gate:
                try:
                    await log.flush()
                except StorageError:
                    if self.offline_reason is None:
                        self.mark_dirty(log)
                except MillraceError:
                    # The log was closed or fenced meanwhile; both have been reported where they happened.
                    return

        await asyncio.gather(*(flush(log) for log in dirty if not log.is_closed))

    async def remove_due(self) -> None:
        """Remove the files whose delay is over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        new, self._new_removals = self._new_removals, []
        self._removals += [(now + removal.delay_ms / 1000, removal) for removal in new]
        due = [removal for due_at, removal in self._removals if due_at <= now]
        if due:
            self._removals = [(due_at, removal) for due_at, removal in self._removals if due_at > now]
            await loop.run_in_executor(self._lane(Waits.FILES), _remove, self.volume, due)

    def enforce_retention(self, now_ms: int) -> int:
        """Delete old segments and forget idle producers everywhere; returns the number of segments."""
        deleted = 0
        for log in list(self.logs.values()):
            try:
                deleted += log.delete_old_segments(now_ms)
            except MillraceError as error:
                # Whatever is wrong with one log, the others must have their turn.
                logger.warning("retention of %s failed: %s", log.topic_partition, error)
            log.expire_producers(now_ms)
        return deleted

    # Checkpoints

    async def save_checkpoints(self) -> None:
        await self._checkpoints.save_all()

    async def save_log_start_offsets(self) -> None:
        await self._checkpoints.save_log_start_offsets()

    async def save_cleaner_offsets(self) -> None:
        await self._checkpoints.save_cleaner_offsets()

    async def lower_recovery_point(self, log: PartitionLog) -> None:
        await self._checkpoints.lower_recovery_point(log)

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
        """Flush and close all logs; leave the mark of an orderly end only if all of them could be closed."""
        gate = asyncio.Semaphore(_CONCURRENCY)
        failures: list[MillraceError] = []

        async def close(log: PartitionLog) -> None:
            async with gate:
                try:
                    await log.close()
                except MillraceError as error:
                    logger.error("%s could not be closed: %s", log.topic_partition, error)
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
            self._disk = None


# Runs in a thread.


def _remove(volume: Volume, removals: list[_Removal]) -> None:
    for removal in removals:
        try:
            if removal.is_tree:
                volume.remove_tree(removal.path)
            else:
                volume.remove(removal.path)
        except StorageError as error:
            logger.warning("a removal is left for the next start: %s", error)


def _nobody(*_told: object) -> None:
    """Stands in until the owner sets a listener."""
