"""Long batches walked from several guessed places at once: right, or left to another walk."""

from __future__ import annotations

import random

import numpy as np
import pytest

from millrace.pipeline.records.guessed_starts import RECORDS_PER_GUESS, STEPS, Bytes, pairs, walk_from_guesses
from millrace.wire.record_spans import read_varint
from millrace.wire.records import Record, build_batch

HEADER_BYTES = 61


def records(count: int, seed: int, size_max: int = 300) -> tuple[bytes, list[int]]:
    """The records of a batch as they are written, and where they begin."""
    chance = random.Random(seed)
    batch = build_batch(
        [
            Record(offset, 1_760_000_000_000 + offset, None, chance.randbytes(chance.randrange(size_max)))
            for offset in range(count)
        ]
    )
    data = bytes(batch[HEADER_BYTES:])
    places, position = [], 0
    while position < len(data):
        places.append(position)
        length, position = read_varint(data, position)
        position += length
    return data, places


def starts_of(data: Bytes, *bounds: tuple[int, int, int]) -> list[int] | None:
    starts, ends, counts = (np.array(each, np.int64) for each in zip(*bounds, strict=True))
    found = walk_from_guesses(data, starts, ends, counts)
    return None if found is None else found.tolist()


def as_bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def test_the_step_of_a_length_is_what_its_varint_says() -> None:
    chance = random.Random(1)
    for word in [*range(0, 65536, 257), *chance.sample(range(65536), 500)]:
        head = word.to_bytes(2, "little")
        expected = -1
        if head[0] < 128 or head[1] < 128:
            length, size = read_varint(head + b"\0", 0)
            expected = size + length if length >= 0 else -1
        assert STEPS[word] == expected, head


def test_pairs_are_the_bytes_that_follow_each_other() -> None:
    assert pairs(as_bytes(b"\1\2\3")).tolist() == [0x0201, 0x0302]
    assert pairs(as_bytes(b"\1")).tolist() == []


def test_all_records_of_several_batches_are_found() -> None:
    one, first = records(1000, seed=1)
    two, second = records(500, seed=2)
    bounds = [(0, len(one), 1000), (len(one), len(one) + len(two), 500)]
    assert starts_of(as_bytes(one + two), *bounds) == first + [len(one) + place for place in second]


@pytest.mark.parametrize("count, size_max", [(2 * RECORDS_PER_GUESS - 1, 300), (400, 6000)])
def test_few_or_large_records_are_left_to_another_walk(count: int, size_max: int) -> None:
    data, _ = records(count, seed=3, size_max=size_max)
    assert starts_of(as_bytes(data), (0, len(data), count)) is None


def test_a_wrong_count_or_length_is_never_taken_for_right() -> None:
    data, places = records(400, seed=4)
    end = len(data)
    assert starts_of(as_bytes(data), (0, end, 400)) == places
    assert starts_of(as_bytes(data), (0, end, 399)) is None
    assert starts_of(as_bytes(data), (0, end - 1, 400)) is None
    for place in places[1::40]:
        damaged = bytearray(data)
        damaged[place] ^= 2
        assert starts_of(as_bytes(bytes(damaged)), (0, end, 400)) is None
