"""The newest offset of each key in the part of a log that is being compacted, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 176
"""What one key costs at worst, measured: a dict's slot while it grows, a 16-byte key and an integer."""

_DIGEST_BYTES: Final = 16


class KeyOffsets:
    """Keys under 16 bytes stand for themselves, longer ones for a 128-bit digest; the two cannot be equal."""

    def __init__(self, size_bytes_max: int) -> None:
        self.keys_max = max(1, size_bytes_max // ENTRY_BYTES)
        self.latest_offset = -1
        """The last offset that the map covers: all records up to it were entered."""
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, count: int) -> bool:
        """Whether this many new keys fit. An empty map takes any batch, or one could never be compacted."""
        return not self._offsets or len(self._offsets) + count <= self.keys_max

    def put(self, key: bytes, offset: int) -> None:
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        self._offsets[key] = offset

    def newest(self, key: bytes) -> int:
        """The newest offset of the key, -1 if it was not entered."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, -1)
