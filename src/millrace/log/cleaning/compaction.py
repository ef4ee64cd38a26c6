"""Rewrites the closed segments of a compacted log so that the newest record of each key is left.

A synchronous function on files, meant for the worker process: it reads live segments, which never change,
and writes `.cleaned` files beside them; making those live is the log's business. Offsets never move: a batch
keeps its base and last offset whatever it loses (F22). What it must never remove: the newest record of a key,
anything from the first uncleanable offset on, the batch that carries an active producer's last sequence
(emptied if need be), and the last batch of the cleaned range, so that the log's end cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from millrace.log.batches.reader import read_batches
from millrace.log.cleaning.batch_filter import BatchFilter, CompactionStats, FilterRules, LastOfProducer
from millrace.log.cleaning.cleaned_segment import CleanedFile, CleanedSegment
from millrace.log.cleaning.cleaned_transactions import CleanedTransactions
from millrace.log.cleaning.key_offsets import KEY_BYTES_MAX, KeyOffsets, shortened
from millrace.log.disk.volume import Volume
from millrace.log.segments.header_walk import RELATIVE_OFFSET_MAX
from millrace.log.segments.segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_path
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex
from millrace.wire.record_spans import scan_records
from millrace.wire.records import check_batch, inflate_records

Pace = Callable[[int], None]
"""Called with each number of bytes read or written; a throttle sleeps here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToClean:
    """A closed segment, as it lies on the disk."""

    base_offset: int
    size_bytes: int
    index_bytes: int = 0
    time_index_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """All that a compaction needs to know; it can travel to another process as JSON."""

    directory: str
    segments: tuple[SegmentToClean, ...]
    """From the first one to the last closed one below `end_offset`, in order."""
    later_segments: tuple[int, ...] = ()
    """Base offsets of the segments behind: their indexes name transactions that began in front of them."""
    first_dirty_offset: int
    end_offset: int
    """The first offset that must not be touched; also where the last of `segments` ends."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_decompressed_message_bytes: int
    map_bytes_max: int
    io_buffer_bytes: int = 512 * 1024
    io_bytes_per_second: float = float("inf")
    compression_levels: Mapping[int, int] = field(default_factory=dict)
    producers: Mapping[int, LastOfProducer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """One new segment and the old ones that it replaces."""

    replaces: tuple[int, ...]
    cleaned: CleanedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """What a compaction has written, for the log to take over."""

    groups: tuple[CleanedGroup, ...]
    clean_offset: int
    """The first offset that this pass did not look at: where the dirty part begins now."""
    stats: CompactionStats


def compact(volume: Volume, job: CompactionJob, pace: Pace = lambda _: None) -> CompactionResult:
    """Write the `.cleaned` files of a job. On any error they are removed and the log is as it was."""
    stats = CompactionStats()
    aborted = list(_aborted_transactions(volume, job))
    keys = _map_keys(volume, job, aborted, stats, pace)
    segments = [segment for segment in job.segments if segment.base_offset <= keys.latest_offset]
    transactions = CleanedTransactions(aborted, from_offset=0)
    batch_filter = BatchFilter(
        keys,
        transactions,
        stats,
        FilterRules(
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            end_offset=job.end_offset,
            max_decompressed_bytes=job.max_decompressed_message_bytes,
            compression_levels=job.compression_levels,
        ),
        job.producers,
    )
    groups: list[CleanedGroup] = []
    opened: list[CleanedSegment] = []
    try:
        for group in group_segments(segments, job):
            writer = CleanedSegment(
                volume, job.directory, group[0].base_offset, index_interval_bytes=job.index_interval_bytes
            )
            opened.append(writer)
            for segment in group:
                _rewrite(volume, job, segment, batch_filter, writer, pace)
            cleaned = writer.finish(transactions.retained)
            transactions.retained.clear()
            groups.append(
                CleanedGroup(replaces=tuple(segment.base_offset for segment in group), cleaned=cleaned)
            )
    except BaseException:
        for writer in opened:
            writer.discard()
        raise
    stats.keys = len(keys)
    return CompactionResult(groups=tuple(groups), clean_offset=keys.latest_offset + 1, stats=stats)


def group_segments(segments: Iterable[SegmentToClean], job: CompactionJob) -> Iterator[list[SegmentToClean]]:
    """Neighbours that fit into one segment together, judged by their sizes before cleaning."""
    remaining = list(segments)
    ends = [segment.base_offset for segment in remaining[1:]] + [job.end_offset]
    group: list[SegmentToClean] = []
    size = index = time_index = 0
    for segment, end in zip(remaining, ends, strict=True):
        size += segment.size_bytes
        index += segment.index_bytes
        time_index += segment.time_index_bytes
        if group and (
            size > job.segment_bytes
            or index > job.segment_index_bytes
            or time_index > job.segment_index_bytes
            or end - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX
        ):
            yield group
            group = []
            size, index, time_index = segment.size_bytes, segment.index_bytes, segment.time_index_bytes
        group.append(segment)
    if group:
        yield group


def _aborted_transactions(volume: Volume, job: CompactionJob) -> Iterator[AbortedTransaction]:
    for base_offset in (*(segment.base_offset for segment in job.segments), *job.later_segments):
        path = segment_path(job.directory, base_offset, TXN_INDEX_SUFFIX)
        if volume.exists(path):
            file = volume.file(path)
            yield from TxnIndex(file).all_aborted()
            file.close()


def _map_keys(
    volume: Volume, job: CompactionJob, aborted: list[AbortedTransaction], stats: CompactionStats, pace: Pace
) -> KeyOffsets:
    """The newest offset of each key in the dirty part, or in as much of it as memory allows."""
    keys = KeyOffsets(job.map_bytes_max)
    keys.latest_offset = job.first_dirty_offset - 1
    transactions = CleanedTransactions(aborted, from_offset=job.first_dirty_offset)
    ends = [segment.base_offset for segment in job.segments[1:]] + [job.end_offset]
    for segment, end in zip(job.segments, ends, strict=True):
        if end <= job.first_dirty_offset:
            continue
        if not _map_segment(volume, job, segment, keys, transactions, stats, pace):
            return keys
        # Offsets may be missing at a segment's end.
        keys.latest_offset = end - 1
    return keys


def _map_segment(
    volume: Volume,
    job: CompactionJob,
    segment: SegmentToClean,
    keys: KeyOffsets,
    transactions: CleanedTransactions,
    stats: CompactionStats,
    pace: Pace,
) -> bool:
    """Enter a segment's keys; False if the map was full before its end."""
    file = volume.file(segment_path(job.directory, segment.base_offset, LOG_SUFFIX))
    by_key = keys.by_key
    first_dirty_offset = job.first_dirty_offset
    try:
        for _, batch in read_batches(file, segment.size_bytes, read_bytes=job.io_buffer_bytes):
            pace(len(batch))
            header = check_batch(batch)
            stats.bytes_mapped += len(batch)
            if header.last_offset < first_dirty_offset:
                continue
            if header.is_control:
                transactions.is_marker_removable(batch, header)
            elif not transactions.is_aborted(header):
                if not keys.has_room_for(header.records_count):
                    return False
                base_offset = header.base_offset
                data = bytes(inflate_records(batch, header, job.max_decompressed_message_bytes))
                for delta, _, key_start, key_end, _, _, _ in scan_records(data, header):
                    if key_start >= 0 and base_offset + delta >= first_dirty_offset:
                        key = data[key_start:key_end]
                        by_key[key if len(key) <= KEY_BYTES_MAX else shortened(key)] = base_offset + delta
            keys.latest_offset = header.last_offset
        return True
    finally:
        file.close()


def _rewrite(
    volume: Volume,
    job: CompactionJob,
    segment: SegmentToClean,
    batch_filter: BatchFilter,
    writer: CleanedSegment,
    pace: Pace,
) -> None:
    file = volume.file(segment_path(job.directory, segment.base_offset, LOG_SUFFIX))
    try:
        for _, batch in read_batches(file, segment.size_bytes, read_bytes=job.io_buffer_bytes):
            pace(len(batch))
            kept = batch_filter.filter(batch, check_batch(batch))
            if kept is not None:
                writer.append(kept)
                pace(len(kept))
    finally:
        file.close()
