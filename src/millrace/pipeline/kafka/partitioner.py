"""Which partition a record goes to: by its key exactly as the Java client decides, without a key by turns."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF
_VECTOR_BYTES_MAX: Final = 256
"""Longer keys are hashed one by one: a single huge key must not make a loop over all rows long."""


def murmur2(key: bytes) -> int:
    """The hash of one key as a signed number, as the Java client's `Utils.murmur2` gives it."""
    size = len(key)
    value = _SEED ^ size
    whole = size & ~3
    for start in range(0, whole, 4):
        block = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        block = (block ^ block >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ block
    if whole < size:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    value ^= value >> 15
    return value - (1 << 32) if value > _POSITIVE else value


def partition_of(key: bytes, partitions: int) -> int:
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of_keys(data: Bytes, starts: Int64s, sizes: Int64s, partitions: int) -> Int32s:
    """The partition of each key; key i is `data[starts[i] : starts[i] + sizes[i]]`."""
    hashes = _hashes(data, starts, sizes)
    return ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)


def _hashes(data: Bytes, starts: Int64s, sizes: Int64s) -> npt.NDArray[np.uint32]:
    is_long = sizes > _VECTOR_BYTES_MAX
    short_sizes = np.where(is_long, 0, sizes)
    # Reads of four bytes may look past the last key; what lies there is never used.
    padded = np.concatenate((data, np.zeros(4, np.uint8)))
    multiplier = np.uint32(_MULTIPLIER)
    value = np.uint32(_SEED) ^ short_sizes.astype(np.uint32)
    whole = short_sizes >> 2
    rows: Int64s = np.flatnonzero(whole > 0)
    block_number = 0
    while len(rows):
        block = _little_endian(padded, starts[rows] + 4 * block_number) * multiplier
        block = (block ^ (block >> np.uint32(24))) * multiplier
        value[rows] = value[rows] * multiplier ^ block
        block_number += 1
        rows = rows[whole[rows] > block_number]
    tail = short_sizes & 3
    rows = np.flatnonzero(tail > 0)
    if len(rows):
        keep = np.array([0, 0xFF, 0xFFFF, 0xFF_FFFF], np.uint32)[tail[rows]]
        rest = _little_endian(padded, starts[rows] + 4 * whole[rows]) & keep
        value[rows] = (value[rows] ^ rest) * multiplier
    value = (value ^ (value >> np.uint32(13))) * multiplier
    value ^= value >> np.uint32(15)
    for row in np.flatnonzero(is_long):
        start = int(starts[row])
        value[row] = murmur2(data[start : start + int(sizes[row])].tobytes()) & _MASK
    return value


def _little_endian(data: Bytes, at: Int64s) -> npt.NDArray[np.uint32]:
    """The four bytes at each place as one number."""
    number = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        number |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return number


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
