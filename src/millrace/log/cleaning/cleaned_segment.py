"""Writes one `.cleaned` segment with its indexes. Nobody reads it before the log takes it over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.log.disk.volume import Volume
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from millrace.log.segments.time_index import TimeIndex
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex
from millrace.wire.batch_header import NO_TIMESTAMP, read_header

_WRITE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFile:
    """What the log has to know of a finished segment to take it over."""

    base_offset: int
    size_bytes: int
    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int


class CleanedSegment:
    """Writes one segment, from the first batch to `finish` or `discard`."""

    def __init__(
        self, volume: Volume, directory: str, base_offset: int, *, index_interval_bytes: int
    ) -> None:
        self._volume = volume
        self._directory = directory
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self.discard()
        self._log = volume.file(self._path(LOG_SUFFIX), create=True)
        self._index = OffsetIndex(
            volume.file(self._path(OFFSET_INDEX_SUFFIX), create=True),
            base_offset=base_offset,
            stored_size_bytes=0,
        )
        self._time_index = TimeIndex(
            volume.file(self._path(TIME_INDEX_SUFFIX), create=True),
            base_offset=base_offset,
            stored_size_bytes=0,
        )
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._written = 0
        self._since_entry = 0
        self._next_offset = base_offset
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset

    def append(self, batch: bytes | memoryview) -> None:
        header = read_header(batch)
        last_offset = header.last_offset
        assert header.base_offset >= self._next_offset, (header.base_offset, self._next_offset)
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = last_offset
        if self._since_entry > self._interval_bytes:
            self._index.append(last_offset, position=self._written + self._waiting_bytes)
            self._time_index.append(self._max_timestamp, self._max_timestamp_offset)
            self._since_entry = 0
        self._waiting.append(batch)
        self._waiting_bytes += len(batch)
        self._since_entry += len(batch)
        self._next_offset = last_offset + 1
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def finish(self, aborted: Iterable[AbortedTransaction]) -> CleanedFile:
        """Complete the indexes and flush everything; returns what the log has to know of the segment."""
        self._write()
        if self._written == 0:
            # An empty file has no bytes to write but has to be there.
            self._log.truncate(0)
        if self._max_timestamp >= 0:
            self._time_index.append(self._max_timestamp, self._max_timestamp_offset)
        files = [self._log, self._index.file, self._time_index.file]
        for index in (self._index, self._time_index):
            index.trim_file()
        kept = list(aborted)
        if kept:
            txn_index = TxnIndex(self._volume.file(self._path(TXN_INDEX_SUFFIX), create=True))
            for entry in kept:
                txn_index.append(entry)
            files.append(txn_index.file)
        for file in files:
            file.sync()
            file.close()
        self._volume.sync_directory(self._directory)
        return CleanedFile(
            base_offset=self._base_offset,
            size_bytes=self._written,
            next_offset=self._next_offset,
            max_timestamp=self._max_timestamp,
            max_timestamp_offset=self._max_timestamp_offset,
        )

    def discard(self) -> None:
        """Remove whatever is there, also from an earlier attempt."""
        discard_cleaned(self._volume, self._directory, self._base_offset)

    def _write(self) -> None:
        if self._waiting:
            self._log.write_at(self._written, b"".join(self._waiting))
            self._written += self._waiting_bytes
            self._waiting.clear()
            self._waiting_bytes = 0

    def _path(self, suffix: str) -> str:
        return segment_path(self._directory, self._base_offset, suffix + CLEANED_SUFFIX)


def discard_cleaned(volume: Volume, directory: str, base_offset: int) -> None:
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        volume.remove(segment_path(directory, base_offset, suffix + CLEANED_SUFFIX))
