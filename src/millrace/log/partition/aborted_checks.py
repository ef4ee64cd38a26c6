"""Whether an index of aborted transactions can be true.

The index has no checksum, and an error in it shows readers of committed records what was aborted, or hides
what was not. So the first read compares the entries with each other and with the batches they speak of: where
the transaction began, where its marker is, and where the first transaction began that was still open. An
index that they contradict is made again from the batches of its segment. Only the scrub finds out that an
entry is missing.

This runs in threads: nothing here is shared with the loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, FileMissing
from millrace.log.segments.detached_segment import DetachedSegment
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, Segment, segment_path
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex
from millrace.log.state.producer_state import ProducerStates, decode_snapshot
from millrace.log.state.transactions import apply_batch
from millrace.wire.batch_header import (
    CONTROL_BIT,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
)

COMPARED_MAX: Final = 1024
"""So many entries of one index are compared with batches: whoever asked first waits for that."""
_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT


class Place(NamedTuple):
    """A segment as it is at a moment."""

    directory: str
    base_offset: int
    size_bytes: int
    damage: tuple[DamagedRange, ...]


class Batches:
    """The batches of a log, for questions about a few of them. The caller has to close it."""

    def __init__(
        self, volume: Volume, places: Sequence[Place], *, log_start_offset: int, compacted_end: int
    ) -> None:
        self._volume = volume
        self.places = places
        self.log_start_offset = log_start_offset
        self.compacted_end = compacted_end
        self._segments: dict[int, DetachedSegment] = {}

    def header_at(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds an offset, or of the one in its place; None if the batch may
        rightly be gone."""
        places = self.places
        if offset < max(self.log_start_offset, self.compacted_end, places[0].base_offset):
            return None
        number = bisect_right(places, offset, key=lambda place: place.base_offset) - 1
        place = places[number]
        if place.damage or not place.size_bytes:
            return None
        segment = self._segments.get(number)
        if segment is None:
            segment = DetachedSegment(self._volume, place.directory, place.base_offset, place.size_bytes)
            self._segments[number] = segment
        try:
            found = segment.locate(offset)
            data = b"" if found is None else segment.file.read_at(found.position, HEADER_SIZE)
        except (CorruptLog, FileMissing):
            # Whoever reads the batches finds the damage.
            return None
        return read_header(data) if len(data) == HEADER_SIZE else None

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()


class IndexCheck:
    """Looks at the entries of one segment's index in their order."""

    def __init__(self, batches: Batches, number: int) -> None:
        self._batches = batches
        places = batches.places
        self._base_offset = places[number].base_offset
        self._upper_offset = places[number + 1].base_offset if number + 1 < len(places) else None
        self._last_offset = -1
        self._last_stable_offset = 0
        self._compared_count = 0
        self.is_contradicted = False

    def look(self, entries: Sequence[AbortedTransaction], entries_count: int) -> None:
        """Look at the next entries, which should be `entries_count`: reading leaves out unknown kinds."""
        self.is_contradicted = (
            self.is_contradicted
            or len(entries) != entries_count
            or not all(self._can_follow(entry) for entry in entries)
            or any(self._is_denied(entry) for entry in entries)
        )

    def _can_follow(self, entry: AbortedTransaction) -> bool:
        _, first_offset, last_offset, last_stable_offset = entry
        before, self._last_offset = self._last_offset, last_offset
        stable_before, self._last_stable_offset = self._last_stable_offset, last_stable_offset
        return (
            before < last_offset >= self._base_offset
            and (self._upper_offset is None or last_offset < self._upper_offset)
            # What is stable holds no beginning of a transaction that ends later.
            and stable_before <= first_offset < last_offset
            and stable_before <= last_stable_offset <= last_offset + 1
        )

    def _is_denied(self, entry: AbortedTransaction) -> bool:
        """Whether the batches contradict an entry."""
        self._compared_count += 1
        if self._compared_count > COMPARED_MAX:
            return False
        producer_id, first_offset, last_offset, last_stable_offset = entry
        header_at = self._batches.header_at
        marker, first = header_at(last_offset), header_at(first_offset)
        if marker is not None and not _is_at(marker, last_offset, _BITS, producer_id):
            return True
        if first is not None and not _is_at(first, first_offset, TRANSACTIONAL_BIT, producer_id):
            return True
        # Either no other transaction was open, or the first open one began with a batch.
        other = None if last_stable_offset == last_offset + 1 else header_at(last_stable_offset)
        return other is not None and not _is_at(
            other, last_stable_offset, TRANSACTIONAL_BIT, other.producer_id
        )


def _is_at(header: BatchHeader, offset: int, bits: int, producer_id: int) -> bool:
    return (
        header.base_offset == offset
        and header.attributes & _BITS == bits
        and header.producer_id == producer_id
    )


def aborted_if_wrong(
    volume: Volume,
    directory: str,
    base_offset: int,
    size_bytes: int,
    *,
    log_start_offset: int,
    compacted_end: int,
) -> tuple[AbortedTransaction, ...] | None:
    """What the batches say of aborted transactions, if the index says something else.

    None as well if nothing can be said: compaction takes batches away that entries still name, and without a
    snapshot nobody knows who had a transaction open when the segment began."""
    if base_offset < max(compacted_end, log_start_offset):
        return None
    states: ProducerStates | None = ProducerStates()
    if base_offset > 0:
        try:
            data = volume.read_bytes(segment_path(directory, base_offset, SNAPSHOT_SUFFIX))
            states = decode_snapshot(data, now_ms=0)
        except FileMissing:
            return None
    if states is None:
        return None
    segment = Segment(volume, directory, base_offset, size_bytes)
    wanted: list[AbortedTransaction] = []
    for position, header in segment.headers():
        if header.producer_id >= 0:
            batch = segment.file.read_at(position, header.size_bytes) if header.is_control else b""
            aborted = apply_batch(states, header, batch, now_ms=0)
            if aborted is not None:
                wanted.append(aborted)
    segment.close()
    path = segment_path(directory, base_offset, TXN_INDEX_SUFFIX)
    present: list[AbortedTransaction] = []
    if volume.exists(path):
        file = volume.file(path)
        is_whole = file.size_bytes() == len(data := volume.read_bytes(path)) and not _has_odd_entries(data)
        present = TxnIndex(file).all_aborted() if is_whole else []
        file.close()
    return None if present == wanted else tuple(wanted)


def _has_odd_entries(data: bytes) -> bool:
    """Whether there are entries of an unknown version, which the reader of an index leaves out."""
    return any(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 34))
