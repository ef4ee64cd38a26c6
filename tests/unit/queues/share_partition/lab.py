"""A share partition over a log of equal batches, with short ways to say what happens to it."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.core.errors import MillraceError
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acknowledging import AckRange
from millrace.queues.share_partition.acquiring import BatchSpan
from millrace.queues.share_partition.changes import Acquisition, Change
from millrace.queues.share_partition.model import (
    AcknowledgeType,
    AcquireMode,
    StateBatch,
    StoredState,
)
from millrace.queues.share_partition.partition import SharePartition

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW


def stored(*batches: StateBatch, start: int = 0) -> StoredState:
    return StoredState(state_epoch=1, start_offset=start, delivery_complete_count=0, batches=batches)


class Lab:
    """Stores every delta at once, unless told otherwise."""

    def __init__(
        self,
        settings: ShareSettings | None = None,
        *,
        batches: Sequence[int] = (100,),
        state: StoredState | None = None,
        timestamp_ms: int = -1,
    ) -> None:
        self.partition = SharePartition(settings or ShareSettings(), state or stored(), lambda: 0.5)
        self.spans: list[BatchSpan] = []
        offset = 0
        for size in batches:
            self.spans.append(BatchSpan(offset, offset + size - 1, timestamp_ms))
            offset += size
        self.log_end = offset
        self.now_ms = 1_000_000
        self.changes: list[Change] = []

    def take(
        self,
        records_max: int = 500,
        *,
        member: str = "a",
        batch_size: int = 500,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        waiting: int = 0,
    ) -> list[tuple[int, int, int]]:
        acquired = self.acquire(records_max, member=member, batch_size=batch_size, mode=mode, waiting=waiting)
        self.store(acquired.change)
        return [(run.first_offset, run.last_offset, run.delivery_count) for run in acquired.runs]

    def acquire(
        self, records_max: int, *, member: str, batch_size: int, mode: AcquireMode, waiting: int = 0
    ) -> Acquisition:
        ranges = self.partition.candidates(
            member, self.now_ms, limit_offset=self.log_end, records_max=records_max, waiting=waiting
        )
        spans = [
            span
            for span in self.spans
            if any(span.first_offset <= last and span.last_offset >= first for first, last in ranges)
        ]
        return self.partition.acquire(
            member,
            spans,
            ranges=ranges,
            records_max=records_max,
            batch_size=batch_size,
            mode=mode,
            now_ms=self.now_ms,
            waiting=waiting,
        )

    def say(self, first: int, last: int, kind: AcknowledgeType, *, member: str = "a") -> MillraceError | None:
        change = self.partition.acknowledge(member, [AckRange(first, last, kind)], self.now_ms)
        if isinstance(change, MillraceError):
            return change
        self.store(change)
        return None

    def begin(self, first: int, last: int, kind: AcknowledgeType, *, member: str = "a") -> Change:
        """Acknowledge, and leave it to the test when that is stored."""
        change = self.partition.acknowledge(member, [AckRange(first, last, kind)], self.now_ms)
        assert isinstance(change, Change), change
        return change

    def wait(self, ms: int) -> Change:
        self.now_ms += ms
        change = self.partition.expire(self.now_ms)
        self.store(change)
        return change

    def store(self, change: Change, *, is_stored: bool = True) -> Change:
        """Carry out a change, and what follows from it; the last change that did something."""
        self.changes.append(change)
        if not change.token:
            return change
        return self.store(self.partition.stored(change.token, is_stored=is_stored, now_ms=self.now_ms))

    @property
    def dead_letters(self) -> list[tuple[int, int, int, str]]:
        return [
            (*letter[:3], letter.cause.value) for change in self.changes for letter in change.dead_letters
        ]
