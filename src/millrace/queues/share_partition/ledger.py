"""What of a share partition is stored, is being stored and still has to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from millrace.queues.share_partition.changes import DeadLetter
from millrace.queues.share_partition.model import Delta, StateBatch
from millrace.queues.share_partition.window import Window

Range = tuple[int, int]

# Beyond it ranges that wait for the next delta become the one that covers them.
_UNSTORED_MAX: Final = 1_000


class Write(NamedTuple):
    """A delta that is being stored."""

    returning: Sequence[Range]
    """Ranges that return to what they were if it cannot be stored."""
    standing: Sequence[Range]
    """Ranges that stay as they are, and go with a later delta if this one cannot be stored."""
    dead_letters: Sequence[DeadLetter]
    """To be produced afterwards, stored or not."""
    start_offset: int
    """The start that the delta tells, or -1."""


class Ledger:
    """Makes deltas of a window. Replaying those that were stored gives the window, with acquired records as
    available ones, but for the ranges in `unstored`."""

    __slots__ = ("_start_stored", "_window", "next_token", "unstored", "writes")

    def __init__(self, window: Window) -> None:
        self._window = window
        self.next_token = 1
        self.writes: dict[int, Write] = {}
        self.unstored: list[Range] = []
        # The first delta always has the start offset: whoever loaded the partition may have decided on it.
        self._start_stored = -1

    def write(
        self,
        *,
        returning: Sequence[Range] = (),
        standing: Sequence[Range] = (),
        dead_letters: Sequence[DeadLetter] = (),
    ) -> tuple[int, Delta]:
        """Begin a write of these ranges as they are, under `next_token`, which those that may return have
        been marked with."""
        token = self.next_token
        self.next_token += 1
        window = self._window
        if self.unstored:
            standing = [*self.unstored, *standing]
            self.unstored = []
        # Other writes may fail, so they move the start only when they are stored. Their records count as done
        # already: if they return, the next delta corrects the count, which only a lag is computed from.
        start = window.start_once_stored(token)
        batches: list[StateBatch] = []
        for first, last in _joined(returning, standing):
            if last >= start:
                _append(batches, window.stored_batches(max(first, start), last, token))
        told = start
        if start == self._start_stored or any(write.start_offset > start for write in self.writes.values()):
            # A write that is under way may move the start further. This one comes behind it, and must not
            # move it back: what was done in between would be delivered again.
            told = -1
        self.writes[token] = Write(returning, standing, dead_letters, told)
        return token, Delta(told, window.complete - (start - window.start), tuple(batches))

    def written(self, token: int, *, is_stored: bool) -> Write:
        """A write is over."""
        write = self.writes.pop(token)
        if is_stored:
            self._start_stored = max(self._start_stored, write.start_offset)
        else:
            self._start_stored = -1
            self.keep(write.standing)
        return write

    @property
    def lacks_start(self) -> bool:
        """Whether something is stored, but not where the window begins: the write that told it has failed,
        and those behind it relied upon it."""
        return self._start_stored < 0 and not self.writes

    def keep(self, ranges: Iterable[Range]) -> None:
        """Let ranges go with the next delta."""
        self.unstored.extend(ranges)
        if len(self.unstored) > _UNSTORED_MAX:
            lowest = min(first for first, _ in self.unstored)
            self.unstored = [(lowest, max(last for _, last in self.unstored))]


def _joined(returning: Sequence[Range], standing: Sequence[Range]) -> Sequence[Range]:
    if len(returning) + len(standing) <= 1:
        return returning or standing
    joined: list[Range] = []
    for first, last in sorted([*returning, *standing]):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _append(batches: list[StateBatch], more: Iterable[StateBatch]) -> None:
    """Add batches, equal neighbours as one: runs may differ in what is not stored."""
    for batch in more:
        if batches:
            before = batches[-1]
            if before.last_offset + 1 == batch.first_offset and before[2:] == batch[2:]:
                batches[-1] = before._replace(last_offset=batch.last_offset)
                continue
        batches.append(batch)
