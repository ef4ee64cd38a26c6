"""Moves logs between the data directories of a broker, one after the other, in the background.

A move survives a restart: the directory of the unfinished copy says where the log was to go, and the copy is
made anew. It tries again what cannot be done now (a full disk, writers that are faster).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millrace.core.clock import IdSource
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.directories.moving import NEARLY_ALL_BYTES, ROUND_BYTES_MAX, LogCopy, OriginalGone
from millrace.log.errors import (
    CorruptLog,
    DiskFailed,
    LogDirectoryOffline,
    NameTooLong,
    ReadOnlyDisk,
    StorageError,
)
from millrace.log.partition.isolation import isolate_in
from millrace.log.partition.layout import (
    FUTURE_DIRECTORY_SUFFIX,
    deleted_directory_name,
    unique_directory_name,
)
from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)

ROUNDS_PER_SECOND_MIN: Final = 4
"""With a throttle, the mover copies bytes in portions that keep the disk evenly busy."""
ROUND_BYTES_MIN: Final = 64 * 1024
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0


class Move:
    """One log on its way."""

    def __init__(self, copy: LogCopy) -> None:
        self.copy = copy
        self.failures = 0
        self.retry_at = 0.0
        self.is_cancelled = False

    @property
    def topic_partition(self) -> TopicPartition:
        return self.copy.log.topic_partition


class Mover:
    """Constructing it starts nothing. Everything but the copying itself happens on the loop."""

    def __init__(self, ids: IdSource, bytes_per_second: Callable[[], float]) -> None:
        """`bytes_per_second` says at any moment how fast to copy."""
        self.moves: dict[TopicPartition, Move] = {}
        self._bytes_per_second = bytes_per_second
        self._installed: Callable[[PartitionLog, PartitionLog], None] = _nobody_holds_logs
        self.moved_count = 0
        self._ids = ids
        self._changed = asyncio.Event()
        self._under_way: Move | None = None
        self._is_stopping = False
        self._idle: asyncio.Future[None] | None = None

    def tell_of_moves(self, listener: Callable[[PartitionLog, PartitionLog], None]) -> None:
        """Call `listener` with the log and its copy at the moment in which the copy takes the log's place."""
        self._installed = listener

    def request(self, log: PartitionLog, source: LogDirectory, target: LogDirectory) -> None:
        """Begin to move a log, or give its move another target; the log's own directory ends the move."""
        present = self.moves.get(log.topic_partition)
        if present is not None:
            if present.copy.target is target and not present.is_cancelled:
                return
            self.cancel(log.topic_partition)
        if source is target:
            return
        for directory in (source, target):
            if directory.offline_reason is not None:
                raise LogDirectoryOffline(directory.path, directory.offline_reason)
        unique = self._ids.topic_id().hex()
        name = unique_directory_name(log.topic_partition, unique, FUTURE_DIRECTORY_SUFFIX)
        if name is None:
            raise NameTooLong(log.topic_partition.topic)
        path = f"{target.path}/{name}"
        try:
            # The directory is there from now on: a restart finds it and goes on.
            target.volume.make_directory(path)
        except StorageError as error:
            target.write_refused(error)
            raise
        target.arriving[log.topic_partition] = path
        self.moves[log.topic_partition] = Move(LogCopy(log, source, target, path))
        logger.info("%s moves from %s to %s", log.topic_partition, source.path, target.path)
        self._changed.set()

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Leave a log where it is. Its unfinished copy is thrown away."""
        move = self.moves.pop(topic_partition, None)
        if move is None:
            return
        logger.info("%s stays in %s", topic_partition, move.copy.source.path)
        move.is_cancelled = True
        move.copy.stop()
        self._changed.set()
        if move is not self._under_way:
            self._throw_away(move)

    def cancel_all(self, directory: LogDirectory) -> None:
        """Let nothing move into or out of a directory that has failed."""
        for topic_partition, move in list(self.moves.items()):
            if directory in (move.copy.source, move.copy.target):
                self.cancel(topic_partition)

    async def run(self) -> None:
        """Move what is to be moved until cancelled, or until `stop`."""
        loop = asyncio.get_running_loop()
        while not self._is_stopping:
            self._changed.clear()
            move = next((move for move in self.moves.values() if move.retry_at <= loop.time()), None)
            if move is None:
                wait_s = min((move.retry_at - loop.time() for move in self.moves.values()), default=None)
                await self._wait(wait_s)
                continue
            self._under_way = move
            try:
                await self._carry_out(move)
            finally:
                self._under_way = None
                if move.is_cancelled:
                    self._throw_away(move)
                if self._idle is not None and not self._idle.done():
                    self._idle.set_result(None)

    async def stop(self) -> None:
        """Begin nothing more; returns when nothing is under way."""
        self._is_stopping = True
        self._changed.set()
        if self._under_way is not None:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def _carry_out(self, move: Move) -> None:
        try:
            await self._move(move)
        except OriginalGone:
            self.moves.pop(move.topic_partition, None)
            move.is_cancelled = True
        except MillraceError as error:
            self._failed(move, error)

    async def _move(self, move: Move) -> None:
        copy = move.copy
        copy.prepare()
        loop = asyncio.get_running_loop()
        while copy.missing_bytes() > NEARLY_ALL_BYTES:
            started = loop.time()
            rate = self._bytes_per_second()
            round_bytes = int(min(ROUND_BYTES_MAX, max(rate / ROUNDS_PER_SECOND_MIN, ROUND_BYTES_MIN)))
            copied_bytes = await copy.copy_some(round_bytes)
            if self._is_over(move):
                return
            await self._pause(move, copied_bytes / rate - (loop.time() - started))
            if self._is_over(move):
                return
        taken_over = await copy.take_over(lambda original, heir: self._taken_over(move, original, heir))
        if taken_over is None:
            if not self._is_over(move):
                raise StorageError("move", copy.log.path, "it is written to faster than it can be copied")
            return
        name = deleted_directory_name(move.topic_partition, self._ids.topic_id().hex())
        deleted_path = f"{copy.source.path}/{name}"
        try:
            await copy.finish(taken_over, deleted_path)
        except MillraceError as error:
            if taken_over.is_closed:
                # The log was deleted in the meantime, so its original has to go as well.
                copy.source.remove_tree_later(copy.moved_path, 0)
                return
            # The copy is in place. The next start deals with what is left of the original.
            logger.warning("%s has moved, but its original is left: %s", move.topic_partition, error)
            return
        copy.source.remove_tree_later(deleted_path, taken_over.config.file_delete_delay_ms)

    def _taken_over(self, move: Move, original: PartitionLog, heir: PartitionLog) -> None:
        self.moves.pop(move.topic_partition, None)
        move.copy.target.arriving.pop(move.topic_partition, None)
        self.moved_count += 1
        self._installed(original, heir)
        logger.info("%s is in %s now", move.topic_partition, move.copy.target.path)

    def _is_over(self, move: Move) -> bool:
        return move.is_cancelled or self._is_stopping

    def _failed(self, move: Move, error: MillraceError) -> None:
        copy = move.copy
        if isinstance(error, CorruptLog):
            # From then on the copy does without what is damaged; a replica mends it there as it would here.
            isolate_in(copy.log, error)
        for directory in (copy.source, copy.target):
            # Most likely retention took a missing file away: that is no fault of the disk.
            is_there = isinstance(error, StorageError) and f"{error.path}/".startswith(f"{directory.path}/")
            if is_there and isinstance(error, DiskFailed | ReadOnlyDisk):
                directory.write_refused(error)
        if move.is_cancelled:
            return
        delay_s = min(RETRY_S * 2**move.failures, RETRY_S_MAX)
        move.failures = min(move.failures + 1, 10)
        move.retry_at = asyncio.get_running_loop().time() + delay_s
        logger.warning("%s: the move goes on in %d s: %s", move.topic_partition, delay_s, error)

    def _throw_away(self, move: Move) -> None:
        target = move.copy.target
        move.copy.stop()
        if target.arriving.get(move.topic_partition) == move.copy.path:
            del target.arriving[move.topic_partition]
        target.remove_tree_later(move.copy.path, 0)

    async def _pause(self, move: Move, delay_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + delay_s
        while not self._is_over(move):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            self._changed.clear()
            await self._wait(left_s)

    async def _wait(self, delay_s: float | None) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._changed.wait()
        except TimeoutError:
            return


def _nobody_holds_logs(_original: PartitionLog, _heir: PartitionLog) -> None:
    """Stands in until `tell_of_moves` names a listener."""
