"""One fsync at a time for a log, which covers everybody who waits for it.

Whoever comes during an fsync waits for the next one: the running one may have begun before the batch was
written. A failed fsync fences the directory, and nothing is retried on that file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from millrace.core.errors import MillraceError
from millrace.core.lanes import Waits
from millrace.log.disk.volume import FileHandle, Volume
from millrace.log.errors import DiskFailed, LogClosed, StorageError
from millrace.log.segments.unread_cache import CachedRange, drop

logger: Final = logging.getLogger(__name__)


class ToSync(NamedTuple):
    """What one round brings to the disk."""

    open_files: Callable[[], list[FileHandle]]
    """Opens the files, for a caller that syncs each of them by itself."""
    small_files: list[str]
    directories: list[str]
    """Directories in which names changed."""
    unread: list[CachedRange]
    """What may leave the page cache afterwards."""


class Round(NamedTuple):
    """A sync that is under way."""

    to_sync: ToSync
    end_offset: int
    generation: int


class _Waiter(NamedTuple):
    end_offset: int
    round_number: int
    future: asyncio.Future[None]


class Unsynced(Protocol):
    """What the log hands over for one fsync round."""

    @property
    def path(self) -> str: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    def begin_sync(self) -> ToSync:
        """Begin to sync all that was appended so far; returns what that takes."""

    def synced(self, end_offset: int, generation: int) -> None: ...

    def sync_not_begun(self, to_sync: ToSync) -> None: ...

    def sync_failed(self, error: StorageError, to_sync: ToSync) -> None: ...


class GroupCommit:
    """The fsyncs of one log, one after the other, and all who wait for them."""

    __slots__ = (
        "_idle",
        "_is_held",
        "_log",
        "_volume",
        "_waiting",
        "generation",
        "is_running",
        "last_round_number",
    )

    def __init__(self, log: Unsynced, volume: Volume) -> None:
        self._log = log
        self._volume = volume
        self._waiting: list[_Waiter] = []
        self.is_running = False
        self.last_round_number = 0
        """The number of the round that is under way, or was last."""
        self._is_held = False
        self._idle: asyncio.Future[None] | None = None
        """Done at the end of the present round, for somebody who waits for that."""
        self.generation = 0
        """Changes with a truncation: a round begun before it says nothing about what is written after."""

    @property
    def next_round_number(self) -> int:
        return self.last_round_number + 1

    def wait(self, end_offset: int, *, round_number: int = 0) -> asyncio.Future[None]:
        """Done when everything below `end_offset` is on the disk, and the round with this number is over.

        Offsets say nothing about small files: whoever waits for those says which round takes them along."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(_Waiter(end_offset, round_number, future))
        if not self.is_running and not self._is_held:
            self._start(loop)
        return future

    async def hold(self) -> None:
        """Begin no further round until `release`; returns when none is under way."""
        self._is_held = True
        if self.is_running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def release(self) -> None:
        self._is_held = False
        if self._waiting and not self.is_running:
            self._start(asyncio.get_running_loop())

    def hand_over(self, heir: GroupCommit) -> None:
        """Have all who wait here wait for the log that has taken this one's place and has the same end."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            # The heir counts its own rounds, and its next one takes all its files along.
            number = heir.next_round_number if waiter.round_number else 0
            heir._waiting.append(waiter._replace(round_number=number))
        heir.release()

    def abandon(self, error: MillraceError) -> None:
        """Tell all who wait that the sync will not happen."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def join(self) -> Round | None:
        """Begin a round that the caller carries out together with those of other logs, and ends with `end`;
        None if there is none to begin."""
        return None if self.is_running or self._is_held else self._begin()

    def end(self, round_: Round, error: MillraceError | None) -> None:
        """End a round: what it covers is on the disk, or failed to get there."""
        self.is_running = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if error is None:
            self._log.synced(round_.end_offset, round_.generation)
            self._wake(asyncio.get_running_loop())
            return
        if isinstance(error, StorageError):
            self._log.sync_failed(error, round_.to_sync)
        else:
            # The round was broken off: nobody knows what of it is on the disk.
            self._log.sync_not_begun(round_.to_sync)
        self.abandon(error)

    def _begin(self) -> Round | None:
        end_offset = self._log.log_end_offset
        try:
            to_sync = self._log.begin_sync()
        except MillraceError as error:
            # The disk, the log or the whole directory is gone: in any case all who wait have to be told.
            self.abandon(error)
            return None
        self.is_running = True
        self.last_round_number += 1
        return Round(to_sync, end_offset, self.generation)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        round_ = self._begin()
        if round_ is None:
            return
        try:
            handles = round_.to_sync.open_files()
        except MillraceError as error:
            # Nothing was tried, so nothing is known to be broken.
            self.is_running = False
            self._log.sync_not_begun(round_.to_sync)
            self.abandon(error)
            return
        to_sync = round_.to_sync
        work = loop.run_in_executor(
            self._volume.lane(Waits.SYNC, self._log.path),
            sync_all,
            self._volume,
            tuple(handles),
            tuple(to_sync.directories),
            tuple(to_sync.unread),
        )

        def finished(done: asyncio.Future[None]) -> None:
            error: MillraceError | None = None
            try:
                done.result()
            except StorageError as failure:
                logger.error("a flush failed: %s", failure)
                error = failure
            except asyncio.CancelledError:
                error = LogClosed("the broker stops")
            except Exception as bug:
                # Whatever it is, nobody may wait for ever, and nothing may count as stored.
                logger.exception("a flush failed unexpectedly")
                error = DiskFailed("sync", "a log", repr(bug))
            self.end(round_, error)

        work.add_done_callback(finished)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        flushed_offset = self._log.flushed_offset
        # After a truncation the offset somebody waits for may be gone; then nothing is left to wait for.
        reachable = self._log.log_end_offset
        still_waiting = []
        for waiter in self._waiting:
            if (
                min(waiter.end_offset, reachable) > flushed_offset
                or waiter.round_number > self.last_round_number
            ):
                still_waiting.append(waiter)
            elif not waiter.future.done():
                waiter.future.set_result(None)
        self._waiting = still_waiting
        if still_waiting and not self._is_held:
            self._start(loop)


def sync_all(
    volume: Volume, handles: Sequence[FileHandle], directories: Sequence[str], unread: Sequence[CachedRange]
) -> None:
    """Sync files and names, then let unread ranges go from the page cache. Runs in a thread."""
    for handle in handles:
        handle.sync()
    for directory in directories:
        volume.sync_directory(directory)
    drop(unread)
