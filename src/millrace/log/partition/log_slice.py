"""What a read of a log gives: a place in a file, which is sent without being copied."""

from __future__ import annotations

from typing import Final

from millrace.log.disk.volume import FileHandle

_WARM_BYTES: Final = 1024 * 1024


class LogSlice:
    """Whole batches in one file, not read yet. `file` stays open for as long as the slice is held."""

    __slots__ = ("file", "is_hot", "position", "size_bytes", "upper_offset")

    def __init__(
        self, file: FileHandle | None, position: int, size_bytes: int, is_hot: bool, *, upper_offset: int = -1
    ) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self.is_hot = is_hot
        """Whether it was appended a moment ago: then it is in the page cache, and nobody needs to ask."""
        self.upper_offset = upper_offset
        """Where its segment ends; -1 for the active one."""

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.size_bytes) if self.file is not None else b""

    def warm(self) -> None:
        """Read it into the page cache, piece by piece; to be called off the loop."""
        if self.file is not None:
            end = self.position + self.size_bytes
            for position in range(self.position, end, _WARM_BYTES):
                self.file.read_at(position, min(_WARM_BYTES, end - position))

    def is_cold(self) -> bool:
        """Whether sending it now could wait for the disk."""
        return not (self.is_hot or self.file is None or self.file.is_cached(self.position, self.size_bytes))


EMPTY_SLICE: Final = LogSlice(None, 0, 0, True)
