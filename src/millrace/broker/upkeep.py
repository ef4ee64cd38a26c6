"""The work that goes on beside requests: retention, and the flushes that acknowledgements wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.core.clock import Clock
from millrace.log.log_directories import LogDirectories
from millrace.replica.partition import Partition

log = logging.getLogger(__name__)


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
        if done.cancelled() or done.exception() is not None:
            partition.flush_failed()
            return
        partition.flushed()
        log = partition.log
        if log.flush_is_due or (log.commits_on_flush and log.flushed_offset < log.log_end_offset):
            # Batches came while the disk was busy: they share the next flush. The periodic one may have begun
            # it already, but does not tell the partition.
            self.wanted(partition)


async def enforce_retention(
    directories: LogDirectories,
    clock: Clock,
    *,
    first_delay_ms: Callable[[], int],
    interval_ms: Callable[[], int],
) -> None:
    """Delete what is too old or too much, and forget idle producers, again and again until cancelled."""
    await asyncio.sleep(first_delay_ms() / 1000)
    while True:
        deleted = directories.enforce_retention(clock.wall_ms())
        if deleted:
            log.info("retention removed segments", extra={"segments": deleted})
        await asyncio.sleep(interval_ms() / 1000)
