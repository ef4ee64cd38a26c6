"""What of a log is not on the disk yet, and how a flush brings it there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from millrace.log.config import INT64_MAX
from millrace.log.disk.volume import FileHandle
from millrace.log.errors import LogClosed, StorageError, is_shortage
from millrace.log.segments.group_commit import GroupCommit, Round, ToSync
from millrace.log.segments.unread_cache import CachedRange, take_unread

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

_ANY_APPEND: Final = -1


class Flushing:
    """A part of PartitionLog: what its next flush takes along, and who waits for it."""

    __slots__ = (
        "_cached_bytes_max",
        "_commit",
        "_directories",
        "_files",
        "_flush_at",
        "_is_dirty",
        "_log",
        "notice_at",
    )

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._commit: GroupCommit | None = None
        self._files: list[str] | None = None
        self._directories: list[str] | None = None
        self._cached_bytes_max: int | None = None
        self._is_dirty = False
        """Whether the log's home knows that there is something to flush."""
        self._flush_at = INT64_MAX
        """The record with this offset makes a flush due."""
        self.notice_at = _ANY_APPEND
        """Whoever has appended a record with this offset or a later one has to call `wrote`."""

    # What the next flush takes along

    def wrote(self, last_offset: int) -> None:
        """Note that batches up to this offset were appended."""
        if not self._is_dirty:
            self._become_dirty()
        if last_offset >= self._flush_at:
            self._log.flush_is_due = True

    def mark_dirty(self) -> None:
        """Have the log's home flush the log some time, also if nothing was appended."""
        if not self._is_dirty:
            self._become_dirty()

    def _become_dirty(self) -> None:
        self._is_dirty = True
        self.notice_at = self._flush_at
        self._log.home.mark_dirty(self._log)

    def sync_later(self, file: str | None, directory: str | None) -> None:
        """Include a small file or a directory's names in the next flush."""
        if file is not None:
            if self._files is None:
                self._files = []
            if file not in self._files:
                self._files.append(file)
            directory = self._log.path
        if directory is not None:
            if self._directories is None:
                self._directories = []
            if directory not in self._directories:
                self._directories.append(directory)

    def count_from(self, flushed_offset: int) -> None:
        """Let a flush be due when `flush.messages` follow this offset."""
        log = self._log
        self._flush_at = flushed_offset + log.config.flush_messages - 1
        log.flush_is_due = log.log_end_offset > self._flush_at
        self.notice_at = self._flush_at if self._is_dirty else _ANY_APPEND

    def expect_readers(self) -> None:
        """Leave the page cache to the system: whatever is written may be read again."""
        self._cached_bytes_max = None

    def expect_no_readers(self) -> None:
        """Keep only the end of the log in the page cache."""
        self._cached_bytes_max = self._log.home.unread_cache_bytes

    # Who waits

    @property
    def _group_commit(self) -> GroupCommit:
        if self._commit is None:
            self._commit = GroupCommit(self, self._log.home.volume)
        return self._commit

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future for when everything below `offset` is on disk."""
        return self._group_commit.wait(offset)

    async def flush(self) -> None:
        """Return when all that was appended before the call is on disk, and so is every small file and name
        that was handed to `sync_later` before it."""
        log, commit = self._log, self._group_commit
        if self._files or self._directories:
            # A round that is under way has not taken these along.
            await commit.wait(log.log_end_offset, round_number=commit.next_round_number)
        elif commit.is_running or log.log_end_offset > log.flushed_offset:
            await commit.wait(log.log_end_offset, round_number=commit.last_round_number)

    def join(self) -> tuple[GroupCommit, Round] | None:
        """Begin a flush that the caller carries out together with those of other logs; None if there is
        nothing to flush or a flush is under way."""
        commit = self._group_commit
        round_ = commit.join()
        return None if round_ is None else (commit, round_)

    async def hold(self) -> None:
        """Begin no flush until `release`; whoever waits for one waits longer."""
        await self._group_commit.hold()

    def release(self) -> None:
        if self._commit is not None:
            self._commit.release()

    def abandon(self, error: LogClosed) -> None:
        """Tell all who wait that the flush will not happen."""
        if self._commit is not None:
            self._commit.abandon(error)

    def hand_over(self, heir: Flushing) -> None:
        """Have all who wait here wait for the log that takes this one's place."""
        if self._commit is not None:
            self._commit.hand_over(heir._group_commit)

    def end_moved_back(self) -> None:
        """Note that the log was cut: a round under way says nothing about what is written from now on."""
        if self._commit is not None:
            self._commit.generation += 1
        self.count_from(self._log.flushed_offset)

    # What GroupCommit asks (see its protocol `Unsynced`)

    @property
    def path(self) -> str:
        return self._log.path

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    def begin_sync(self) -> ToSync:
        log = self._log
        log.check_writable()
        log.state.save_epochs()
        active = log.segment_list.active
        active.store_aborted()
        # From here on nothing may fail, or nobody would sync what is taken out of the lists.
        volume = log.home.volume
        newest = active if log.log_end_offset > log.flushed_offset else None
        unflushed = log.segment_list.all[log.segment_list.number_at(log.flushed_offset) :]
        segments = [each for each in unflushed if each is not active or newest is not None]
        files, self._files = self._files or [], None
        directories, self._directories = self._directories or [], None
        # New appends after this moment make the log dirty again.
        self._is_dirty = False
        self.count_from(log.log_end_offset)
        try:
            active.store_indexes()
        except StorageError as error:
            # The entries wait in memory, and a crash costs nothing: recovery makes them from the batches.
            log.home.write_refused(error)

        def open_files() -> list[FileHandle]:
            opened: list[FileHandle] = []
            for segment in segments:
                opened += segment.handles_to_sync(with_indexes=segment is not newest)
            return opened + [volume.file(path).handle() for path in files if volume.exists(path)]

        return ToSync(open_files, files, directories, self._take_unread())

    def _take_unread(self) -> list[CachedRange]:
        """The ranges that need not stay in the page cache."""
        log = self._log
        if self._cached_bytes_max is None or log.config.cleanup_compact:
            # Whoever compacts a log reads all of it.
            return []
        return take_unread(log.segment_list.all, self._cached_bytes_max)

    def synced(self, end_offset: int, generation: int) -> None:
        assert self._commit is not None
        if generation == self._commit.generation and end_offset > self._log.flushed_offset:
            self._log.flushed_offset = end_offset

    def sync_not_begun(self, to_sync: ToSync) -> None:
        self._become_dirty()
        for file in to_sync.small_files:
            self.sync_later(file, None)
        for directory in to_sync.directories:
            self.sync_later(None, directory)

    def sync_failed(self, error: StorageError, to_sync: ToSync) -> None:
        log = self._log
        if log.is_closed:
            # The log was deleted during the flush: missing names say nothing about the disk.
            return
        self.sync_not_begun(to_sync)
        if is_shortage(error):
            # Nothing counts as stored, and the next flush takes all of it along.
            self.count_from(log.flushed_offset)
            return
        log.home.fence(str(error))

    def succeed(self) -> None:
        """Begin in the place of another log: count from what that one had flushed, and flush this one."""
        self.count_from(self._log.flushed_offset)
        self._become_dirty()
