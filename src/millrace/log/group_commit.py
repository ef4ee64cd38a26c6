"""One fsync at a time for a log, which covers everybody who waits for it.

Whoever comes while one is under way waits for the next one: the running one may have begun before his batch.
A failed fsync fences the directory, and nothing is retried on that file.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from millrace.core.errors import MillraceError
from millrace.log.errors import LogClosed, StorageError
from millrace.log.volume import FileHandle, Volume

logger: Final = logging.getLogger(__name__)


class Unsynced(Protocol):
    """What the log hands over for one fsync round."""

    log_end_offset: int
    flushed_offset: int

    def files_to_sync(self) -> tuple[list[FileHandle], list[str]]:
        """Open files, and directories whose names changed."""

    def synced(self, end_offset: int, generation: int) -> None: ...

    def sync_failed(self, error: StorageError, directories: list[str]) -> None: ...


class GroupCommit:
    __slots__ = ("_is_running", "_log", "_volume", "_waiting", "generation")

    def __init__(self, log: Unsynced, volume: Volume) -> None:
        self._log = log
        self._volume = volume
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._is_running = False
        self.generation = 0
        """Changes with a truncation: a round begun before it says nothing about what is written after."""

    def wait(self, end_offset: int) -> asyncio.Future[None]:
        """Done when everything below `end_offset` is on the disk."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((end_offset, future))
        if not self._is_running:
            self._start(loop)
        return future

    def abandon(self, error: MillraceError) -> None:
        """Tell all who wait that it will not happen."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        end_offset = self._log.log_end_offset
        generation = self.generation
        try:
            handles, directories = self._log.files_to_sync()
        except MillraceError as error:
            # The disk, the log or the whole directory is gone: they have to be told, whatever it is.
            self.abandon(error)
            return
        self._is_running = True
        round_ = loop.run_in_executor(None, sync_all, self._volume, handles, directories)

        def finished(done: asyncio.Future[None]) -> None:
            self._is_running = False
            try:
                done.result()
            except StorageError as error:
                logger.error("flush failed: %s", error)
                self._log.sync_failed(error, directories)
                self.abandon(error)
                return
            except asyncio.CancelledError:
                self.abandon(LogClosed("the broker stops"))
                return
            self._log.synced(end_offset, generation)
            self._wake(loop)

        round_.add_done_callback(finished)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        flushed_offset = self._log.flushed_offset
        # After a truncation the offset somebody waits for may be gone; then nothing is left to wait for.
        reachable = self._log.log_end_offset
        still_waiting = []
        for end_offset, future in self._waiting:
            if min(end_offset, reachable) > flushed_offset:
                still_waiting.append((end_offset, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still_waiting
        if still_waiting:
            self._start(loop)


def sync_all(volume: Volume, handles: list[FileHandle], directories: list[str]) -> None:
    for handle in handles:
        handle.sync()
    for directory in directories:
        volume.sync_directory(directory)
