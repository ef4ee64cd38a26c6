"""Which partition a record goes to: by its key exactly as the Java client decides, without a key by turns."""

from __future__ import annotations

from typing import Final

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
MASK: Final = 0xFFFF_FFFF
POSITIVE: Final = 0x7FFF_FFFF
"""What the hash is made with, which `pipeline/sink/key_hashes.py` does for whole columns of keys."""


def murmur2(key: bytes) -> int:
    """The hash of one key as a signed number, as the Java client's `Utils.murmur2` gives it."""
    size = len(key)
    value = SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        block = int.from_bytes(key[start : start + 4], "little") * MULTIPLIER & MASK
        block = (block ^ block >> 24) * MULTIPLIER & MASK
        value = value * MULTIPLIER & MASK ^ block
    if whole < size:
        value = (value ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & MASK
    value = (value ^ value >> 13) * MULTIPLIER & MASK
    value ^= value >> 15
    return value - (1 << 32) if value > POSITIVE else value


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & POSITIVE) % partitions


class Turns:
    """Records without a key: all of one piece of input go to one partition, those of the next to the next.

    As with the clients' sticky partitioner, batches stay full and the partitions still get equal shares.
    """

    __slots__ = ("_next",)

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, partitions: int) -> int:
        chosen = self._next % partitions
        self._next = chosen + 1
        return chosen
