"""Many logs flushed by one sync of their disk, which costs as much as that of a few."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from millrace.core.errors import MillraceError
from millrace.log.disk.volume import WholeDisk
from millrace.log.errors import LogClosed, StorageError
from millrace.log.segments.group_commit import GroupCommit, Round
from millrace.log.segments.unread_cache import CachedRange, drop

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)

_PIECE: Final = 128


async def flush_together(
    disk: WholeDisk, dirty: Sequence[PartitionLog], lane: Executor | None = None
) -> list[PartitionLog]:
    """Flush logs by one sync of the disk; returns those that must be flushed by themselves."""
    left: list[PartitionLog] = []
    rounds: list[tuple[GroupCommit, Round]] = []
    error: MillraceError | None = LogClosed("the flush was broken off")
    try:
        for number, log in enumerate(dirty):
            if number % _PIECE == _PIECE - 1:
                # Let requests have their turn: they have waited long enough.
                await asyncio.sleep(0)
            joined = None if log.is_closed else log.join_flush()
            if joined is None:
                left.append(log)
            else:
                rounds.append(joined)
        if rounds:
            unread = tuple(range_ for _, round_ in rounds for range_ in round_.to_sync.unread)
            await asyncio.get_running_loop().run_in_executor(lane, _sync, disk, unread)
        error = None
    except StorageError as failure:
        logger.error("the flush of %d logs failed: %s", len(rounds), failure)
        error = failure
    finally:
        for commit, round_ in rounds:
            commit.end(round_, error)
    return left


def _sync(disk: WholeDisk, unread: Sequence[CachedRange]) -> None:
    """Sync the disk, then let unread ranges go from the page cache. Runs in a thread."""
    disk.sync()
    drop(unread)
