from __future__ import annotations

import random

import numpy as np

from millrace.client.partitioner import partition_of
from millrace.pipeline.sink.key_hashes import partitions_of_keys


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
