"""The aborted transactions that end in a segment: 34-byte entries, as Kafka's `.txnindex`."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millrace.log.errors import FileMissing
from millrace.log.volume import VolumeFile

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size
_VERSION: Final = 0
KNOWN_MAX: Final = 4096


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """The last stable offset when the transaction ended."""


class TxnIndex:
    """Most segments have no aborted transaction and no such file."""

    __slots__ = ("_file", "_known", "_size_bytes")

    def __init__(self, file: VolumeFile) -> None:
        self._file = file
        self._known: list[AbortedTransaction] | None = None
        """What was read last: readers of committed records ask for it with every fetch."""
        try:
            self._size_bytes = file.size_bytes() // ENTRY_SIZE * ENTRY_SIZE
        except FileMissing:
            self._size_bytes = 0

    @property
    def file(self) -> VolumeFile:
        return self._file

    def append(self, aborted: AbortedTransaction) -> None:
        self._file.write_at(self._size_bytes, _ENTRY.pack(_VERSION, *aborted))
        self._size_bytes += ENTRY_SIZE
        if self._known is not None:
            self._known.append(aborted)

    def all_aborted(self) -> list[AbortedTransaction]:
        if self._size_bytes == 0:
            return []
        known = self._known
        if known is not None and len(known) <= KNOWN_MAX:
            return known
        data = self._file.read_at(0, self._size_bytes)
        self._known = known = [
            AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data) if fields[0] == _VERSION
        ]
        if len(known) > KNOWN_MAX:
            self._known = None
        return known

    def aborted_between(self, fetch_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that touch the range, and whether later segments can add none."""
        found = []
        for aborted in self.all_aborted():
            if aborted.last_offset >= fetch_offset and aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that end at or after `offset`."""
        kept = [aborted for aborted in self.all_aborted() if aborted.last_offset < offset]
        size_bytes = len(kept) * ENTRY_SIZE
        if size_bytes != self._size_bytes:
            self._file.truncate(size_bytes)
            self._size_bytes = size_bytes
            self._known = None
