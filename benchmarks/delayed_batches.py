"""Batches of delayed records for the load generators: built once; only the time of delivery is replaced."""

from __future__ import annotations

import struct
from typing import Final

import crc32c

from benchmarks.frames import build_batch

DELIVER_AT: Final = b"millrace-deliver-at"
_MARK: Final = b"9" * 13
"""Milliseconds since 1970 have as many digits until the year 2286."""
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21


class DelayedBatch:
    """Records that are all due at the same time."""

    def __init__(self, value: bytes, count: int, timestamp_ms: int) -> None:
        self.count = count
        self._template = build_batch(value, count, timestamp_ms, (DELIVER_AT, _MARK))

    def due_at(self, deliver_at_ms: int) -> bytes:
        batch = bytearray(self._template.replace(_MARK, b"%013d" % deliver_at_ms))
        struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(memoryview(batch)[_CHECKED_FROM:]))
        return bytes(batch)
