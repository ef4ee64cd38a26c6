"""The window of a share partition: the runs between what is done and what nobody has touched, and the sums
over them that decide what may be delivered."""

from __future__ import annotations

from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.queues.share_partition.key_order import KeyOrder
from millrace.queues.share_partition.model import RecordState, StateBatch, StoredState
from millrace.queues.share_partition.runs import ACKNOWLEDGED, ARCHIVED, FRESH, Mark, Runs

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ACKNOWLEDGED = RecordState.ACKNOWLEDGED
_ARCHIVING = RecordState.ARCHIVING
_ARCHIVED = RecordState.ARCHIVED


class Window:
    """Runs, and how many of their records are in which state."""

    __slots__ = ("acquired", "archiving", "complete", "deadline_ms", "held", "keys", "ready_from", "runs")

    def __init__(self, stored: StoredState, delivery_limit: int) -> None:
        assert stored.start_offset >= 0, "whoever loads a share partition decides where it begins"
        self.runs = Runs(stored.start_offset)
        self.keys: KeyOrder | None = None
        """Only if the group wants the records of a key in order."""
        self.acquired = 0
        self.held: dict[str, int] = {}
        """How many records each member has acquired."""
        self.complete = 0
        """How many records of the window are done, those included of which this is still to be stored."""
        self.archiving = 0
        self.ready_from = stored.start_offset
        """No record below it can be acquired."""
        self.deadline_ms: int | None = None
        """No lock ends and no held record becomes available before it."""
        for batch in sorted(stored.batches):
            if batch.last_offset < self.runs.end:
                continue
            if batch.first_offset > self.runs.end:
                self.append(batch.first_offset - 1, FRESH)
            self.append(batch.last_offset, _mark_of(batch, delivery_limit))
        self.trim()
        self.cut_untouched()

    @property
    def start(self) -> int:
        return self.runs.firsts[0] if self.runs.firsts else self.runs.end

    def append(self, last: int, mark: Mark) -> None:
        """Add what lies behind the window, up to `last`."""
        self._count(mark, last + 1 - self.runs.end)
        self.wait_until(mark)
        self.ready_from = min(self.ready_from, self.runs.end)
        self.runs.append(last, mark)

    def turn(self, first: int, last: int, old: Mark, new: Mark) -> None:
        """Let records of one run become something else."""
        size = last - first + 1
        state = old.state
        if state is _ACQUIRED:
            self._count(old, -size)
        elif state is _ARCHIVING:
            self.archiving -= size
        elif state is not _AVAILABLE:
            self.complete -= size
        state, until_ms = new.state, new.until_ms
        if state is _AVAILABLE:
            if first < self.ready_from and not until_ms and not new.token:
                self.ready_from = first
        elif state is _ACQUIRED:
            self._count(new, size)
        elif state is _ARCHIVING:
            self.archiving += size
        else:
            self.complete += size
        if until_ms and (self.deadline_ms is None or until_ms < self.deadline_ms):
            self.deadline_ms = until_ms
        self.runs.paint(first, last, new)
        if self.keys is not None:
            self.keys.turned(first, last, new)

    def wait_until(self, mark: Mark) -> None:
        """See to it that the end of a lock or of a wait is looked at."""
        if mark.until_ms and (self.deadline_ms is None or mark.until_ms < self.deadline_ms):
            self.deadline_ms = mark.until_ms

    def trim(self) -> None:
        """Leave behind what is done at the beginning."""
        firsts, marks = self.runs.firsts, self.runs.marks
        index, size = 0, len(marks)
        while index < size and marks[index].state in (_ACKNOWLEDGED, _ARCHIVED) and not marks[index].token:
            index += 1
        if index:
            end = firsts[index] if index < size else self.runs.end
            self.complete -= end - firsts[0]
            self.runs.cut_below(end)
            if self.keys is not None:
                self.keys.cut_below(end)

    def cut_below(self, offset: int) -> None:
        """Forget all below an offset, whatever has become of it."""
        for first, last, mark in list(self.runs.pieces(0, offset - 1)):
            if self.keys is None:
                self._count(mark, first - last - 1)
            else:
                # What waits behind lost records in their chains has to be found.
                self.turn(first, last, mark, ARCHIVED)
                self._count(ARCHIVED, first - last - 1)
        self.runs.cut_below(offset)
        if self.keys is not None:
            self.keys.cut_below(offset)
        self.ready_from = max(self.ready_from, offset)

    def cut_untouched(self) -> None:
        """Let records at the end that are as if nobody had ever had them be untouched log again."""
        # Their keys would have to be learned again.
        if self.keys is None:
            self.runs.cut_end(FRESH)

    def start_once_stored(self, token: int) -> int:
        """Where the window will begin once this write is stored and no other one is."""
        runs = self.runs
        for first, mark in zip(runs.firsts, runs.marks, strict=True):
            if mark.state not in (_ACKNOWLEDGED, _ARCHIVED) or mark.token not in (0, token):
                return first
        return runs.end

    def stored_batches(self, first: int, last: int, token: int) -> list[StateBatch]:
        """What there is to store of a range once this write is stored and no other one is."""
        batches: list[StateBatch] = []
        whole = self.runs.mark_of(first, last)
        pieces = self.runs.pieces(first, last) if whole is None else ((first, last, whole),)
        for piece_first, piece_last, piece_mark in pieces:
            mark = piece_mark
            if mark.token and mark.token != token:
                assert mark.prior is not None, mark
                mark = mark.prior
            if mark.state is _ACQUIRED:
                # A new leader offers it again, and knows nothing of the delivery that is under way.
                mark = Mark(_AVAILABLE, mark.delivery_count - 1)
            batches.append(
                StateBatch(
                    piece_first,
                    piece_last,
                    mark.state,
                    mark.delivery_count,
                    mark.until_ms if mark.state is _AVAILABLE else 0,
                )
            )
        return batches

    def _count(self, mark: Mark, size: int) -> None:
        state = mark.state
        if state is _ACQUIRED:
            self.acquired += size
            held = self.held.get(mark.owner, 0) + size
            if held:
                self.held[mark.owner] = held
            else:
                del self.held[mark.owner]
        elif state is _ARCHIVING:
            self.archiving += size
        elif state is not _AVAILABLE:
            self.complete += size


def _mark_of(batch: StateBatch, delivery_limit: int) -> Mark:
    if batch.state is _ACKNOWLEDGED:
        return ACKNOWLEDGED
    if batch.state is _ARCHIVED:
        return ARCHIVED
    if batch.state is _ARCHIVING:
        return Mark(
            _ARCHIVING, batch.delivery_count, cause=_likely_cause(batch.delivery_count, delivery_limit)
        )
    if batch.delivery_count == 0 and not batch.not_before_ms:
        return FRESH
    size = batch.last_offset - batch.first_offset + 1
    return Mark(_AVAILABLE, batch.delivery_count, batch.not_before_ms, size=size)


def _likely_cause(delivery_count: int, delivery_limit: int) -> DeadLetterCause:
    """Why a record was given up, as far as its count tells: the cause is not stored."""
    if not delivery_count:
        return DeadLetterCause.EXPIRED
    return DeadLetterCause.DELIVERY_LIMIT if delivery_count >= delivery_limit else DeadLetterCause.REJECTED
