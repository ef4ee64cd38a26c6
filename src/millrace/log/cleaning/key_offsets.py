"""The newest offset of each key in the part of a log that is being compacted, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 208
"""What one key costs at worst, measured: a slot of a dict that grows, the key and an integer."""

KEY_BYTES_MAX: Final = 46
"""Longer keys are held as a digest of 47 bytes, which no key that stands for itself can be equal to.

Up to here a key takes no more memory than its digest, and is spared the hashing.
"""


class KeyOffsets:
    """The newest offset of each key, in as much memory as is allowed."""

    def __init__(self, size_bytes_max: int) -> None:
        self.keys_max = max(1, size_bytes_max // ENTRY_BYTES)
        self.latest_offset = -1
        """The last offset that the map covers: all records up to it were entered."""
        self.by_key: dict[bytes, int] = {}
        """Keys of more than KEY_BYTES_MAX bytes as `shortened`."""

    def __len__(self) -> int:
        return len(self.by_key)

    def has_room_for(self, count: int) -> bool:
        """Whether this many new keys fit. An empty map takes a batch of any size."""
        return not self.by_key or len(self.by_key) + count <= self.keys_max


def shortened(key: bytes) -> bytes:
    """What stands for a long key."""
    return blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()
