"""The files behind one partition's log: when they are read, rolled, flushed and closed.

`PartitionLog` adds what its owner asks: append and read. State is read when first needed, because thousands
of idle partitions must start fast and stay small.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH, TopicId, TopicPartition
from millrace.core.override import override
from millrace.log.batches.validation import is_preparation_needed
from millrace.log.config import INT64_MAX, LogConfig
from millrace.log.disk.volume import FileHandle
from millrace.log.errors import (
    DiskFull,
    LogClosed,
    LogDirectoryOffline,
    StorageError,
    TooLittleMemory,
    TooManyOpenFiles,
    is_shortage,
)
from millrace.log.partition.aborted_bounds import AbortedBounds
from millrace.log.partition.isolation import past_damage
from millrace.log.partition.log_home import LogHome
from millrace.log.segments.group_commit import GroupCommit, Round, ToSync
from millrace.log.segments.segment import Segment
from millrace.log.segments.unread_cache import CachedRange, take_unread
from millrace.log.state import producer_snapshots
from millrace.log.state.epochs import FILE_NAME as EPOCHS_FILE
from millrace.log.state.epochs import (
    LeaderEpochs,
    epochs_from_batches,
    is_contradicted,
    load_epochs,
    save_epochs,
)
from millrace.log.state.producer_state import ProducerStates

logger: Final = logging.getLogger(__name__)


StagedBatch: TypeAlias = tuple[bytearray, int, int, int, int, int, int, object]
"""The batch with its offsets in it; base offset, last offset, largest timestamp; producer id, producer epoch,
last sequence; what the owner wants back."""
SettledCallback: TypeAlias = Callable[[list[StagedBatch], MillraceError | None], None]


class LogFiles:
    """Single writer: the loop's thread. For the attributes without underscore see PartitionLog's users."""

    __slots__ = (
        "__weakref__",
        "_aborted_bounds",
        "_active",
        "_are_epochs_saved",
        "_bases",
        "_cached_bytes_max",
        "_commit",
        "_directories_to_sync",
        "_epochs",
        "_files_to_sync",
        "_flush_at",
        "_home",
        "_is_closed",
        "_is_dirty",
        "_is_tail_open",
        "_is_torn",
        "_latest_epoch",
        "_producers",
        "_segments",
        "_staged",
        "_staged_bytes",
        "_staged_end_offset",
        "_staged_producers",
        "commits_on_flush",
        "config",
        "cut_offset",
        "first_dirty_offset",
        "flush_is_due",
        "flushed_offset",
        "high_watermark",
        "is_moving",
        "log_end_offset",
        "log_start_offset",
        "path",
        "prepares_batches",
        "settled",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        home: LogHome,
        path: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_end_offset: int,
    ) -> None:
        assert segments, path
        self._home = home
        self.path = path
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self.log_start_offset = segments[0].base_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_end_offset
        self.flushed_offset = log_end_offset
        self.first_dirty_offset = 0
        """Where the next compaction begins; the cleaner keeps it, its checkpoint saves it."""
        self.is_moving = False
        """A copy is being made of it in another directory: segments must not be rewritten meanwhile."""
        self.cut_offset = INT64_MAX
        """The lowest offset that the log was cut to, for whoever copies it and puts this back."""

        # Read when first needed: thousands of idle partitions must start fast and stay small.
        self._producers: ProducerStates | None = None
        self._aborted_bounds: AbortedBounds | None = None
        self._epochs: LeaderEpochs | None = None
        self._latest_epoch: int = NO_EPOCH
        self._are_epochs_saved = True
        self._commit: GroupCommit | None = None
        self._cached_bytes_max: int | None = None
        self._files_to_sync: list[str] | None = None
        self._directories_to_sync: list[str] | None = None
        self._is_tail_open = False
        self._is_torn = False
        self._is_dirty = False
        self._is_closed = False
        self.config = config
        self._flush_at = INT64_MAX
        self.flush_is_due = False
        """Set by appends once `flush.messages` are not on disk; whoever appends asks for the flush."""
        self.commits_on_flush = False
        """With flush.messages=1 nothing may be acknowledged or shown before it is on disk."""
        self.prepares_batches = False
        """Whether batches must pass `validation.prepare` before they are appended."""
        # Batches that were checked and have their offsets, but are not written: see `settle`.
        self._staged: list[StagedBatch] = []
        self._staged_bytes = 0
        self._staged_end_offset = 0
        self._staged_producers: dict[int, tuple[int, int]] = {}
        self.settled: SettledCallback | None = None
        """Told of staged batches once they are written, or why they are not. Set by the owner."""
        self.set_config(config)

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic_partition} {self.log_start_offset}-{self.log_end_offset}>"

    # State that is read when first needed

    @property
    def producers(self) -> ProducerStates:
        return self._producers if self._producers is not None else self._load_producers()

    @property
    def epochs(self) -> LeaderEpochs:
        if self._epochs is None:
            epochs = load_epochs(self._home.volume, self.path)
            if epochs is not None:
                check = partial(is_contradicted, epochs, self._segments, end_offset=self.log_end_offset)
                epochs = None if past_damage(self, check) else epochs
            if epochs is None:
                # Unknown is not "epoch 0": the batches know.
                epochs = past_damage(self, lambda: epochs_from_batches(self._segments))
            self._epochs = epochs
            self._latest_epoch = epochs.latest
        return self._epochs

    def _load_producers(self) -> ProducerStates:
        if not self._is_tail_open and not self._is_closed:
            self._open_tail()
        if self._producers is None:
            self._producers = past_damage(
                self,
                lambda: producer_snapshots.load_producers(
                    self._home.volume,
                    self.path,
                    self._segments,
                    log_start_offset=self.log_start_offset,
                    end_offset=self.log_end_offset,
                    high_watermark=self.high_watermark,
                    now_ms=self._home.wall_ms(),
                ),
            )
        return self._producers

    def _open_tail(self) -> None:
        """Learn from the files what appending needs; until now sizes and the checkpoint were believed."""
        segment = self._active
        file_size = segment.file.size_bytes()
        if file_size != segment.size_bytes:
            logger.warning("%s: file has %d bytes, expected %d", self, file_size, segment.size_bytes)
            segment.size_bytes = min(file_size, segment.size_bytes)
            self._is_torn = True
        next_offset = past_damage(self, segment.open_tail)
        if next_offset != self.log_end_offset:
            logger.warning("%s: the last batch ends at %d", self, next_offset)
            self.log_end_offset = next_offset
            self.flushed_offset = min(self.flushed_offset, next_offset)
        self._is_tail_open = True
        self.epochs  # noqa: B018 - read now, so that the append path can compare
        self._load_producers()

    def adopt(self, producers: ProducerStates | None, epochs: LeaderEpochs | None) -> None:
        """For recovery: state that was computed while the log was read."""
        self._producers = producers
        if epochs is not None:
            self._epochs = epochs
            self._latest_epoch = epochs.latest

    # Leader epochs

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def start_epoch(self, epoch: int) -> None:
        """From here on batches are written under this leader epoch."""
        epochs = self.epochs
        assert epoch >= epochs.latest, (epoch, epochs.latest)
        if epochs.assign(epoch, self.log_end_offset):
            self.epochs_changed()
        self._latest_epoch = epochs.latest

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to the one asked for, and where it ends; (-1, -1) if unknown."""
        return self.epochs.end_offset_of(epoch, self.log_end_offset)

    def last_record_epoch(self) -> int:
        """The leader epoch of the last record, or -1 if the log is empty or does not know."""
        if self.log_end_offset == self.log_start_offset:
            return NO_EPOCH
        return self.epochs.epoch_at(self.log_end_offset - 1)

    def epochs_changed(self) -> None:
        """Save them now, or with the next flush if that is not possible: the batches carry them too."""
        self._latest_epoch = self.epochs.latest
        self._are_epochs_saved = False
        try:
            self._save_epochs()
        except (DiskFull, TooManyOpenFiles, TooLittleMemory):
            return
        except StorageError as error:
            self._home.write_refused(error)
            raise

    def _save_epochs(self) -> None:
        save_epochs(self._home.volume, self.path, self.epochs, durable=False)
        self._are_epochs_saved = True
        self.sync_later(f"{self.path}/{EPOCHS_FILE}")

    # Segments

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one is active."""
        return tuple(self._segments)

    @property
    def compacted_end(self) -> int:
        """Up to here offsets may be missing by compaction; behind it every gap is a loss."""
        return INT64_MAX if self.config.cleanup_compact else self.first_dirty_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def settle(self) -> MillraceError | None:
        """Write what is staged, in PartitionLog: whoever changes the end of the log calls it first."""

    def _roll(self) -> Segment:
        """Begin a new segment at the end of the log. If that fails, nothing has changed.

        The first append takes the slow way, which opens the segment: its batch says from when on the
        segment's time counts."""
        self._check_writable()
        if self._staged:
            self.settle()
        if not self._is_tail_open:
            self._open_tail()
        old = self._active
        base_offset = self.log_end_offset
        if old.size_bytes == 0 and old.base_offset == base_offset:
            return old
        volume = self._home.volume
        old.finish_indexes()
        snapshot = producer_snapshots.save_snapshot(volume, self.path, base_offset, self.producers)
        segment = Segment(volume, self.path, base_offset, 0, create=True)
        try:
            segment.file.truncate(0)
        except StorageError:
            self._take_back(segment)
            raise
        old.seal()
        self.sync_later(snapshot, directory=self.path)
        self.set_segments([*self._segments, segment])
        if not self._is_dirty:
            self._became_dirty()
        return segment

    def _take_back(self, segment: Segment) -> None:
        """Leave no file where a segment did not begin: the present one may grow beyond its offset, and the
        next start would take both for segments that overlap."""
        segment.close()
        try:
            self._home.volume.remove(segment.file.path)
        except StorageError:
            # Then the next append has to begin it.
            self._active.size_limit = 0

    def set_segments(self, segments: list[Segment]) -> None:
        """For the modules that change the list: the last one becomes active."""
        assert segments, self
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]

    async def roll(self) -> None:
        self._roll()

    def set_config(self, config: LogConfig) -> None:
        """Takes effect with the next append."""
        self.config = config
        self.commits_on_flush = config.flush_messages == 1
        self.prepares_batches = is_preparation_needed(config)
        self._set_flush_mark(self.flushed_offset)
        for segment in self._segments:
            segment.index_interval_bytes = config.index_interval_bytes
        self._active.forbid_appends()

    # Caching

    def expect_readers(self) -> None:
        """Whatever is written may be read again: the page cache is the system's business."""
        self._cached_bytes_max = None

    def expect_no_readers(self) -> None:
        """Nobody reads here until this replica leads: only the end stays in the page cache."""
        self._cached_bytes_max = self._home.unread_cache_bytes

    # Flushing

    def wait_flushed(self, offset: int) -> asyncio.Future[None] | None:
        """A future for when everything below `offset` is on disk; None if it is already."""
        if offset <= self.flushed_offset:
            return None
        commit = self._commit
        if commit is None:
            commit = self._commit = GroupCommit(self, self._home.volume)
        return commit.wait(offset)

    async def hold_flushes(self) -> None:
        """Let nothing more reach the disk until `release_flushes`; whoever waits for it waits longer."""
        if self._commit is None:
            self._commit = GroupCommit(self, self._home.volume)
        await self._commit.hold()

    def release_flushes(self) -> None:
        if self._commit is not None:
            self._commit.release()

    async def flush(self) -> None:
        """Return when all that was appended before the call is on disk, and so is every small file and name
        that was handed to `sync_later` before it."""
        commit = self._commit
        if commit is None:
            commit = self._commit = GroupCommit(self, self._home.volume)
        if self._files_to_sync or self._directories_to_sync:
            # A round that is under way has not taken them along.
            await commit.wait(self.log_end_offset, round_number=commit.next_round_number)
        elif commit.is_running or self.log_end_offset > self.flushed_offset:
            await commit.wait(self.log_end_offset, round_number=commit.last_round_number)

    def join_flush(self) -> tuple[GroupCommit, Round] | None:
        """As `flush`, for somebody who brings many logs to the disk at once; None if nothing is to be done or
        a flush is under way."""
        if self._commit is None:
            self._commit = GroupCommit(self, self._home.volume)
        round_ = self._commit.join()
        return None if round_ is None else (self._commit, round_)

    def begin_sync(self) -> ToSync:
        self._check_writable()
        if not self._are_epochs_saved:
            self._save_epochs()
        self._active.store_aborted()
        # From here on nothing fails, or what is taken out of the lists would be synced by nobody.
        volume = self._home.volume
        first = max(bisect_right(self._bases, self.flushed_offset) - 1, 0)
        active = self._active if self.log_end_offset > self.flushed_offset else None
        segments = [each for each in self._segments[first:] if each is not self._active or active is not None]
        files, self._files_to_sync = self._files_to_sync or [], None
        directories, self._directories_to_sync = self._directories_to_sync or [], None
        # New appends after this moment make the log dirty again.
        self._is_dirty = False
        self._set_flush_mark(self.log_end_offset)
        try:
            self._active.store_indexes()
        except StorageError as error:
            # The entries wait in memory, and a crash makes them anew: what is to last is the batches.
            self._home.write_refused(error)
        unread: list[CachedRange] = []
        if self._cached_bytes_max is not None and not self.config.cleanup_compact:
            # Whoever compacts a log reads all of it.
            unread = take_unread(self._segments, self._cached_bytes_max)

        def open_files() -> list[FileHandle]:
            opened: list[FileHandle] = []
            for segment in segments:
                opened += segment.handles_to_sync(with_indexes=segment is not active)
            return opened + [volume.file(path).handle() for path in files if volume.exists(path)]

        return ToSync(open_files, files, directories, unread)

    def synced(self, end_offset: int, generation: int) -> None:
        assert self._commit is not None
        if generation == self._commit.generation and end_offset > self.flushed_offset:
            self.flushed_offset = end_offset

    def sync_not_begun(self, to_sync: ToSync) -> None:
        self._became_dirty()
        for file in to_sync.small_files:
            self.sync_later(file)
        for directory in to_sync.directories:
            self.sync_later(directory=directory)

    def sync_failed(self, error: StorageError, to_sync: ToSync) -> None:
        if self._is_closed:
            # Deleted while the flush was under way: its names are gone, which says nothing about the disk.
            return
        self.sync_not_begun(to_sync)
        if is_shortage(error):
            # Nothing counts as stored, and the next flush takes all of it along.
            self._set_flush_mark(self.flushed_offset)
            return
        self._home.fence(str(error))

    def sync_later(self, file: str | None = None, *, directory: str | None = None) -> None:
        """Include a small file or a directory's names in the next flush."""
        if file is not None:
            files = self._files_to_sync
            if files is None:
                files = self._files_to_sync = []
            if file not in files:
                files.append(file)
            directory = self.path
        if directory is not None:
            directories = self._directories_to_sync
            if directories is None:
                directories = self._directories_to_sync = []
            if directory not in directories:
                directories.append(directory)

    def _set_flush_mark(self, flushed_offset: int) -> None:
        self._flush_at = flushed_offset + self.config.flush_messages - 1
        self.flush_is_due = self.log_end_offset > self._flush_at

    # Writing

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LogClosed(f"{self.topic_partition} is closed")
        if self._home.offline_reason is not None:
            raise LogDirectoryOffline(self._home.path, self._home.offline_reason)

    def _became_dirty(self) -> None:
        self._is_dirty = True
        self._home.mark_dirty(self)

    def forbid_appends(self) -> None:
        """For the home, when it was fenced: the next append finds out why."""
        self._active.forbid_appends()

    # The end

    async def close(self) -> None:
        """Flush, leave a snapshot and let go of the files; the log can be trusted at the next start."""
        if self._is_closed:
            return
        if self._staged:
            self.settle()
        if self._home.offline_reason is None:
            self.finish_files()
            await self.flush()
        self._shut(LogClosed(f"{self.topic_partition} was closed"))

    def finish_files(self) -> None:
        """Bring all files into the state of an orderly end, as far as this process changed them."""
        if not self._is_tail_open:
            return
        if not self._are_epochs_saved:
            self._save_epochs()
        if self._is_torn:
            self._active.file.truncate(self._active.size_bytes)
            self._is_torn = False
        self._active.finish_indexes()
        if self._producers is not None and (self._producers.entries or len(self._segments) > 1):
            snapshot = producer_snapshots.save_snapshot(
                self._home.volume, self.path, self.log_end_offset, self._producers
            )
            self.sync_later(snapshot)
            producer_snapshots.remove_snapshots(self._home.volume, self.path, keep=self._bases)

    def discard(self) -> None:
        """Let go without writing anything: the log is deleted, or the process acts as if it had crashed."""
        self._shut(LogClosed(f"{self.topic_partition} was deleted"))

    def _shut(self, error: LogClosed) -> None:
        self._is_closed = True
        if self._staged:
            # They fail: nothing is written to a closed log.
            self.settle()
        self._active.forbid_appends()
        if self._commit is not None:
            self._commit.abandon(error)
        for segment in self._segments:
            segment.forget_indexes()

    # For the modules beside this one

    def succeed(self, original: LogFiles) -> None:
        """Take the place of a log of which this one is a copy, byte for byte, in another directory."""
        self.log_start_offset = original.log_start_offset
        self.high_watermark = original.high_watermark
        self.first_dirty_offset = original.first_dirty_offset
        # If a power loss takes the new name back, it is the original that counts.
        self.flushed_offset = original.flushed_offset
        self.adopt(original._producers, original._epochs)
        # The copy of their file may be a little older.
        self._are_epochs_saved = False
        self._set_flush_mark(self.flushed_offset)
        self._became_dirty()

    def retire(self, heir: LogFiles) -> None:
        """The heir has taken this one's place: nothing is written here any more, and nobody notices."""
        self._is_closed = True
        self._active.forbid_appends()
        if self._commit is not None:
            if heir._commit is None:
                heir._commit = GroupCommit(heir, heir._home.volume)
            self._commit.hand_over(heir._commit)

    @property
    def home(self) -> LogHome:
        return self._home

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def require_writable_tail(self) -> None:
        self._check_writable()
        if not self._is_tail_open:
            self._open_tail()

    def roll_now(self) -> Segment:
        return self._roll()

    def end_moved_back(self, offset: int) -> None:
        """After a truncation: nothing computed from what is gone may survive."""
        self.log_end_offset = offset
        self.cut_offset = min(self.cut_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        # What takes the place of the lost records was never compacted.
        self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self._set_flush_mark(self.flushed_offset)
        if self._commit is not None:
            self._commit.generation += 1
        self._producers = None
        self._aborted_bounds = None
        self._is_tail_open = False
        self._is_torn = False
        self._active.forbid_appends()
        self.high_watermark = min(self.high_watermark, offset)
