"""Where readers of committed records may stop looking for aborted transactions.

A transaction is entered in the segment of its marker, which may lie far behind its records. So of each sealed
segment the smallest first offset of its entries is kept in memory, and of each the smallest from there to the
end: behind the place where that is not below the end of a range, nothing concerns its reader. To learn these
numbers all indexes are read once, in a thread; what is entered later is counted in as it comes.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.errors import StorageError
from millrace.log.segments.segment import TXN_INDEX_SUFFIX, Segment
from millrace.log.segments.txn_index import NOTHING_ABORTED, TxnSummary, summarize

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

_UNKNOWN: Final = -1
"""Below every offset: whoever does not know has to look."""


class AbortedBounds:
    """What is known of the segments of one log."""

    __slots__ = ("_first", "_first_of", "_smallest_from", "segments")

    def __init__(self) -> None:
        self._first_of: dict[Segment, int] = {}
        self.segments: list[Segment] = []
        """Those for which the two lists were made, which leave out the last: that still changes."""
        self._first = array("q")
        self._smallest_from = array("q")

    def unread(self, segments: list[Segment]) -> list[Segment]:
        """The segments of a log whose indexes have to be read first."""
        unread = [] if segments is self.segments else self._take(segments)
        if not segments[-1].txn_index.is_known:
            unread.append(segments[-1])
        return unread

    def learned(self, segment: Segment, first_offset: int) -> None:
        """The smallest first offset of a sealed segment's entries."""
        self._first_of[segment] = first_offset

    def touching(self, number: int, end_offset: int) -> Iterator[Segment]:
        """From the segment with this number on those that may have transactions which begin below an
        offset."""
        for at in range(number, bisect_left(self._smallest_from, end_offset, min(number, len(self._first)))):
            if self._first[at] < end_offset:
                yield self.segments[at]
        yield self.segments[-1]

    def _take(self, segments: list[Segment]) -> list[Segment]:
        """Make the lists for the log's present segments; those of which nothing is known."""
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
        # Made again, as long as something is missing.
        self.segments = list(segments) if unread else segments
        return unread


async def learn_aborted(volume: Volume, log: PartitionLog, unread: Sequence[Segment]) -> None:
    """Read indexes in a thread of their disk. A failure teaches nothing: whoever looks meets it again."""
    segments = log.segment_list.all
    paths = tuple(segment.path(TXN_INDEX_SUFFIX) for segment in unread)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(volume.lane(Waits.READ, log.path), _read_all, volume, paths)
    except StorageError:
        return
    if log.segment_list.all is not segments or log.is_closed:
        return
    for segment, summary in zip(unread, found, strict=True):
        index = segment.opened_txn_index
        if index is None and summary.entries_count:
            index = segment.txn_index
        if index is not None:
            index.learn(summary)
        first_offset = NOTHING_ABORTED if index is None else index.first_offset
        if segment is not segments[-1] and first_offset != _UNKNOWN:
            log.state.aborted_bounds.learned(segment, first_offset)


def _read_all(volume: Volume, paths: Sequence[str]) -> list[TxnSummary]:
    return [summarize(volume, path) for path in paths]
