"""Which compacted log is most worth cleaning, and how far it may be cleaned. Reads state, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from millrace.log.cleaning.batch_filter import LastOfProducer
from millrace.log.cleaning.compaction import CompactionJob, SegmentToClean
from millrace.log.config import INT64_MAX
from millrace.log.errors import FileMissing
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment
from millrace.wire.compression import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The broker's settings `log.cleaner.*`."""

    is_enabled: bool = True
    backoff_ms: int = 15_000
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    io_buffer_bytes: int = 512 * 1024
    io_bytes_per_second: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningCase:
    """How dirty one log is."""

    log: PartitionLog
    first_dirty_offset: int
    end_offset: int
    """The first offset that must not be touched: always where a segment begins."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """A record is older than `max.compaction.lag.ms` and was not compacted yet."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio >= self.log.config.min_cleanable_dirty_ratio


def assess(log: PartitionLog, now_ms: int) -> CleaningCase:
    """Look at a compacted log: what was cleaned, what may be, and whether it is time."""
    segments = log.segments
    first_dirty_offset = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
        # The log was cut or its start moved: what the checkpoint says no longer holds.
        first_dirty_offset = log.log_start_offset
    end_offset = _end_of_cleanable(log, segments, first_dirty_offset, now_ms)
    ends = [segment.base_offset for segment in segments[1:]]
    clean_bytes = dirty_bytes = 0
    dirty: list[Segment] = []
    for segment, end in zip(segments, ends, strict=False):
        if end > end_offset:
            break
        if end <= first_dirty_offset:
            clean_bytes += segment.size_bytes
        else:
            dirty_bytes += segment.size_bytes
            dirty.append(segment)
    return CleaningCase(
        log=log,
        first_dirty_offset=first_dirty_offset,
        end_offset=end_offset,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=_is_overdue(dirty, now_ms, log.config.max_compaction_lag_ms),
    )


def most_worth_cleaning(cases: Iterable[CleaningCase]) -> CleaningCase | None:
    """Overdue logs first, then the dirtiest."""
    due = [case for case in cases if case.is_due]
    return max(due, key=lambda case: (case.is_overdue, case.dirty_ratio), default=None)


def plan_job(case: CleaningCase, cleaner: CleanerConfig, now_ms: int) -> CompactionJob:
    """The work order for a case, to be carried out anywhere."""
    log = case.log
    config = log.config
    segments = log.segments
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return CompactionJob(
        directory=log.path,
        segments=tuple(
            _to_clean(log, segment) for segment in segments if segment.base_offset < case.end_offset
        ),
        later_segments=tuple(
            segment.base_offset for segment in segments if segment.base_offset >= case.end_offset
        ),
        first_dirty_offset=case.first_dirty_offset,
        end_offset=case.end_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        max_decompressed_message_bytes=config.max_decompressed_message_bytes,
        map_bytes_max=cleaner.dedupe_buffer_bytes,
        io_buffer_bytes=cleaner.io_buffer_bytes,
        io_bytes_per_second=cleaner.io_bytes_per_second,
        compression_levels={int(codec): level for codec, level in levels.items()},
        producers={
            producer_id: LastOfProducer(last_data_offset=entry.last_offset, epoch=entry.epoch)
            for producer_id, entry in log.producers.entries.items()
        },
    )


def _end_of_cleanable(
    log: PartitionLog, segments: tuple[Segment, ...], first_dirty_offset: int, now_ms: int
) -> int:
    """Where cleaning has to stop: before the active segment, before anything uncommitted, undecided or
    younger than the topic allows, and before damage: what is in quarantine may come back into its segment."""
    limit = min(log.high_watermark, log.last_stable_offset)
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    end_offset = segments[0].base_offset
    for segment, following in pairwise(segments):
        if following.base_offset > limit or segment.damage:
            break
        if (
            log.config.min_compaction_lag_ms > 0
            and following.base_offset > first_dirty_offset
            and segment.largest_timestamp() > youngest_ms
        ):
            break
        end_offset = following.base_offset
    return end_offset


def _is_overdue(dirty: list[Segment], now_ms: int, max_lag_ms: int) -> bool:
    if max_lag_ms >= INT64_MAX:
        return False
    return any(0 <= _first_timestamp(segment) < now_ms - max_lag_ms for segment in dirty)


def _first_timestamp(segment: Segment) -> int:
    if segment.first_timestamp < 0:
        for _, header in segment.headers():
            segment.first_timestamp = header.max_timestamp
            break
    return segment.first_timestamp


def _to_clean(log: PartitionLog, segment: Segment) -> SegmentToClean:
    def size_of(suffix: str) -> int:
        try:
            return log.home.volume.file(segment.path(suffix)).size_bytes()
        except FileMissing:
            return 0

    return SegmentToClean(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        index_bytes=size_of(OFFSET_INDEX_SUFFIX),
        time_index_bytes=size_of(TIME_INDEX_SUFFIX),
    )
