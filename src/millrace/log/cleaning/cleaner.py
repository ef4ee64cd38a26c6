"""Compacts logs in the background: picks the dirtiest, has it rewritten, puts the result in place.

The log is never locked. Closed segments do not change, and if one is deleted or cut off while it is being
rewritten, the rewritten files are thrown away and the log is looked at again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, TopicPartition
from millrace.log.cleaning.batch_filter import CompactionStats
from millrace.log.cleaning.cleaned_segment import discard_cleaned
from millrace.log.cleaning.cleaner_policy import (
    CleanerConfig,
    CleaningCase,
    assess,
    most_worth_cleaning,
    plan_job,
)
from millrace.log.cleaning.compaction import CompactionResult
from millrace.log.cleaning.compaction_runner import CompactionRunner
from millrace.log.cleaning.worker_messages import JobFailed, WorkerDied, WorkerNotStarted
from millrace.log.errors import LogClosed, LogDirectoryOffline, StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.segment import Segment

logger: Final = logging.getLogger(__name__)

DEATHS_MAX: Final = 3
"""After so many deaths of the worker over one log, the log is taken for the cause."""

_PASSING_ERRORS: Final = (LogClosed, LogDirectoryOffline, StorageError, WorkerNotStarted)
_PASSING_KINDS: Final = frozenset(
    (
        "DiskFull",
        "FileMissing",
        "DiskFailed",
        "ReadOnlyDisk",
        "TooManyOpenFiles",
        "TooLittleMemory",
        "StorageError",
        "MemoryError",
        "OSError",
        "BlockingIOError",
    )
)

LogIdentity = tuple[TopicPartition, TopicId]


@dataclass(slots=True)
class CleanerMetrics:
    """For /metrics; plain numbers that only grow unless said otherwise."""

    passes_count: int = 0
    aborted_count: int = 0
    failures_count: int = 0
    worker_deaths_count: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    tombstones_removed: int = 0
    busy_seconds: float = 0.0
    dirty_ratio_max: float = 0.0
    """The highest one that the last look at all logs found."""
    cleaning: str = ""
    """The partition being cleaned now."""
    uncleanable: dict[LogIdentity, str] = field(default_factory=dict)
    """Partitions that are left alone, with the reason."""


class LogCleaner:
    """Built by the broker's assembly; nothing runs before `run`."""

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        runner: CompactionRunner,
        clock: Clock,
        config: CleanerConfig,
        save_offsets: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        self._logs = logs
        self._runner = runner
        self._clock = clock
        self.config = config
        """May be replaced while running."""
        self._save_offsets = save_offsets
        self._deaths: dict[LogIdentity, int] = {}
        self._given_up_at: dict[LogIdentity, int] = {}
        """How often damage had been found in the directory when a log was given up."""
        self.metrics = CleanerMetrics()

    async def run(self) -> None:
        """Clean until cancelled."""
        try:
            while True:
                if not (self.config.is_enabled and await self.clean_dirtiest()):
                    await self._runner.rest()
                    await asyncio.sleep(self.config.backoff_ms / 1000)
        finally:
            await self._runner.rest()

    async def clean_dirtiest(self) -> bool:
        """Clean the log that needs it most; False if none does or the attempt has to be made again later."""
        now_ms = self._clock.wall_ms()
        case = most_worth_cleaning(self._look_at_all(now_ms))
        return case is not None and await self._clean(case, now_ms)

    def _look_at_all(self, now_ms: int) -> list[CleaningCase]:
        logs = [
            log
            for log in self._logs()
            if log.config.cleanup_compact and not log.is_closed and not log.is_moving
        ]
        self._forget_gone(logs)
        cases = []
        for log in logs:
            self._reconsider(log)
            if _identity(log) in self.metrics.uncleanable or log.home.offline_reason is not None:
                continue
            try:
                cases.append(assess(log, now_ms))
            except _PASSING_ERRORS as error:
                self._try_later(log, str(error))
            except MillraceError as error:
                self._mark_uncleanable(log, str(error), log.home.quarantined_count)
        self.metrics.dirty_ratio_max = max((case.dirty_ratio for case in cases), default=0.0)
        return cases

    def _reconsider(self, log: PartitionLog) -> None:
        """Try a log again once damage was found in its directory: the scrub finds what compaction could not
        read, so the log may be mended by now. What is still in quarantine is never cleaned."""
        found_count = self._given_up_at.get(_identity(log))
        if found_count is not None and found_count != log.home.quarantined_count:
            del self._given_up_at[_identity(log)]
            del self.metrics.uncleanable[_identity(log)]
            self._deaths.pop(_identity(log), None)

    def _forget_gone(self, logs: list[PartitionLog]) -> None:
        present = {_identity(log) for log in logs}
        for known in (self.metrics.uncleanable, self._deaths, self._given_up_at):
            for identity in [identity for identity in known if identity not in present]:
                del known[identity]

    async def _clean(self, case: CleaningCase, now_ms: int) -> bool:
        log, metrics = case.log, self.metrics
        loop = asyncio.get_running_loop()
        started, found_count = loop.time(), log.home.quarantined_count
        metrics.cleaning = str(log.topic_partition)
        try:
            job = plan_job(case, self.config, now_ms)
            originals = {
                segment.base_offset: segment
                for segment in log.segments
                if segment.base_offset < job.end_offset
            }
            result = await self._runner.run(job)
            if not await self._put_in_place(log, originals, result):
                metrics.aborted_count += 1
                return False
            log.first_dirty_offset = result.clean_offset
            await self._save_offsets(log)
        except WorkerDied as error:
            metrics.worker_deaths_count += 1
            return self._count_death(log, str(error), found_count)
        except JobFailed as error:
            if error.kind in _PASSING_KINDS:
                return self._try_later(log, str(error))
            self._mark_uncleanable(log, str(error), found_count)
            return True
        except _PASSING_ERRORS as error:
            return self._try_later(log, str(error))
        except MillraceError as error:
            self._mark_uncleanable(log, str(error), found_count)
            return True
        finally:
            metrics.cleaning = ""
            metrics.busy_seconds += loop.time() - started
        self._count(log, result.stats)
        return True

    async def _put_in_place(
        self, log: PartitionLog, originals: dict[int, Segment], result: CompactionResult
    ) -> bool:
        """Swap group after group; False if the log changed under the job, with nothing left behind."""
        waiting = list(result.groups)
        while waiting:
            group = waiting[0]
            now = {segment.base_offset: segment for segment in log.segments[:-1]}
            # Any original may hold the newer record for which an old one was dropped, so all must be there.
            is_changed = any(now.get(base) is not segment for base, segment in originals.items())
            if log.is_closed or log.is_moving or is_changed:
                break
            if not await log.replace_segments(list(group.replaces), [group.cleaned.base_offset]):
                break
            for base in group.replaces:
                del originals[base]
            del waiting[0]
        for group in waiting:
            discard_cleaned(log.home.volume, log.path, group.cleaned.base_offset)
        return not waiting

    def _count(self, log: PartitionLog, stats: CompactionStats) -> None:
        metrics = self.metrics
        metrics.passes_count += 1
        metrics.bytes_read += stats.bytes_mapped + stats.bytes_read
        metrics.bytes_written += stats.bytes_written
        metrics.records_removed += stats.records_read - stats.records_written
        metrics.tombstones_removed += stats.tombstones_removed
        self._deaths.pop(_identity(log), None)
        logger.info(
            "%s: compaction turned %d bytes into %d and kept %d of %d records",
            log.topic_partition,
            stats.bytes_read,
            stats.bytes_written,
            stats.records_written,
            stats.records_read,
        )

    def _try_later(self, log: PartitionLog, reason: str) -> bool:
        self.metrics.aborted_count += 1
        logger.info("%s: compaction was broken off and will be tried again: %s", log.topic_partition, reason)
        return False

    def _count_death(self, log: PartitionLog, reason: str, found_count: int) -> bool:
        deaths = self._deaths[_identity(log)] = self._deaths.get(_identity(log), 0) + 1
        if deaths >= DEATHS_MAX:
            self._mark_uncleanable(log, f"{reason}, {deaths} times in a row", found_count)
            return True
        return self._try_later(log, reason)

    def _mark_uncleanable(self, log: PartitionLog, reason: str, found_count: int) -> None:
        self.metrics.failures_count += 1
        self._given_up_at[_identity(log)] = found_count
        self.metrics.uncleanable[_identity(log)] = reason
        logger.error("%s cannot be compacted and is left as it is: %s", log.topic_partition, reason)


def _identity(log: PartitionLog) -> LogIdentity:
    return log.topic_partition, log.topic_id
