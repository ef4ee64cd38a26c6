"""Tells good batches of a segment's file from damaged ones, and finds where good ones go on.

A batch's checksum covers all but its base offset, its length and its leader epoch. Those are judged by the
neighbours: offsets grow without overlapping, and epochs never fall.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from millrace.log.segments.header_walk import BATCH_LENGTH_MIN, RELATIVE_OFFSET_MAX
from millrace.log.segments.quarantine import DamagedRange
from millrace.wire.batch_header import CRC_START, HEADER, HEADER_SIZE, LENGTH_END, MAGIC, BatchHeader

_CHUNK_BYTES: Final = 1024 * 1024
NO_BOUND: Final = 2**63 - 1


class BatchReader:
    """Answers small questions about one segment's file out of large reads."""

    def __init__(
        self, read_at: Callable[[int, int], bytes], *, base_offset: int, size_bytes: int, upper_offset: int
    ) -> None:
        self._read_at = read_at
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.upper_offset = upper_offset
        """Where the next segment begins; NO_BOUND for the last one."""
        self._start = 0
        self._data = b""

    def bytes_at(self, position: int, size_bytes: int) -> memoryview:
        if position < self._start or position + size_bytes > self._start + len(self._data):
            self._data = self._read_at(position, max(size_bytes, _CHUNK_BYTES))
            self._start = position
        at = position - self._start
        return memoryview(self._data)[at : at + size_bytes]

    def header(self, position: int) -> BatchHeader | None:
        """What stands at a position as a header, if enough bytes are there."""
        fields = self._fields(position)
        return None if fields is None else BatchHeader._make(fields)

    def _fields(self, position: int) -> tuple[int, ...] | None:
        """As `header`, but a plain tuple, which costs less: recovery reads the headers of all batches."""
        if position + HEADER_SIZE > self.size_bytes:
            return None
        data = self.bytes_at(position, HEADER_SIZE)
        return HEADER.unpack(data) if len(data) == HEADER_SIZE else None

    def sound_batch(self, position: int, *, next_offset: int, last_epoch: int = -1) -> tuple[int, ...] | None:
        """The fields of the header, if a whole batch is there whose checksum, offset and epoch are right."""
        fields = self._intact_batch(position, next_offset=next_offset)
        if fields is None or self.is_contradicted(
            position, fields, next_offset=next_offset, last_epoch=last_epoch
        ):
            return None
        return fields

    def _intact_batch(self, position: int, *, next_offset: int) -> tuple[int, ...] | None:
        fields = self._fields(position)
        if fields is None:
            return None
        base_offset, length, _, magic, crc, _, delta, _, _, _, _, _, _ = fields
        size = LENGTH_END + length
        last_offset = base_offset + delta
        if (
            length < BATCH_LENGTH_MIN
            or position + size > self.size_bytes
            or magic != MAGIC
            or delta < 0
            or base_offset < next_offset
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or last_offset >= self.upper_offset
        ):
            return None
        batch = self.bytes_at(position, size)
        return fields if len(batch) == size and crc32c(batch[CRC_START:]) == crc else None

    def is_contradicted(
        self, position: int, fields: tuple[int, ...], *, next_offset: int, last_epoch: int
    ) -> bool:
        """Whether the next batch fits what came before this one, but not this one itself: then this one's
        offset or epoch is wrong."""
        base_offset, length, epoch, _, _, _, delta, _, _, _, _, _, _ = fields
        following = self._fields(position + LENGTH_END + length)
        if following is None:
            return False
        following_offset, _, following_epoch, magic, _, _, _, _, _, _, _, _, _ = following
        if magic != MAGIC:
            return False
        overlaps = base_offset + delta >= following_offset >= next_offset and base_offset > next_offset
        is_epoch_odd = epoch > following_epoch >= last_epoch and epoch != last_epoch
        if not (overlaps or is_epoch_odd):
            return False
        return self._intact_batch(position + LENGTH_END + length, next_offset=next_offset) is not None

    def find_sound_batch(self, position: int, *, next_offset: int) -> int | None:
        """Where the batches go on behind damage, or None if nothing good follows."""
        header = self.header(position)
        if header is not None:
            following = position + header.size_bytes
            # The length may have survived. Then what follows is no accident in somebody's payload.
            if (
                header.batch_length >= BATCH_LENGTH_MIN
                and self.sound_batch(following, next_offset=next_offset) is not None
            ):
                return following
        pattern = _batch_start_pattern(self.base_offset)
        window = position + 1
        while window + HEADER_SIZE <= self.size_bytes:
            data = bytes(self.bytes_at(window, min(_CHUNK_BYTES, self.size_bytes - window)))
            for match in pattern.finditer(data):
                candidate = window + match.start()
                found = self.sound_batch(candidate, next_offset=next_offset)
                if found is not None and self._chain_holds(candidate, BatchHeader._make(found)):
                    return candidate
            window += max(len(data) - HEADER_SIZE, 1)
        return None

    def _chain_holds(self, position: int, header: BatchHeader) -> bool:
        """Whether another batch or the end of the file follows, which bytes of a payload would not have."""
        following = position + header.size_bytes
        if following == self.size_bytes:
            return True
        return self.sound_batch(following, next_offset=header.next_offset) is not None

    def damage_at(self, position: int, *, next_offset: int) -> DamagedRange:
        """The range from a damaged batch to the next good one, or to the end of the file."""
        resume = self.find_sound_batch(position, next_offset=next_offset)
        header = None if resume is None else self.header(resume)
        if resume is None or header is None:
            return DamagedRange(position, self.size_bytes - position, next_offset, self.upper_offset)
        return DamagedRange(position, resume - position, next_offset, header.base_offset)


def _batch_start_pattern(base_offset: int) -> re.Pattern[bytes]:
    """Eight bytes of an offset that this segment can hold, eight of anything, the format's number."""
    highs = sorted({base_offset >> 32, (base_offset + RELATIVE_OFFSET_MAX) >> 32})
    alternatives = b"|".join(re.escape(high.to_bytes(4, "big")) for high in highs)
    return re.compile(b"(?=(?:%s).{12}\x02)" % alternatives, re.DOTALL)
