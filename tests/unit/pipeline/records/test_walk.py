"""Where records start: whichever walk is taken, it finds or refuses what a plain walk does."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.pipeline.records.walk import record_starts
from millrace.wire.record_spans import MalformedBatch


def varint(value: int) -> bytes:
    raw, out = value << 1, bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


def batches_of(sizes: list[list[int]]) -> tuple[bytes, list[int], list[int], list[int]]:
    """Batches of records with these lengths: bytes, bounds of batches, positions of records."""
    data, starts, ends, places = bytearray(), [], [], []
    for batch in sizes:
        starts.append(len(data))
        for size in batch:
            places.append(len(data))
            data += varint(size) + bytes(size)
        ends.append(len(data))
    return bytes(data), starts, ends, places


def found(data: bytes, starts: list[int], ends: list[int], counts: list[int]) -> list[int]:
    array = np.frombuffer(data, np.uint8)
    bounds = [np.array(each, np.int64) for each in (starts, ends, counts)]
    return [int(place) for place in record_starts(array, *bounds)]


def walked(data: bytes, starts: list[int], ends: list[int], counts: list[int]) -> list[int] | None:
    """Record by record; None for what is malformed."""
    places = []
    for start, end, count in zip(starts, ends, counts, strict=True):
        position = start
        for _ in range(count):
            places.append(position)
            raw = shift = 0
            while True:
                if position >= end or shift > 28:
                    return None
                byte = data[position]
                position += 1
                raw |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if raw & 1:
                return None
            position += raw >> 1
        if position != end:
            return None
    return places


SIZES = st.sampled_from((6, 7, 20, 63, 64, 65, 200, 8191, 8192))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=40))
def test_short_batches_are_walked_one_by_one_or_side_by_side(sizes: list[list[int]]) -> None:
    data, starts, ends, places = batches_of(sizes)
    assert found(data, starts, ends, [len(batch) for batch in sizes]) == places


@pytest.mark.parametrize("kind", ["equal", "runs", "unequal", "long"])
def test_long_batches_are_found_whatever_their_records_are_like(kind: str) -> None:
    chance = random.Random(kind)
    one = {
        "equal": [100] * 3000,
        "runs": [size for size in (20, 90, 64) for _ in range(400)],
        "unequal": [chance.randrange(6, 300) for _ in range(2000)],
        "long": [chance.randrange(1, 9000) for _ in range(600)],
    }[kind]
    sizes = [one, one[: len(one) // 2], [7] * 5]
    data, starts, ends, places = batches_of(sizes)
    assert found(data, starts, ends, [len(batch) for batch in sizes]) == places


@pytest.mark.parametrize("batches", [1, 30])
@pytest.mark.parametrize("each", [3, 600])
def test_a_batch_that_its_records_do_not_fill_is_refused(batches: int, each: int) -> None:
    sizes = [[20] * each for _ in range(batches)]
    data, starts, ends, _ = batches_of(sizes)
    counts = [each] * batches
    for wrong in (each - 1, each + 1):
        with pytest.raises(MalformedBatch):
            found(data, starts, ends, [*counts[:-1], wrong])
    with pytest.raises(MalformedBatch):
        found(data, starts, [*ends[:-1], ends[-1] - 1], counts)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=30), st.integers(1, 4), st.booleans())
@example(parts=[b""], count=1, many=True)
def test_any_bytes_are_walked_as_a_plain_walk_does(parts: list[bytes], count: int, many: bool) -> None:
    """Also batches that say that they have records, and have no bytes."""
    parts = parts * (24 if many else 1)
    data = b"".join(parts)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    starts = [end - len(part) for end, part in zip(ends, parts, strict=True)]
    counts = [count] * len(parts)
    expected = walked(data, starts, ends, counts)
    if expected is None:
        with pytest.raises(MalformedBatch):
            found(data, starts, ends, counts)
    else:
        assert found(data, starts, ends, counts) == expected
