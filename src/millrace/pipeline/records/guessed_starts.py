"""Records of unequal length in long batches, found from several places of each batch at once.

We guess places in the middle of a batch, where three records seem to follow each other, and walk from all of
them side by side, each up to the next one. A wrong guess cannot pass: in the end every record must begin
where the one before it ends, from the first of the batch to its last.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

RECORDS_PER_GUESS: Final = 96
_RECORD_BYTES_MAX: Final = 2_000
"""Longer records are so few for each byte that walking them one by one costs nothing."""
_RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key length, value length, number of headers."""
_SEEN_RECORDS: Final = 3
_BLOCK_STEPS: Final = 16


def steps_by_length() -> NDArray[np.int32]:
    """The distance to the next record by the first two bytes of a record; -1 for a length of more bytes, or a
    negative one."""
    words = np.arange(1 << 16, dtype=np.int32)
    first, second = words & 0xFF, words >> 8
    one_byte = np.where(first & 1, -1, 1 + (first >> 1))
    raw = (first & 0x7F) | (second << 7)
    two_bytes = np.where((second > 0x7F) | (raw & 1 == 1), -1, 2 + (raw >> 1))
    return np.where(first < 0x80, one_byte, two_bytes).astype(np.int32)


STEPS: Final = steps_by_length()
_STEPS_ONWARD: Final = np.maximum(STEPS, 1)


def pairs(data: Bytes) -> NDArray[np.uint16]:
    """Any two bytes that follow each other, as one number."""
    return np.ndarray(shape=(max(0, len(data) - 1),), dtype="<u2", buffer=data, strides=(1,))


def walk_from_guesses(data: Bytes, starts: Positions, ends: Positions, counts: Positions) -> Positions | None:
    """Where the records between each start and end begin, in order; None if that needs another way.

    The ranges lie behind each other, and `counts` says how many records each one has.
    """
    sizes = (ends - starts) / counts
    if not len(counts) or int(counts.min()) < 2 * RECORDS_PER_GUESS or float(sizes.max()) > _RECORD_BYTES_MAX:
        return None
    words = pairs(data)
    borders = np.concatenate((starts, _guess(data, words, starts, ends, counts)))
    borders.sort()
    # A range's end is no border of its own where the next range begins right behind it.
    border_ends = np.append(borders[1:], ends[-1])
    last_of_range = np.append(np.searchsorted(borders, starts)[1:], len(borders)) - 1
    border_ends[last_of_range] = ends
    positions = _walk(words, borders, border_ends)
    if len(positions) != int(counts.sum()):
        return None
    positions.sort()
    steps = STEPS[words[positions]]
    expected = np.append(positions[1:], 0)
    expected[np.cumsum(counts) - 1] = ends
    if int(steps.min()) < _RECORD_BYTES_MIN or not np.array_equal(positions + steps, expected):
        return None
    return positions


def _guess(
    data: Bytes, words: NDArray[np.uint16], starts: Positions, ends: Positions, counts: Positions
) -> Positions:
    """Places at which a record seems to begin, one or none behind each part of about equal size."""
    window = int(_SEEN_RECORDS * float(((ends - starts) / counts).max())) + 16
    parts = []
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        guesses = count // RECORDS_PER_GUESS
        marks = (start + (end - start) * np.arange(1, guesses) / guesses).astype(np.int64)
        # We do not guess among the last records: too few follow them to recognise a record by.
        parts.append(marks[marks < end - 2 * window])
    marks = np.concatenate(parts)
    if not len(marks):
        return marks
    places = (marks[:, None] + np.arange(window)).ravel()
    origin = np.arange(len(places))
    last = len(words) - 1
    here = places
    for _ in range(_SEEN_RECORDS):
        here = np.minimum(here, last)
        step = STEPS[words[here]]
        # The attributes behind the length are always zero.
        attributes = data.take(here + 1 + (data.take(here) > 127), mode="clip")
        fits = (step >= _RECORD_BYTES_MIN) & (attributes == 0)
        origin, here = origin[fits], here[fits] + step[fits]
    _, first = np.unique(origin // window, return_index=True)
    return places[origin[first]]


def _walk(words: NDArray[np.uint16], starts: Positions, ends: Positions) -> Positions:
    """All positions that a walk from each start to its end comes by."""
    last = len(words) - 1
    position, border = starts.copy(), ends
    parts: list[Positions] = []
    while len(position):
        block = np.empty((_BLOCK_STEPS, len(position)), np.int64)
        for row in block:
            row[:] = position
            position += _STEPS_ONWARD[words[np.minimum(position, last)]]
        parts.append(block[block < border])
        left = position < border
        position, border = position[left], border[left]
    return np.concatenate(parts)
