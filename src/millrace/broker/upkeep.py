"""The work that goes on beside requests: retention, and the flushes that acknowledgements wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.core.clock import Clock
from millrace.log.directories.log_directories import LogDirectories
from millrace.replica.partition import Partition

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""How long to wait before a flush that the disk refused is tried again."""


class Flusher:
    """Carries out the flushes that partitions ask for; each covers everybody who waits by then."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, asyncio.Future[None]] = {}

    def wanted(self, partition: Partition) -> None:
        """Flush the partition's log, and tell the partition when it is done."""
        if partition in self._waiting:
            return
        waiting = partition.log.wait_flushed(partition.log.log_end_offset)
        if waiting is None:
            partition.flushed()
            return
        self._waiting[partition] = waiting
        waiting.add_done_callback(lambda done: self._done(partition, done))

    def _done(self, partition: Partition, done: asyncio.Future[None]) -> None:
        del self._waiting[partition]
        log = partition.log
        if done.cancelled() or done.exception() is not None:
            partition.flush_failed()
            if log.commits_on_flush and not (
                done.cancelled() or log.is_closed or log.home.offline_reason is not None
            ):
                # Most likely the disk is full. What was written counts as soon as it is on disk, also if the
                # periodic flush gets it there; and whoever reads all of the log waits for that.
                asyncio.get_running_loop().call_later(RETRY_S, self.wanted, partition)
            return
        partition.flushed()
        if log.flush_is_due or (log.commits_on_flush and log.flushed_offset < log.log_end_offset):
            # Batches came while the disk was busy: they share the next flush. The periodic flush may have
            # begun to write them already, but does not tell the partition.
            self.wanted(partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPace:
    """How long after its start a broker first looks for what to delete, and how often from then on."""

    first_delay_ms: int
    interval_ms: int


async def enforce_retention(
    directories: LogDirectories, clock: Clock, pace: Callable[[], RetentionPace]
) -> None:
    """Delete what is too old or too much, and forget idle producers, again and again until cancelled."""
    await asyncio.sleep(pace().first_delay_ms / 1000)
    while True:
        deleted = directories.enforce_retention(clock.wall_ms())
        if deleted:
            logger.info("retention removed segments", extra={"segments": deleted})
        await asyncio.sleep(pace().interval_ms / 1000)
