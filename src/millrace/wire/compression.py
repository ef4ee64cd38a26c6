"""The four codecs of record batches. Never inflates past the caller's limit: a bomb costs that much at most.

We write what every Kafka client reads: gzip, snappy in the Java library's framing, an lz4 frame of
independent blocks (the Java client refuses linked ones), a zstd frame. We also read raw snappy and linked
lz4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from millrace.core.errors import MillraceError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The codec bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: Final[dict[Codec, str]] = {
    Codec.NONE: "uncompressed",
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}
CODECS_BY_NAME: Final[dict[str, Codec]] = {name: codec for codec, name in CODEC_NAMES.items()}

GZIP_LEVEL_DEFAULT: Final = -1
LZ4_LEVEL_DEFAULT: Final = 9
ZSTD_LEVEL_DEFAULT: Final = 3

_FIRST_OUTPUT_MIN: Final = 64 * 1024
# The library reports a full output buffer by this text alone; a unit test pins it.
_OUTPUT_FULL: Final = "failed to write whole buffer"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
# The best a snappy element can do is 64 bytes out of 3; a preamble that promises more is a lie.
_SNAPPY_RATIO_MAX: Final = 64

# Magic; version 1, independent blocks, no checksums; blocks of 64 KiB; the checksum of the last two bytes.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_END: Final = bytes(4)

_INT32: Final = struct.Struct(">i")
_LZ4_SIZE: Final = struct.Struct("<I")


class CorruptCompression(MillraceError):
    def __init__(self, codec: Codec, reason: str) -> None:
        super().__init__(f"{CODEC_NAMES[codec]} data is damaged: {reason}")
        self.codec = codec


class DecompressedTooLarge(MillraceError):
    def __init__(self, codec: Codec, limit_bytes: int) -> None:
        super().__init__(f"{CODEC_NAMES[codec]} data inflates to more than {limit_bytes} bytes")
        self.codec = codec
        self.limit_bytes = limit_bytes


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's format; None is the codec's default level."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            # Kafka's -1 is zlib's word for its default, which this library spells as no level.
            return bytes(cramjam.gzip.compress(data, level=None if level == GZIP_LEVEL_DEFAULT else level))
        case Codec.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4_frame(memoryview(data), LZ4_LEVEL_DEFAULT if level is None else level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL_DEFAULT if level is None else level))


def decompress(codec: Codec, data: Buffer, limit_bytes: int) -> bytes | bytearray:
    """The original bytes, or DecompressedTooLarge before more than `limit_bytes` of them are held.

    Mostly a bytearray, because that is what the codecs write into; a copy would double the memory.
    """
    match codec:
        case Codec.NONE:
            if len(data) > limit_bytes:
                raise DecompressedTooLarge(codec, limit_bytes)
            return bytes(data)
        case Codec.GZIP:
            return _inflate(codec, cramjam.gzip.decompress_into, data, limit_bytes)
        case Codec.SNAPPY:
            if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _decompress_xerial(memoryview(data), limit_bytes)
            return _decompress_raw_snappy(data, limit_bytes, limit_bytes)
        case Codec.LZ4:
            return _inflate(codec, cramjam.lz4.decompress_into, data, limit_bytes)
        case Codec.ZSTD:
            return _inflate(codec, cramjam.zstd.decompress_into, data, limit_bytes)


def _inflate(
    codec: Codec, decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit_bytes: int
) -> bytearray:
    """Inflate into a buffer of fixed size, trying again with a larger one: no stream exceeds the limit."""
    size = min(limit_bytes, max(_FIRST_OUTPUT_MIN, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise CorruptCompression(codec, str(error)) from None
            if size >= limit_bytes:
                raise DecompressedTooLarge(codec, limit_bytes) from None
            size = min(limit_bytes, 8 * size)
            del output
            continue
        del output[written:]
        return output


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_xerial(data: memoryview, limit_bytes: int) -> bytearray:
    output = bytearray()
    position = len(_XERIAL_HEADER)
    end = len(data)
    while position < end:
        # Streams may be joined end to end, each with its own header.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        if position + 4 > end:
            raise CorruptCompression(Codec.SNAPPY, "cut inside a block's length")
        (size,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 < size <= end - position:
            raise CorruptCompression(Codec.SNAPPY, f"a block of {size} bytes where {end - position} remain")
        room = limit_bytes - len(output)
        output += _decompress_raw_snappy(data[position : position + size], room, limit_bytes)
        position += size
    return output


def _decompress_raw_snappy(data: Buffer, room: int, limit_bytes: int) -> bytearray:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > len(data) * _SNAPPY_RATIO_MAX:
            raise CorruptCompression(Codec.SNAPPY, f"{len(data)} bytes cannot hold the promised {size}")
        if size > room:
            raise DecompressedTooLarge(Codec.SNAPPY, limit_bytes)
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(data, output) if size else 0
    except cramjam.DecompressionError as error:
        raise CorruptCompression(Codec.SNAPPY, str(error)) from None
    if written != size:
        raise CorruptCompression(Codec.SNAPPY, f"{written} bytes where {size} were promised")
    return output


def _compress_lz4_frame(data: memoryview, level: int) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        block = data[start : start + _LZ4_BLOCK]
        # Kafka's default level is a name for the fast compressor; every other level is the thorough one.
        if level == LZ4_LEVEL_DEFAULT:
            packed = bytes(cramjam.lz4.compress_block(block, mode="default", store_size=False))
        else:
            packed = bytes(
                cramjam.lz4.compress_block(
                    block, mode="high_compression", compression=level, store_size=False
                )
            )
        if len(packed) < len(block):
            parts += (_LZ4_SIZE.pack(len(packed)), packed)
        else:
            parts += (_LZ4_SIZE.pack(len(block) | _LZ4_STORED), bytes(block))
    parts.append(_LZ4_END)
    return b"".join(parts)
