"""Where readers of committed records may stop looking for aborted transactions.

A transaction's entry lies in the segment of its marker, which may lie far behind its records. So two numbers
for each sealed segment are kept in memory: the smallest first offset of its own entries, and the smallest in
all segments from there to the end. Where the second one is not below the end of a range, no later segment
concerns the range's reader. To learn these numbers, a thread reads all indexes once; later entries are
counted in as they come.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, FileMissing, StorageError
from millrace.log.partition.aborted_checks import Batches, IndexCheck, Place, aborted_if_wrong
from millrace.log.segments.segment import TXN_INDEX_SUFFIX, Segment, segment_path
from millrace.log.segments.txn_index import NOTHING_ABORTED, AbortedTransaction, TxnSummary, summarize

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)

_UNKNOWN: Final = -1
"""Below every offset, so that a reader looks into a segment of which nothing is known."""


class AbortedBounds:
    """What is known of the segments of one log."""

    __slots__ = ("_first", "_first_of", "_smallest_from", "segments")

    def __init__(self) -> None:
        self._first_of: dict[Segment, int] = {}
        self.segments: list[Segment] = []
        """The segments. The two lists describe all of them but the last one, which still changes."""
        self._first = array("q")
        self._smallest_from = array("q")

    def unread(self, segments: list[Segment]) -> list[Segment]:
        """The segments of a log whose indexes have to be read first."""
        unread = [] if segments is self.segments else self._take(segments)
        if not segments[-1].txn_index.is_known:
            unread.append(segments[-1])
        return unread

    def learned(self, segment: Segment, first_offset: int) -> None:
        """Note the smallest first offset of a sealed segment's entries."""
        self._first_of[segment] = first_offset

    def touching(self, number: int, end_offset: int) -> Iterator[Segment]:
        """The segments, from this number on, that may have entries of transactions which begin below an
        offset."""
        for at in range(number, bisect_left(self._smallest_from, end_offset, min(number, len(self._first)))):
            if self._first[at] < end_offset:
                yield self.segments[at]
        yield self.segments[-1]

    def _take(self, segments: list[Segment]) -> list[Segment]:
        """Make the lists for the log's present segments; returns the segments of which nothing is known."""
        before, self._first_of = self._first_of, {}
        unread = []
        for segment in segments[:-1]:
            index = segment.opened_txn_index
            first = before.get(segment, _UNKNOWN)
            if first == _UNKNOWN and index is not None and index.is_known:
                first = index.first_offset
            if first == _UNKNOWN:
                unread.append(segment)
            else:
                self._first_of[segment] = first
        self._first = array("q", [self._first_of.get(segment, _UNKNOWN) for segment in segments[:-1]])
        self._smallest_from = array("q", self._first)
        for number in range(len(segments) - 3, -1, -1):
            self._smallest_from[number] = min(self._smallest_from[number], self._smallest_from[number + 1])
        # A copy is not the log's own list, so the next call makes these again while something is missing.
        self.segments = list(segments) if unread else segments
        return unread


async def learn_aborted(volume: Volume, log: PartitionLog, unread: Sequence[Segment]) -> None:
    """Read indexes in a thread of their disk. A failure changes nothing: whoever looks meets it again."""
    segments = log.segment_list.all
    number_of = {segment: number for number, segment in enumerate(segments)}
    unread = [segment for segment in unread if segment in number_of]
    places = tuple(
        Place(segment.directory, segment.base_offset, segment.size_bytes, segment.damage)
        for segment in segments
    )
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(
            volume.lane(Waits.READ, log.path),
            _read_all,
            volume,
            tuple(number_of[segment] for segment in unread),
            places,
            log.log_start_offset,
            log.compacted_end,
        )
    except StorageError:
        return
    if log.segment_list.all is not segments or log.is_closed:
        return
    for segment, (summary, wanted) in zip(unread, found, strict=True):
        index = segment.opened_txn_index
        if wanted is not None:
            if index is None or index.is_as_read(summary):
                _replace(segment, wanted)
            # The next reader who asks reads the index again.
            continue
        if index is None and summary.entries_count:
            index = segment.txn_index
        if index is not None:
            index.learn(summary)
        first_offset = NOTHING_ABORTED if index is None else index.first_offset
        if segment is not segments[-1] and first_offset != _UNKNOWN:
            log.state.aborted_bounds.learned(segment, first_offset)


def _replace(segment: Segment, aborted: Sequence[AbortedTransaction]) -> None:
    logger.error("%s: its index of aborted transactions was wrong and is made again", segment.file.path)
    try:
        segment.replace_aborted(list(aborted))
    except StorageError as error:
        logger.warning("the index of aborted transactions of %s stays wrong: %s", segment.file.path, error)


def _read_all(
    volume: Volume,
    numbers: Sequence[int],
    places: Sequence[Place],
    log_start_offset: int,
    compacted_end: int,
) -> list[tuple[TxnSummary, tuple[AbortedTransaction, ...] | None]]:
    """What the indexes hold, and for the wrong ones what they should hold."""
    batches = Batches(volume, places, log_start_offset=log_start_offset, compacted_end=compacted_end)
    found = []
    for number in numbers:
        place = places[number]
        check = IndexCheck(batches, number)
        path = segment_path(place.directory, place.base_offset, TXN_INDEX_SUFFIX)
        summary = summarize(volume, path, check.look)
        wanted = None
        if check.is_contradicted and not place.damage:
            wanted = _wanted(volume, place, log_start_offset, compacted_end)
        found.append((summary, wanted))
    batches.close()
    return found


def _wanted(
    volume: Volume, place: Place, log_start_offset: int, compacted_end: int
) -> tuple[AbortedTransaction, ...] | None:
    """What the batches say; None if they cannot tell."""
    try:
        return aborted_if_wrong(
            volume,
            place.directory,
            place.base_offset,
            place.size_bytes,
            log_start_offset=log_start_offset,
            compacted_end=compacted_end,
        )
    except (CorruptLog, FileMissing):
        return None
