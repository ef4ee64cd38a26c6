"""Joins runs of records as they are stored: newer ones win, what is below the start goes, equal neighbours
become one. Live writes and replay both end here, so both lead to the same runs.

Kafka lets the greater delivery count win where runs overlap. Counts only grow there, so the newer run has it;
here a count may be given back, and the order of the records decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from millrace.queues.share_partition.model import RecordState, StateBatch

_LAST: Final = itemgetter(1)
_DONE: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def merge(batches: list[StateBatch], newer: Iterable[StateBatch], start_offset: int) -> None:
    """Write newer runs over those in `batches`, in their order, and cut everything below the start offset;
    -1 cuts nothing. `batches` is sorted and without overlaps, before and after."""
    if start_offset > 0:
        cut_below(batches, start_offset)
    for batch in newer:
        if batch.last_offset < start_offset or batch.first_offset > batch.last_offset:
            continue
        if batch.first_offset < start_offset:
            batch = batch._replace(first_offset=start_offset)
        _put(batches, batch)


def cut_below(batches: list[StateBatch], start_offset: int) -> None:
    """Forget all offsets below the start."""
    gone = bisect_left(batches, start_offset, key=_LAST)
    del batches[:gone]
    if batches and batches[0].first_offset < start_offset:
        batches[0] = batches[0]._replace(first_offset=start_offset)


def done_count(batches: Sequence[StateBatch]) -> int:
    """How many records in these runs nobody will be given any more."""
    return sum(batch.last_offset - batch.first_offset + 1 for batch in batches if batch.state in _DONE)


def _put(batches: list[StateBatch], batch: StateBatch) -> None:
    first, last = batch.first_offset, batch.last_offset
    if not batches or batches[-1].last_offset < first - 1:
        # Most runs are acknowledged in the order of the log.
        batches.append(batch)
        return
    # From the run that ends right before the new one, since it may be equal, to the one that begins behind.
    low = bisect_left(batches, first - 1, key=_LAST)
    high = low
    taken: list[StateBatch] = []
    behind: StateBatch | None = None
    while high < len(batches) and batches[high].first_offset <= last + 1:
        old = batches[high]
        high += 1
        if old[2:] == batch[2:]:
            first, last = min(first, old.first_offset), max(last, old.last_offset)
            continue
        if old.first_offset < batch.first_offset:
            taken.append(old._replace(last_offset=min(old.last_offset, batch.first_offset - 1)))
        if old.last_offset > batch.last_offset:
            behind = old._replace(first_offset=max(old.first_offset, batch.last_offset + 1))
    taken.append(batch._replace(first_offset=first, last_offset=last))
    if behind is not None:
        taken.append(behind)
    batches[low:high] = taken
