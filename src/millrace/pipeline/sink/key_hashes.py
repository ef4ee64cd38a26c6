"""The partitions of whole columns of keys at once, the same as `client/partitioner.py` gives each of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.client.partitioner import MASK, MULTIPLIER, POSITIVE, SEED, murmur2

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_VECTOR_BYTES_MAX: Final = 256
"""Longer keys are hashed one by one: a single huge key must not make a loop over all rows long."""


def partitions_of_keys(data: Bytes, starts: Int64s, sizes: Int64s, partitions: int) -> Int32s:
    """The partition of each key; key i is `data[starts[i] : starts[i] + sizes[i]]`."""
    hashes = _hashes(data, starts, sizes)
    return ((hashes & np.uint32(POSITIVE)) % np.uint32(partitions)).astype(np.int32)


def _hashes(data: Bytes, starts: Int64s, sizes: Int64s) -> npt.NDArray[np.uint32]:
    is_long = sizes > _VECTOR_BYTES_MAX
    short_sizes = np.where(is_long, 0, sizes)
    # Reads of four bytes may look past the last key; what lies there is never used.
    padded = np.concatenate((data, np.zeros(4, np.uint8)))
    multiplier = np.uint32(MULTIPLIER)
    value = np.uint32(SEED) ^ short_sizes.astype(np.uint32)
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
        value[row] = murmur2(data[start : start + int(sizes[row])].tobytes()) & MASK
    return value


def _little_endian(data: Bytes, at: Int64s) -> npt.NDArray[np.uint32]:
    """The four bytes at each place as one number."""
    number = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        number |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return number
