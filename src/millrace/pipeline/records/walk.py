"""Finds with numpy where each record of many batches starts, with a Python object for as few as possible.

A record's place is known only from the length of the one before it, so a batch must be walked. Four walks
share the work. Runs of equally long records are taken in one step: if n places at one distance all hold the
same length, each of them is the end of the one before, so all are right. Many short batches are walked side
by side, one step for the next record of every batch. Long batches of records that all differ are walked from
several places at once (`records.guessed_starts`). What is left, such as the ends of uneven batches, is walked
length by length.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from millrace.pipeline.records.guessed_starts import STEPS, Bytes, Positions, pairs, walk_from_guesses
from millrace.wire.record_spans import MalformedBatch, read_varint

__all__ = ["Bytes", "Positions", "record_starts"]

_LONG_BATCH: Final = 512
"""We look for runs of equally long records in batches of at least this many."""
_RUN_FIRST: Final = 64
_RUN_MAX: Final = 8192
"""How many records ahead we look for a run: at first, and at most, while it goes on."""
_RUN_MIN: Final = 16
"""Runs shorter than this cost more than walking."""
_SHORT_RUNS_MAX: Final = 3
"""After this many short runs in a batch we walk the rest of it."""
_SIDE_BY_SIDE_MIN: Final = 24
"""With fewer batches side by side, a step for all costs more than walking each."""


def record_starts(data: Bytes, starts: Positions, ends: Positions, counts: Positions) -> Positions:
    """The position of the length of every record, batch by batch.

    `starts` and `ends` bound the records of each batch within `data`. Raises MalformedBatch if some batch's
    records do not fill it exactly. Nothing here looks at the fields inside the records.
    """
    found = np.empty(int(counts.sum()), np.int64)
    first = np.cumsum(counts) - counts
    is_long = counts >= _LONG_BATCH
    left: list[tuple[int, int, Positions]] = []
    for batch in np.flatnonzero(is_long):
        place, count = int(first[batch]), int(counts[batch])
        rest = _walk_runs(data, int(starts[batch]), int(ends[batch]), found[place : place + count])
        if len(rest[2]):
            left.append(rest)
    _walk_unequal(data, left)
    short = np.flatnonzero(~is_long)
    if len(short) >= _SIDE_BY_SIDE_MIN:
        _walk_side_by_side(data, starts[short], ends[short], counts[short], first[short], found)
    else:
        for batch in short:
            place, count = int(first[batch]), int(counts[batch])
            _walk(data, int(starts[batch]), int(ends[batch]), found[place : place + count])
    return found


def _walk_runs(data: Bytes, start: int, end: int, found: Positions) -> tuple[int, int, Positions]:
    """Walk one batch by runs of equally long records, as far as there are any; return what is left."""
    position, done, count, short_runs = start, 0, len(found), 0
    reach_max = _RUN_FIRST
    while done < count and short_runs < _SHORT_RUNS_MAX:
        size, length_size = _record_size(data, position, end)
        reach = min(count - done, reach_max, max(1, (end - position) // size))
        stop = position + reach * size
        same = data[position:stop:size] == data[position]
        for byte in range(1, length_size):
            same &= data[position + byte : stop : size] == data[position + byte]
        run = reach if same.all() else int(np.argmin(same))
        found[done : done + run] = np.arange(position, position + run * size, size)
        position += run * size
        done += run
        reach_max = min(8 * reach_max, _RUN_MAX) if run == reach else _RUN_FIRST
        if run < _RUN_MIN:
            short_runs += 1
    if done == count and position != end:
        raise MalformedBatch("the records do not fill their batch")
    return position, end, found[done:]


def _walk_unequal(data: Bytes, ranges: list[tuple[int, int, Positions]]) -> None:
    """Walk what is left of long batches, all together if that is possible."""
    starts = np.array([start for start, _, _ in ranges], np.int64)
    ends = np.array([end for _, end, _ in ranges], np.int64)
    counts = np.array([len(found) for _, _, found in ranges], np.int64)
    places = walk_from_guesses(data, starts, ends, counts) if ranges else None
    done = 0
    for start, end, found in ranges:
        if places is None:
            _walk(data, start, end, found)
        else:
            found[:] = places[done : done + len(found)]
            done += len(found)


def _record_size(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The bytes of the record at `position`, with its length, and the bytes of the length alone."""
    head = data[position : min(position + 5, end)].tobytes()
    try:
        length, length_size = read_varint(head, 0)
    except IndexError:
        raise MalformedBatch("a record is cut off") from None
    if length < 0 or position + length_size + length > end:
        raise MalformedBatch("a record's length does not fit")
    return length_size + length, length_size


def _walk(data: Bytes, start: int, end: int, found: Positions) -> None:
    """Walk one batch, or the rest of one, record by record."""
    raw = data[start:end].tobytes()
    total = len(raw)
    position = 0
    places: list[int] = []
    add = places.append
    try:
        for _ in range(len(found)):
            add(position)
            length = raw[position]
            if length < 128:
                step = 1
            elif raw[position + 1] < 128:
                length = length & 127 | raw[position + 1] << 7
                step = 2
            else:
                length, after = read_varint(raw, position)
                step = after - position
                length <<= 1
            if length & 1 or length < 0:
                raise MalformedBatch("a record has a negative length")
            position += step + (length >> 1)
    except IndexError:
        raise MalformedBatch("a record is cut off") from None
    if position != total:
        raise MalformedBatch("the records do not fill their batch")
    found[:] = places
    found += start


def _walk_side_by_side(
    data: Bytes, starts: Positions, ends: Positions, counts: Positions, first: Positions, found: Positions
) -> None:
    """Walk to the next record of every batch in each step, as long as enough batches have one."""
    # The longest first: those that still have records are always at the front.
    order = np.argsort(-counts, kind="stable")
    position = starts[order]
    ends, counts, first = ends[order], counts[order], first[order]
    # The buffer's last byte alone is the end of some record, never a length.
    words = pairs(data)
    last_word = len(words) - 1
    # How many batches have a record at each step.
    steps = int(counts[_SIDE_BY_SIDE_MIN - 1])
    if steps and last_word < 0:
        # There are many batches with records, but at most one byte for all of them.
        raise MalformedBatch("a record is cut off")
    active_at = len(counts) - np.searchsorted(counts[::-1], np.arange(steps), side="right")
    rows = np.empty((steps, len(counts)), np.int64)
    for step, active in enumerate(active_at.tolist()):
        now = position[:active]
        rows[step, :active] = now
        advance = STEPS[words[np.minimum(now, last_word)]]
        if int(advance.min()) < 0:
            advance = _advance_slowly(data, now, ends[:active], advance)
        now += advance
    taken = np.minimum(counts, steps)
    chosen = np.arange(steps) < taken[:, None]
    places = (first[:, None] + np.arange(steps))[chosen]
    found[places] = rows.T[chosen]
    complete = counts <= steps
    if not np.array_equal(position[complete], ends[complete]):
        raise MalformedBatch("the records do not fill their batch")
    for batch in np.flatnonzero(~complete):
        place, count = int(first[batch]) + steps, int(counts[batch]) - steps
        _walk(data, int(position[batch]), int(ends[batch]), found[place : place + count])


def _advance_slowly(
    data: Bytes, position: Positions, ends: Positions, advance: NDArray[np.int32]
) -> NDArray[np.int32]:
    advance = advance.copy()
    for batch in np.flatnonzero(advance < 0):
        advance[batch], _ = _record_size(data, int(position[batch]), int(ends[batch]))
    return advance
