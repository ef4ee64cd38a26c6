from __future__ import annotations

import random

import numpy as np
import pytest

from millrace.pipeline.kafka.partitioner import Turns, murmur2, partition_of, partitions_of_keys


@pytest.mark.parametrize(
    "key, expected",
    [
        # The values of the Java client's own test of Utils.murmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_many_keys_get_the_partitions_that_each_of_them_gets_alone() -> None:
    chance = random.Random(7)
    sizes = [0, 1, 2, 3, 4, 5, 7, 8, 20, 33, 255, 256, 257, 300, 5000]
    keys = [chance.randbytes(chance.choice(sizes)) for _ in range(500)]
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(keys), np.uint8)

    found = partitions_of_keys(data, starts, lengths, 7)

    assert found.tolist() == [partition_of(key, 7) for key in keys]


def test_no_keys_are_no_trouble() -> None:
    nothing = np.zeros(0, np.int64)
    assert partitions_of_keys(np.zeros(0, np.uint8), nothing, nothing, 3).tolist() == []


def test_turns_go_round_from_where_they_were_told_to_begin() -> None:
    turns = Turns(5)
    assert [turns.take(3) for _ in range(4)] == [2, 0, 1, 2]
