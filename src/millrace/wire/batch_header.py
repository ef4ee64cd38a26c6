"""The header of a record batch (format v2): the only part of a batch that the hot path reads."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
assert HEADER_SIZE == 61

LENGTH_END: Final = 12
"""`batch_length` counts the bytes after itself: base offset (8) and the length (4) come before."""
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_START: Final = 21
"""The checksum covers everything from the attributes on, so offset and epoch can be assigned in place."""
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43

MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
CODEC_MAX: Final = 4
"""The largest number of a compression type: zstd."""
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_SEQUENCE: Final = -1

_unpack_header: Final = HEADER.unpack_from
_new_tuple: Final = tuple.__new__

OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
OFFSET: Final = struct.Struct(">q")
INT32: Final = struct.Struct(">i")
UINT32: Final = struct.Struct(">I")


class BatchHeader(NamedTuple):
    """For readers of batches off the hot path; the append path unpacks into locals instead."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; raises struct.error if fewer than 61 bytes are there."""
    # A named tuple's own constructor costs twice as much.
    return _new_tuple(BatchHeader, _unpack_header(buffer, position))
