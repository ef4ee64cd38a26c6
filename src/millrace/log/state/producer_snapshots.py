"""Producer snapshots of a partition on disk, and the producer state that snapshot and log give together.

A damaged snapshot is passed over: an older one, or none, and a longer walk over the log give the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from millrace.log.config import INT64_MAX
from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing
from millrace.log.segments.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_state import ProducerStates, decode_snapshot, encode_snapshot
from millrace.log.state.transactions import apply_batch
from millrace.wire.batch_header import CONTROL_BIT, LENGTH_END, BatchHeader

logger: Final = logging.getLogger(__name__)

_BACKFILL_BYTES_MAX: Final = 8 * 1024 * 1024
_BACKFILL_BATCHES_MAX: Final = 8192
"""How far back to look for the batches that a snapshot leaves out: more than clients have in flight."""


def snapshot_offsets(volume: Volume, directory: str) -> list[int]:
    """The offsets for which there are snapshot files, ascending."""
    names = (entry.name for entry in volume.list_directory(directory))
    stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def save_snapshot(volume: Volume, directory: str, offset: int, states: ProducerStates) -> str:
    """Write a snapshot without an fsync: the owner's next flush takes care of it. Returns the path."""
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    volume.write_bytes(path, encode_snapshot(states), durable=False)
    return path


def remove_snapshots(
    volume: Volume, directory: str, *, above: int | None = None, keep: Iterable[int] = ()
) -> None:
    """Remove the snapshots above an offset, or all but the newest and those to keep."""
    offsets = snapshot_offsets(volume, directory)
    if above is not None:
        doomed = [offset for offset in offsets if offset > above]
    else:
        kept = {*keep, *offsets[-1:]}
        doomed = [offset for offset in offsets if offset not in kept]
    for offset in doomed:
        volume.remove(segment_path(directory, offset, SNAPSHOT_SUFFIX))


def newest_snapshot(
    volume: Volume, directory: str, *, first_offset: int, end_offset: int, now_ms: int
) -> tuple[int, ProducerStates]:
    """The newest usable snapshot in the range and its offset, or an empty state at its start."""
    for offset in reversed(snapshot_offsets(volume, directory)):
        if not first_offset <= offset <= end_offset:
            continue
        path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
        try:
            states = decode_snapshot(volume.read_bytes(path), now_ms=now_ms)
        except FileMissing:
            continue
        if states is not None:
            return offset, states
        logger.warning("%s is damaged and was passed over", path)
    return first_offset, ProducerStates()


def load_producers(
    volume: Volume,
    directory: str,
    segments: list[Segment],
    *,
    log_start_offset: int,
    end_offset: int,
    high_watermark: int,
    now_ms: int,
    snapshot_offset_max: int = INT64_MAX,
    on_aborted: Callable[[Segment, AbortedTransaction], None] = lambda segment, aborted: None,
) -> ProducerStates:
    """The state of all producers at `end_offset`, from the newest snapshot up to `snapshot_offset_max`."""
    first_offset = segments[0].base_offset
    snapshot_offset_max = min(snapshot_offset_max, end_offset)
    offset, states = newest_snapshot(
        volume, directory, first_offset=first_offset, end_offset=snapshot_offset_max, now_ms=now_ms
    )
    if states.entries:
        remember_older_batches(states, segments, offset)
    if _has_markers(segments, high_watermark, offset):
        # The snapshot does not tell where transactions began that had ended when it was made.
        older_offset, older = newest_snapshot(
            volume, directory, first_offset=first_offset, end_offset=high_watermark, now_ms=now_ms
        )
        replay(older, segments, older_offset, offset, now_ms=now_ms, high_watermark=high_watermark)
        states.ended = older.ended
    replay(
        states,
        segments,
        offset,
        end_offset,
        now_ms=now_ms,
        high_watermark=high_watermark,
        on_aborted=on_aborted,
    )
    states.truncate_from_start(log_start_offset)
    return states


def _has_markers(segments: list[Segment], start: int, end: int) -> bool:
    """Whether transactions may have ended between the two offsets. Mostly few batches lie there."""
    for _, _, fields in _batches_between(segments, start, end):
        if BatchHeader._make(fields).is_control:
            return True
    return False


def _batches_between(
    segments: list[Segment], start: int, end: int
) -> Iterator[tuple[Segment, int, tuple[int, ...]]]:
    """Segment, position and header of every batch of a producer that has an id. The header is a plain tuple:
    a start after a crash reads many."""
    if start >= end:
        return
    for number, segment in enumerate(segments):
        is_behind = number + 1 < len(segments) and segments[number + 1].base_offset <= start
        if is_behind or segment.base_offset >= end or segment.size_bytes == 0:
            continue
        for position, fields in segment.plain_headers(segment.start_before(start)):
            base_offset, _, _, _, _, _, delta, _, _, producer_id, _, _, _ = fields
            # A batch that the log's start cuts in two counts as well: its producer goes on behind it.
            if base_offset + delta >= start and base_offset < end and producer_id >= 0:
                yield segment, position, fields


def replay(
    states: ProducerStates,
    segments: list[Segment],
    start: int,
    end: int,
    *,
    now_ms: int,
    high_watermark: int,
    on_aborted: Callable[[Segment, AbortedTransaction], None] = lambda segment, aborted: None,
) -> None:
    """Apply the batches from offset `start` up to `end`. As when they were appended, a transaction is kept in
    mind while its marker is not committed: the marker may still be cut off."""
    for segment, position, fields in _batches_between(segments, start, end):
        base_offset, length, _, _, _, attributes, delta, _, timestamp, producer_id, _, _, _ = fields
        last_offset = base_offset + delta
        if not attributes & CONTROL_BIT:
            states.record(fields, last_offset, timestamp, now_ms)
            continue
        first_offset = states.open_since(producer_id)
        records = segment.file.read_at(position, LENGTH_END + length)
        aborted = apply_batch(states, fields, records, now_ms)
        if first_offset >= 0 and states.open_since(producer_id) < 0 and last_offset >= high_watermark:
            states.transaction_ended(first_offset, last_offset, high_watermark)
        if aborted is not None:
            on_aborted(segment, aborted)


def remember_older_batches(states: ProducerStates, segments: list[Segment], end_offset: int) -> None:
    """Add batches that the snapshot left out: it holds one for each producer, but a client may repeat any of
    its last five."""
    budget = _BACKFILL_BYTES_MAX
    for segment in reversed(segments):
        if segment.base_offset >= end_offset or segment.size_bytes == 0:
            continue
        stop = segment.end_before(end_offset)
        start = segment.boundary_before(max(stop - budget, 0))
        headers = [fields for _, fields in segment.plain_headers(start, stop)][-_BACKFILL_BATCHES_MAX:]
        for fields in reversed(headers):
            states.remember_older(fields)
        budget -= stop - start
        if budget <= 0:
            return
