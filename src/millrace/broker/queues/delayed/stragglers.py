"""Messages that are due long after those that were stored with them keep old segments from being deleted.
They are stored once more at the end of the log, and their first copies settled, in one batch."""

from __future__ import annotations

from typing import Final

from millrace.broker.queues.delayed.delivery import Delivery
from millrace.broker.queues.delayed.reading import read_at
from millrace.broker.queues.delayed.tailing import Tail
from millrace.queues.delayed.codec import StoredMessage, encode_moved, encode_settled
from millrace.queues.delayed.lateness import DelayedFigures
from millrace.queues.delayed.state import RUN, StoreState

FEW: Final = 1024
"""So many are moved at a time, at most."""
AHEAD_MS: Final = 600_000
"""What is due sooner goes by itself, and may be on its way."""
BYTES_MAX: Final = 8 * 1024 * 1024


def runs_to_move(
    state: StoreState, *, log_start_offset: int, log_bytes: int, segment_bytes: int
) -> list[int]:
    """The runs of offsets at the start of the log whose few messages hold back more than half a segment; none
    if it is not worthwhile."""
    end_offset = state.next_offset
    span = end_offset - log_start_offset
    if span <= 0 or log_bytes <= segment_bytes:
        return []
    chosen: list[int] = []
    messages = 0
    for run in sorted(state.counts):
        messages += state.counts[run]
        if messages > FEW or (run + 1) * RUN > end_offset:
            break
        chosen.append(run)
    left = [run for run in state.counts if run not in chosen]
    freed_up_to = min(left, default=end_offset // RUN) * RUN
    freed_bytes = (freed_up_to - log_start_offset) / span * log_bytes
    return chosen if freed_bytes > segment_bytes / 2 else []


async def move_stragglers(tail: Tail, delivery: Delivery, figures: DelayedFigures, now_ms: int) -> int:
    """Store them again; how many they were."""
    log, state = tail.log, tail.index.state
    runs = runs_to_move(
        state,
        log_start_offset=log.log_start_offset,
        log_bytes=log.size_bytes,
        segment_bytes=log.config.segment_bytes,
    )
    moved = 0
    for run in runs:
        first = max(run * RUN, log.log_start_offset)
        records = await read_at(log, tail.volume, range(first, min((run + 1) * RUN, state.next_offset)))
        later = [
            (offset, stored)
            for offset, stored in sorted(records.items())
            if isinstance(stored, StoredMessage) and stored.due_ms > now_ms + AHEAD_MS
        ]
        # All that are pending in a run, or none: which ones of it were settled before is not known.
        if len(later) != state.counts.get(run, 0) or sum(len(each.message) for _, each in later) > BYTES_MAX:
            continue
        settled = encode_settled([(stored.due_ms, offset) for offset, stored in later])
        copies = [encode_moved(stored, offset) for offset, stored in later]
        await delivery.write([settled, *copies])
        moved += len(copies)
        figures.moved += len(copies)
        # The next run is judged by what this one has become.
        break
    return moved
