"""From a timestamp to the first record that is not older. Inflates batches: run it in the executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.log.segment import Segment
from millrace.wire.batch_header import LENGTH_END
from millrace.wire.records import Record, read_records


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def find_offset_by_timestamp(
    segments: Sequence[Segment], log_start_offset: int, timestamp_ms: int
) -> TimestampedOffset | None:
    """The first record at or after the timestamp, from the log's start on."""
    for segment in segments:
        if segment.size_bytes == 0 or segment.largest_timestamp() < timestamp_ms:
            continue
        start = max(segment.time_index.offset_before(timestamp_ms - 1), log_start_offset)
        first = segment.offset_index.position_before(start)
        for position, header in segment.headers(first):
            if header[8] < timestamp_ms or header[0] + header[6] < log_start_offset:
                continue
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                    return TimestampedOffset(record.timestamp, record.offset, header[2])
    return None


def find_max_timestamp(segments: Sequence[Segment], log_start_offset: int) -> TimestampedOffset | None:
    """The record with the largest timestamp, the first one if several have it."""
    filled = [segment for segment in segments if segment.size_bytes]
    if not filled:
        return None
    youngest = max(segment.largest_timestamp() for segment in filled)
    segment = next(segment for segment in filled if segment.largest_timestamp() == youngest)
    best: tuple[int, tuple[int, ...]] | None = None
    start = segment.offset_index.position_before(segment.max_timestamp_offset)
    for first in (start, 0):
        for position, header in segment.headers(first):
            if header[0] + header[6] >= log_start_offset and (best is None or header[8] > best[1][8]):
                best = position, header
        if best is not None and best[1][8] >= segment.max_timestamp:
            break
    if best is None:
        return None
    position, header = best
    found: Record | None = None
    for record in _records(segment, position, header):
        if record.offset >= log_start_offset and (found is None or record.timestamp > found.timestamp):
            found = record
    return None if found is None else TimestampedOffset(found.timestamp, found.offset, header[2])


def _records(segment: Segment, position: int, header: tuple[int, ...]) -> list[Record]:
    return read_records(segment.file.read_at(position, LENGTH_END + header[1]))
