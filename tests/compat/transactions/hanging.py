"""A hanging transaction as old brokers left them behind: records of an open transaction nobody knows of.

It is written into the log file of a broker that was killed, whose recovery then takes it for its own.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

from tests.harness.batches import batch

PRODUCER_ID: Final = 4_242
EPOCH: Final = 3
AGE_MS: Final = 3_600_000
_TRANSACTIONAL: Final = 1 << 4


def append_hanging_transaction(partition_directory: Path, offset: int) -> None:
    """One transactional batch, an hour old, at `offset`, which must be the log's end."""
    data = bytearray(
        batch(
            [b"hanging"],
            timestamp_ms=int(time.time() * 1000) - AGE_MS,
            attributes=_TRANSACTIONAL,
            producer=(PRODUCER_ID, EPOCH, 0),
            leader_epoch=0,
        )
    )
    struct.pack_into(">q", data, 0, offset)
    (newest,) = sorted(partition_directory.glob("*.log"))[-1:]
    with newest.open("ab") as log:
        log.write(data)
