"""Which batches of a compacted log belong to aborted transactions, and when a transaction's marker may go.

A marker must outlive every batch of its transaction: without its abort marker an aborted record would look
committed. So a marker becomes removable only in a pass that met no batch of its transaction any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.log.segments.txn_index import AbortedTransaction
from millrace.wire.batch_header import BatchHeader
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import ControlType, read_control_marker, read_records


class CleanedTransactions:
    """Takes every batch in offset order; knows the aborted transactions from the indexes."""

    def __init__(self, aborted: Iterable[AbortedTransaction], *, from_offset: int) -> None:
        distinct = {
            (entry.first_offset, entry.producer_id): entry
            for entry in aborted
            if entry.last_offset >= from_offset
        }
        self._waiting = deque(entry for _, entry in sorted(distinct.items()))
        self._aborting: dict[int, AbortedTransaction] = {}
        self._aborting_with_data: dict[int, AbortedTransaction] = {}
        self._committing: dict[int, None] = {}
        self.retained: list[AbortedTransaction] = []
        """Aborted transactions whose batches were met before their marker: the new index must keep them."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborting.get(header.producer_id)
        if aborted is None or aborted.last_offset < header.base_offset:
            self._committing[header.producer_id] = None
            return False
        self._aborting_with_data[header.producer_id] = aborted
        return True

    def is_marker_removable(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether a control batch ends a transaction of which nothing is left."""
        self._begin_up_to(header.last_offset)
        records = read_records(batch)
        if not records:
            return True
        try:
            marker = read_control_marker(records[0].key, records[0].value)
        except MalformedBatch:
            return False
        if marker is None:
            return False
        if marker.type == ControlType.ABORT:
            self._aborting.pop(header.producer_id, None)
            aborted = self._aborting_with_data.pop(header.producer_id, None)
            if aborted is not None:
                self.retained.append(aborted)
            return aborted is None
        if header.producer_id in self._committing:
            del self._committing[header.producer_id]
            return False
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            aborted = self._waiting.popleft()
            self._aborting[aborted.producer_id] = aborted
