"""Record batches made by hand for raw requests: right ones, and wrong in exactly one place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import crc32c

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_POSITION: Final = 17
_CRC_START: Final = 21


def varint(value: int) -> bytes:
    encoded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def record(offset_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\x00" + varint(0) + varint(offset_delta)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1_700_000_000_000,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    records: bytes | None = None,
    count: int | None = None,
    last_offset_delta: int | None = None,
    magic: int = 2,
    leader_epoch: int = -1,
) -> bytes:
    """One batch; `producer` is (id, epoch, first sequence). The CRC is right for what is in it."""
    own_keys = keys if keys is not None else [None] * len(values)
    if records is None:
        records = b"".join(
            record(delta, key, value) for delta, (key, value) in enumerate(zip(own_keys, values, strict=True))
        )
    data = bytearray(
        HEADER.pack(
            0,
            HEADER.size - 12 + len(records),
            leader_epoch,
            magic,
            0,
            attributes,
            len(values) - 1 if last_offset_delta is None else last_offset_delta,
            timestamp_ms,
            timestamp_ms,
            *producer,
            len(values) if count is None else count,
        )
        + records
    )
    struct.pack_into(">I", data, _CRC_POSITION, crc32c.crc32c(bytes(data[_CRC_START:])))
    return bytes(data)


def headers_of(records: bytes) -> list[tuple[int, ...]]:
    """The unpacked headers of whole batches, in order."""
    found = []
    position = 0
    while position + HEADER.size <= len(records):
        header = HEADER.unpack_from(records, position)
        found.append(header)
        position += 12 + header[1]
    return found


def codec_of(header: tuple[int, ...]) -> int:
    return header[5] & 0x07
