"""Walks over the headers of a segment's batches, one after the other, a chunk of the file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from millrace.log.disk.volume import VolumeFile
from millrace.log.errors import CorruptLog
from millrace.log.segments.quarantine import DamagedRange, behind_damage, bytes_to_skip
from millrace.wire.batch_header import HEADER, HEADER_SIZE, LENGTH_END, MAGIC

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LENGTH_END
WALK_BYTES: Final = 8192
"""How much is read at once: two index intervals of small batches, or the header of a large one."""


def walk_headers(
    file: VolumeFile, segment_offset: int, damaged: Sequence[DamagedRange], *, position: int, end: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Position and fields of each header from a batch's start on, for a segment that begins at an offset.

    Damaged ranges are left out. A header that cannot be right, and an offset that is not behind those before
    it, raise CorruptLog."""
    next_offset, offset_max = segment_offset, segment_offset + RELATIVE_OFFSET_MAX
    read_at = file.handle().read_at
    damage = bytes_to_skip(damaged)
    position, _ = behind_damage(damaged, position)
    chunk = b""
    chunk_start = position
    while position < end:
        if damage and position in damage:
            position += damage[position]
            continue
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk = read_at(position, min(WALK_BYTES, end - position))
            chunk_start = position
            at = 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptLog(file.path, position, offset=segment_offset, next_offset=None)
        fields: tuple[int, ...] = HEADER.unpack_from(chunk, at)
        base_offset, length, _, magic, _, _, delta, _, _, _, _, _, _ = fields
        last_offset = base_offset + delta
        if (
            length < BATCH_LENGTH_MIN
            or magic != MAGIC
            or position + LENGTH_END + length > end
            or not next_offset <= base_offset <= last_offset <= offset_max
        ):
            raise CorruptLog(file.path, position, offset=base_offset, next_offset=None)
        yield position, fields
        next_offset = last_offset + 1
        position += LENGTH_END + length
