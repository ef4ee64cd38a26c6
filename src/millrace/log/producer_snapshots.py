"""Producer snapshots of a partition on disk, and the producer state that snapshot and log give together.

A damaged snapshot is passed over: an older one, or none, and a longer walk over the log give the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from millrace.log.errors import FileMissing
from millrace.log.producer_state import ProducerStates, decode_snapshot, encode_snapshot
from millrace.log.segment import SNAPSHOT_SUFFIX, Segment, segment_path
from millrace.log.transactions import apply_batch
from millrace.log.txn_index import AbortedTransaction
from millrace.log.volume import Volume
from millrace.wire.batch_header import CONTROL_BIT, LENGTH_END

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
    """Written without an fsync: the owner's next flush takes care of it. Returns the path."""
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    volume.write_bytes(path, encode_snapshot(states), durable=False)
    return path


def remove_snapshots(
    volume: Volume, directory: str, *, above: int | None = None, keep: Iterable[int] = ()
) -> None:
    """Remove those above an offset, or all but the newest and those to keep."""
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
    now_ms: int,
) -> ProducerStates:
    """The state of all producers at `end_offset`."""
    offset, states = newest_snapshot(
        volume, directory, first_offset=segments[0].base_offset, end_offset=end_offset, now_ms=now_ms
    )
    if states.entries:
        remember_older_batches(states, segments, offset)
    replay(states, segments, offset, end_offset, now_ms=now_ms)
    states.truncate_from_start(log_start_offset)
    return states


def replay(
    states: ProducerStates,
    segments: list[Segment],
    start: int,
    end: int,
    *,
    now_ms: int,
    on_aborted: Callable[[Segment, AbortedTransaction], None] = lambda segment, aborted: None,
) -> None:
    """Apply the batches from offset `start` up to `end`."""
    for number, segment in enumerate(segments):
        is_behind = number + 1 < len(segments) and segments[number + 1].base_offset <= start
        if is_behind or segment.base_offset >= end or segment.size_bytes == 0:
            continue
        first = segment.offset_index.position_before(start)
        for position, header in segment.headers(first):
            # A batch that the log's start cuts in two counts: its producer goes on behind it.
            if header[0] + header[6] >= start and header[0] < end and header[9] >= 0:
                records = b""
                if header[5] & CONTROL_BIT:
                    records = segment.file.read_at(position, LENGTH_END + header[1])
                aborted = apply_batch(states, header, records, now_ms=now_ms)
                if aborted is not None:
                    on_aborted(segment, aborted)


def remember_older_batches(states: ProducerStates, segments: list[Segment], end_offset: int) -> None:
    """A snapshot holds one batch of a producer; after a restart a client may repeat any of its last five."""
    budget = _BACKFILL_BYTES_MAX
    for segment in reversed(segments):
        if segment.base_offset >= end_offset or segment.size_bytes == 0:
            continue
        stop = segment.end_before(end_offset)
        start = segment.offset_index.boundary_before(max(stop - budget, 0))
        headers = [header for _, header in segment.headers(start, stop)][-_BACKFILL_BATCHES_MAX:]
        for header in reversed(headers):
            if header[9] >= 0:
                states.remember_older(header)
        budget -= stop - start
        if budget <= 0:
            return
