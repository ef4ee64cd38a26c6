from __future__ import annotations

import pytest

from millrace.client.partitioner import Turns, murmur2, partition_of


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


def test_turns_go_round_from_where_they_were_told_to_begin() -> None:
    turns = Turns(5)
    assert [turns.take(3) for _ in range(4)] == [2, 0, 1, 2]


def test_a_negative_hash_is_a_partition_all_the_same() -> None:
    assert murmur2(b"21") < 0
    # As the Java client does: the sign is cut off, and the number is not turned round.
    assert partition_of(b"21", 1000) == (-973932308 & 0x7FFF_FFFF) % 1000
