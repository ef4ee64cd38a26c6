"""Walks the batches of a stored segment in large reads. It never follows an impossible length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.log.disk.volume import VolumeFile
from millrace.wire.batch_header import HEADER_SIZE, LENGTH_END, OFFSET_AND_LENGTH
from millrace.wire.record_spans import MalformedBatch

READ_BYTES: Final = 1 << 20


def read_batches(
    file: VolumeFile, size_bytes: int, *, start: int = 0, read_bytes: int = READ_BYTES
) -> Iterator[tuple[int, memoryview]]:
    """Each whole batch with its position, from the batch that begins at `start`.

    Only lengths are looked at; checksums are the caller's business. MalformedBatch where no batch can begin.
    """
    position = start
    while position < size_bytes:
        data = memoryview(file.read_at(position, min(read_bytes, size_bytes - position)))
        at = 0
        while at + LENGTH_END <= len(data):
            base_offset, length = OFFSET_AND_LENGTH.unpack_from(data, at)
            end = at + LENGTH_END + length
            if length < HEADER_SIZE - LENGTH_END or position + end > size_bytes:
                raise MalformedBatch(
                    f"length {length} at byte {position + at} of {file.path}, which has {size_bytes}",
                    base_offset=base_offset,
                )
            if end > len(data):
                break
            yield position + at, data[at:end]
            at = end
        if at == 0:
            if len(data) < LENGTH_END:
                raise MalformedBatch(f"{file.path} ends within a header at byte {position}")
            # The first batch is larger than a read, so another read takes it as a whole.
            _, length = OFFSET_AND_LENGTH.unpack_from(data, 0)
            whole = memoryview(file.read_at(position, LENGTH_END + length))
            if len(whole) < LENGTH_END + length:
                raise MalformedBatch(f"{file.path} ends within the batch at byte {position}")
            yield position, whole
            at = len(whole)
        position += at
