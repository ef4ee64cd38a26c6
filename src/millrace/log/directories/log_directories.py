"""All data directories of a broker: which of them can be used, and which log lies in which.

A directory that fails takes only its own logs with it. Logs that may lie in a directory that cannot be used
are never made anew in another one: an empty log would count as the full one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from millrace.core.background import Background
from millrace.core.clock import Clock, IdSource
from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition, is_one_bit_off
from millrace.core.lanes import Waits
from millrace.log.config import LogConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.duplicates import BelongsTo, Surveyed, ask_about, resolve_duplicates
from millrace.log.directories.known_directories import (
    NOTHING_KNOWN,
    KnownDirectories,
    read_known,
    write_known,
)
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.directories.mover import Mover
from millrace.log.directories.new_logs import make_new_logs
from millrace.log.directories.survey import LoadProgress, Survey
from millrace.log.disk.volume import Volume
from millrace.log.errors import (
    LogDirectoryOffline,
    NoSuchDirectory,
    StorageError,
)
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.recovery import RecoveredLog

logger: Final = logging.getLogger(__name__)

Replica = tuple[TopicId, int]
"""A partition of a topic, whatever the topic is called."""


class LogDirectories:
    """All data directories of a broker, and the logs in them. The loop alone uses it."""

    def __init__(
        self,
        volume: Volume,
        paths: Sequence[str],
        *,
        clock: Clock,
        ids: IdSource,
        chance: random.Random,
        settings: DirectorySettings | None = None,
        move_bytes_per_second: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`move_bytes_per_second` says at any moment how fast logs may move."""
        assert paths, "a broker needs a data directory"
        self.volume = volume
        self.all: Final = tuple(
            LogDirectory(volume, path, clock=clock, ids=ids, chance=chance, settings=settings)
            for path in paths
        )
        self.mover = Mover(ids, move_bytes_per_second)
        self.unreachable: dict[Replica, None] = {}
        """Replicas of this broker whose logs lie in a directory that could not be used at the start, and new
        ones that no directory could take."""
        self.has_lost: bool = False
        """A directory of an earlier run was taken away or replaced, and its logs with it."""
        self._offline_changed: Callable[[], None] = _nobody_listens
        self._known: KnownDirectories = NOTHING_KNOWN
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        for directory in self.all:
            directory.on_offline = self._failed

    # Which can be used

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.offline_reason is None]

    @property
    def offline(self) -> dict[str, str]:
        """The reason, by path."""
        return {
            directory.path: directory.offline_reason
            for directory in self.all
            if directory.offline_reason is not None
        }

    @property
    def offline_reason(self) -> str | None:
        """Why nothing at all can be written; None while one directory is left."""
        if self.online:
            return None
        return self.all[0].offline_reason

    @property
    def hides_logs(self) -> bool:
        """Whether there may be logs in a directory that could not be used at the start."""
        return any(directory.offline_reason is not None and not directory.logs for directory in self.all)

    def at(self, path: str) -> LogDirectory:
        for directory in self.all:
            if directory.path == path.rstrip("/"):
                return directory
        raise NoSuchDirectory(path)

    def _failed(self, directory: LogDirectory) -> None:
        self.mover.cancel_all(directory)
        self._offline_changed()

    # Starting

    async def open(self) -> None:
        """Lock all directories; raises only if none can be used, or one is in use by somebody else."""
        first_error: StorageError | None = None
        for directory in self.all:
            try:
                await directory.open()
                directory.read_identity()
            except StorageError as error:
                directory.fence(str(error))
                first_error = first_error or error
        if first_error is not None and not self.online:
            raise first_error
        self._known = read_known(self.volume, [directory.path for directory in self.online])
        self._give_up_empty()

    def _give_up_empty(self) -> None:
        """A directory that is empty, and was not the last time, most likely waits for its disk."""
        identities = {directory: directory.read_identity() or {} for directory in self.online}
        found = [identity.get("directory.id") for identity in identities.values()]
        for directory, identity in identities.items():
            before = [id_ for id_, path in self._known.paths.items() if path == directory.path]
            if "directory.id" not in identity and before and before[0] not in found:
                directory.fence(
                    f"it is empty, and held {before[0]} before: is its disk mounted? To begin with an empty "
                    f"directory, take that id out of known-directories.json in the other directories"
                )

    def read_identity(self) -> dict[str, str] | None:
        """The pairs of meta.properties in the first directory that has them."""
        for directory in self.online:
            identity = directory.read_identity()
            if identity is not None:
                return identity
        return None

    def ensure_identity(self, *, node_id: int, cluster_id: str) -> tuple[str, ...]:
        """Check whose directories these are, or make them ours; returns the ids of all that belong to this
        broker, also of those that cannot be used now."""
        found = {
            directory.ensure_identity(node_id=node_id, cluster_id=cluster_id): directory.path
            for directory in self.online
        }
        offline = self.offline
        absent = {id_: path for id_, path in self._known.paths.items() if id_ not in found}
        expected = {id_: path for id_, path in absent.items() if path in offline}
        given_up = {id_: path for id_, path in absent.items() if id_ not in expected}
        for id_, path in given_up.items():
            logger.warning("the data directory %s, which was %s, is not there any more", id_, path)
        self.has_lost = bool(given_up)
        # As long as a directory is offline, nobody can tell whose logs are missing, so none is forgotten.
        paths = {**found, **(absent if offline else {})}
        if paths != self._known.paths and (len(paths) > 1 or self._known.generation):
            self._known = KnownDirectories(self._known.generation + 1, paths)
        if self._known.generation:
            for directory in self.online:
                write_known(self.volume, directory.path, self._known)
        return (*found, *expected)

    async def load(
        self,
        config_of: Callable[[TopicPartition], LogConfig],
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        belongs_to: BelongsTo = lambda topic, topic_id: None,
    ) -> None:
        """Find all logs. If a log is in two directories, the one that it was moved to counts, or the one that
        has the topic's id."""
        loop = asyncio.get_running_loop()
        surveys: dict[LogDirectory, Survey] = {}
        for directory in self.online:
            try:
                surveys[directory] = await directory.survey()
            except StorageError as error:
                self._cannot_load(directory, error)
        found_in = tuple(
            Surveyed(directory.path, directory.unique(), found) for directory, found in surveys.items()
        )
        known = ask_about(found_in, belongs_to)
        await loop.run_in_executor(None, resolve_duplicates, self.volume, found_in, known)
        unfinished = [
            (future.topic_partition, directory)
            for directory, found in surveys.items()
            for future in found.futures
        ]

        async def load(directory: LogDirectory, found: Survey) -> None:
            try:
                await directory.load_found(found, config_of, lambda _: on_progress(self.progress))
            except StorageError as error:
                self._cannot_load(directory, error)

        await asyncio.gather(*(load(directory, found) for directory, found in surveys.items()))
        for topic_partition, target in unfinished:
            self._move_on(topic_partition, target)

    def _cannot_load(self, directory: LogDirectory, error: StorageError) -> None:
        if self.online == [directory]:
            raise error
        directory.abandon(str(error))

    def _move_on(self, topic_partition: TopicPartition, target: LogDirectory) -> None:
        try:
            if self.get(topic_partition) is not None:
                self.move(topic_partition, target)
        except (StorageError, LogDirectoryOffline) as error:
            logger.warning("%s stays where it is: %s", topic_partition, error)

    def doubt_ids(self, topics: Mapping[str, TopicId]) -> None:
        """Compare with what the metadata says of topics: an id on disk with one flipped bit counts as lost,
        and is written again. Else the log would be put aside, and an empty one begun."""
        for topic_partition, log in self.logs.items():
            topic_id = topics.get(topic_partition.topic)
            if topic_id is not None and is_one_bit_off(log.topic_id, topic_id):
                logger.error("%s: a bit of the topic id in its partition.metadata is wrong", log.path)
                log.topic_id = NO_TOPIC_ID

    def expect(self, replicas: Iterable[tuple[TopicPartition, TopicId]]) -> list[Replica]:
        """Compare with what the metadata says is here; returns the replicas that have no log."""
        absent = []
        for topic_partition, topic_id in replicas:
            log = self.get(topic_partition)
            if log is None or log.topic_id not in (topic_id, NO_TOPIC_ID):
                absent.append((topic_id, topic_partition.partition))
        if self.hides_logs:
            self.unreachable = dict.fromkeys(absent)
        return absent

    @property
    def progress(self) -> LoadProgress:
        parts = [directory.progress for directory in self.all]
        return LoadProgress(
            logs_total=sum(part.logs_total for part in parts),
            logs_done=sum(part.logs_done for part in parts),
            bytes_total=sum(part.bytes_total for part in parts),
            bytes_done=sum(part.bytes_done for part in parts),
            is_clean=all(part.is_clean for part in parts),
        )

    @property
    def recovered(self) -> Mapping[TopicPartition, RecoveredLog]:
        return {
            topic_partition: recovered
            for directory in self.all
            for topic_partition, recovered in directory.recovered.items()
        }

    # Logs

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """All logs, for one step of the loop: whoever awaits something in between copies them first."""
        if len(self.all) == 1:
            return self.all[0].logs
        return {
            topic_partition: log for directory in self.all for topic_partition, log in directory.logs.items()
        }

    def tell_of_offline(self, listener: Callable[[], None]) -> None:
        """Let somebody know, on the loop, when other replicas than before are offline."""
        self._offline_changed = listener

    def tell_of_moves(self, listener: Callable[[PartitionLog, PartitionLog], None]) -> None:
        """Call `listener` at the moment in which a log begins to live in another directory, with the old log
        and the new one."""
        self.mover.tell_of_moves(listener)

    def tell_of_damage(self, listener: Callable[[], None]) -> None:
        """Let somebody know, on the loop, whenever something goes into quarantine."""
        for directory in self.all:
            directory.on_damage = listener

    def all_logs(self) -> list[PartitionLog]:
        return [log for directory in self.all for log in directory.logs.values()]

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        for directory in self.all:
            log = directory.logs.get(topic_partition)
            if log is not None:
                return log
        return None

    def home_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        for directory in self.all:
            if topic_partition in directory.logs:
                return directory
        return None

    def create(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> PartitionLog:
        """The log of this partition of this topic id; a new one is made in the preferred directory, else in
        the one with the fewest logs."""
        home = self.home_of(topic_partition)
        if home is not None:
            return home.create(topic_partition, topic_id, config)
        if (topic_id, topic_partition.partition) in self.unreachable:
            path, reason = next(iter(self.offline.items()))
            raise LogDirectoryOffline(path, reason)
        failure: StorageError | None = None
        for directory in self._candidates(topic_partition):
            try:
                log = directory.create(topic_partition, topic_id, config)
            except StorageError as error:
                failure = failure or error
                continue
            self._preferred.pop(topic_partition, None)
            return log
        raise failure or self._nowhere()

    async def create_missing(
        self, partitions: Sequence[TopicPartition], topic_id: TopicId, config: LogConfig
    ) -> None:
        """As `create`, for many at once: the disk's part of it is done off the loop.

        A thread makes directories from a description and knows no log; the tables are the loop's alone."""
        left = [each for each in partitions if self.home_of(each) is None]
        refused: dict[TopicPartition, list[LogDirectory]] = {}
        failure: StorageError | None = None
        while left:
            homes: list[LogDirectory] = []
            for each in left:
                candidates = self._candidates(each, homes)
                candidates = [home for home in candidates if home not in refused.get(each, ())]
                if not candidates:
                    raise failure or self._nowhere()
                homes.append(candidates[0])
            wanted = tuple(home.plan(each, topic_id) for each, home in zip(left, homes, strict=True))
            loop = asyncio.get_running_loop()
            outcomes = await loop.run_in_executor(
                self.volume.lane(Waits.FILES, homes[0].path), make_new_logs, self.volume, wanted
            )
            again = []
            for each, home, error in zip(left, homes, outcomes, strict=True):
                failure = failure or error
                if error is not None or home.offline_reason is not None:
                    refused.setdefault(each, []).append(home)
                    again.append(each)
                elif self.home_of(each) is None:
                    home.install(each, topic_id, config)
                    self._preferred.pop(each, None)
            left = again

    def _candidates(
        self, topic_partition: TopicPartition, planned: Sequence[LogDirectory] = ()
    ) -> list[LogDirectory]:
        """The directories for a new log, best first: the preferred one, then those with the fewest logs."""
        candidates = sorted(
            self.online,
            key=lambda directory: len(directory.logs) + len(directory.arriving) + planned.count(directory),
        )
        preferred = self._preferred.get(topic_partition)
        if preferred is not None and preferred in candidates:
            candidates.remove(preferred)
            candidates.insert(0, preferred)
        return candidates

    def _nowhere(self) -> LogDirectoryOffline:
        return LogDirectoryOffline(self.all[0].path, self.all[0].offline_reason or "")

    def prefer(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Say where to make a log that is not there yet."""
        self._preferred[topic_partition] = directory

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove a log at once, its files a while later. The deletion lasts once `forget_deleted` returns."""
        self._preferred.pop(topic_partition, None)
        self.mover.cancel(topic_partition)
        home = self.home_of(topic_partition)
        if home is not None:
            try:
                home.delete(topic_partition)
            finally:
                if home.offline_reason is not None:
                    self._offline_changed()

    async def forget_deleted(self) -> None:
        """Return when earlier deletions last; to be called once for all of them."""
        failure: StorageError | None = None
        for directory in self.all:
            try:
                await directory.forget_deleted()
            except StorageError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def set_aside(self, topic_partition: TopicPartition) -> None:
        self.mover.cancel(topic_partition)
        home = self.home_of(topic_partition)
        assert home is not None, topic_partition
        home.set_aside(topic_partition)

    def forget_unreachable(self, topic_id: TopicId, partition: int) -> None:
        """The replica lives on another broker now. Should it come back, it begins empty."""
        if (topic_id, partition) in self.unreachable:
            del self.unreachable[topic_id, partition]
            self._offline_changed()

    def cannot_place(self, topic_id: TopicId, partitions: Iterable[int]) -> None:
        """Note new replicas that no directory could take."""
        for partition in partitions:
            self.unreachable[topic_id, partition] = None
        self._offline_changed()

    def move(self, topic_partition: TopicPartition, target: LogDirectory) -> None:
        """Begin to move a log to another directory, or let it stay if it is there already."""
        home = self.home_of(topic_partition)
        assert home is not None, topic_partition
        self.mover.request(home.logs[topic_partition], home, target)

    # Background work

    def start(self, background: Background) -> list[asyncio.Task[None]]:
        """Flush, remove, save checkpoints and move logs until cancelled."""
        loops = [background.keep("log-mover", self.mover.run)]
        for number, directory in enumerate(self.all):
            loops.append(
                background.keep(
                    f"log-directory-{number}", directory.run, give_up=partial(_cannot_be_kept, directory)
                )
            )
        return loops

    def enforce_retention(self, now_ms: int) -> int:
        """Delete old segments and forget idle producers everywhere; returns the number of segments."""
        return sum(directory.enforce_retention(now_ms) for directory in self.all)

    async def save_cleaner_offsets(self, log: PartitionLog) -> None:
        """Save how far a log was compacted."""
        home = self.home_of(log.topic_partition)
        if home is not None:
            await home.save_cleaner_offsets()

    @property
    def size_bytes(self) -> int:
        return sum(directory.size_bytes for directory in self.all)

    async def close(self) -> None:
        """Flush and close all logs; each directory gets its mark of an orderly end if it had one."""
        await self.mover.stop()
        outcomes = await asyncio.gather(
            *(directory.close() for directory in self.all), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def _nobody_listens() -> None:
    """Stands in until `tell_of_offline` names a listener."""


def _cannot_be_kept(directory: LogDirectory, error: BaseException) -> None:
    """Fence a directory that nobody flushes any more: what is written there would not be safe."""
    directory.fence(f"its background work has failed again and again: {error!r}")
