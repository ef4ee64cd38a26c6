"""The records of a share partition's window as runs: neighbours that have the same mark are one entry.

The runs cover the window without a hole, so a run ends where the next one begins, and nothing is kept for a
record. Invariant: neighbours differ, else they would be one run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.queues.share_partition.model import RecordState


class Mark(NamedTuple):
    """What there is to say of the records of a run."""

    state: RecordState
    delivery_count: int = 0
    until_ms: int = 0
    """Acquired: when the lock ends. Available: not before this time; 0 for at once."""
    owner: str = ""
    size: int = 0
    """How many records its first delivery had; halving them isolates the one that cannot be processed."""
    token: int = 0
    """The write that is to store this; 0 if none is under way."""
    prior: Mark | None = None
    """What to return to if that write fails."""
    cause: DeadLetterCause | None = None
    """Why it is given up; only while its dead letter is not committed."""


FRESH: Final = Mark(RecordState.AVAILABLE)
"""Never delivered: what a record is that nothing is stored of."""
# How often a record was delivered is of no use once it is done. Without the count runs of done records join.
ACKNOWLEDGED: Final = Mark(RecordState.ACKNOWLEDGED)
ARCHIVED: Final = Mark(RecordState.ARCHIVED)


class Runs:
    """Runs from `firsts[0]` up to, and without, `end`."""

    __slots__ = ("end", "firsts", "marks")

    def __init__(self, start: int) -> None:
        self.firsts: list[int] = []
        self.marks: list[Mark] = []
        self.end = start

    def __len__(self) -> int:
        return len(self.firsts)

    def append(self, last: int, mark: Mark) -> None:
        """Add what lies behind the end, up to `last`."""
        if not self.marks or self.marks[-1] != mark:
            self.firsts.append(self.end)
            self.marks.append(mark)
        self.end = last + 1

    def cut_end(self, mark: Mark) -> None:
        """Forget a last run that says this."""
        if self.marks and self.marks[-1] == mark:
            self.marks.pop()
            self.end = self.firsts.pop()

    def index(self, offset: int) -> int:
        """Which run has this offset; of those below the window the first."""
        return max(bisect_right(self.firsts, offset) - 1, 0)

    def last_of(self, index: int) -> int:
        return (self.firsts[index + 1] if index + 1 < len(self.firsts) else self.end) - 1

    def mark_of(self, first: int, last: int) -> Mark | None:
        """The mark of all of a range that lies in one run; None for any other. Most ranges do."""
        firsts = self.firsts
        index = bisect_right(firsts, first)
        if index and last < (firsts[index] if index < len(firsts) else self.end):
            return self.marks[index - 1]
        return None

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, Mark]]:
        """The parts of runs that lie in this range. The runs may be painted over up to where it has come."""
        offset = max(first, self.firsts[0]) if self.firsts else self.end
        last = min(last, self.end - 1)
        while offset <= last:
            index = bisect_right(self.firsts, offset) - 1
            piece_last = min(self.last_of(index), last)
            yield offset, piece_last, self.marks[index]
            offset = piece_last + 1

    def paint(self, first: int, last: int, mark: Mark) -> None:
        """Let this be what there is to say of a range, which must lie in the window."""
        firsts, marks = self.firsts, self.marks
        low = bisect_right(firsts, first) - 1
        high = bisect_left(firsts, last + 1, low) - 1
        high_end = firsts[high + 1] if high + 1 < len(firsts) else self.end
        assert low >= 0, (first, firsts)
        assert first <= last < high_end, (first, last, self.end)
        if (
            firsts[low] == first
            and last + 1 == high_end
            and low == high
            and not (low and marks[low - 1] == mark)
            and not (high + 1 < len(marks) and marks[high + 1] == mark)
        ):
            # A whole run becomes something else, and nothing joins: the most frequent case.
            marks[low] = mark
            return

        new_firsts, new_marks = [first], [mark]
        if firsts[low] < first:
            if marks[low] == mark:
                new_firsts[0] = firsts[low]
            else:
                new_firsts.insert(0, firsts[low])
                new_marks.insert(0, marks[low])
        elif low and marks[low - 1] == mark:
            low -= 1
            new_firsts[0] = firsts[low]
        if last + 1 < high_end:
            if marks[high] != mark:
                new_firsts.append(last + 1)
                new_marks.append(marks[high])
        elif high + 1 < len(firsts) and marks[high + 1] == mark:
            high += 1
        firsts[low : high + 1] = new_firsts
        marks[low : high + 1] = new_marks

    def cut_below(self, offset: int) -> None:
        """Forget all below this offset."""
        if offset >= self.end:
            self.firsts.clear()
            self.marks.clear()
            self.end = offset
        elif self.firsts and self.firsts[0] < offset:
            index = bisect_right(self.firsts, offset) - 1
            del self.firsts[:index]
            del self.marks[:index]
            self.firsts[0] = offset
