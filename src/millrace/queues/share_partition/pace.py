"""How many records one member is given at once, so that others who are as ready get some, too.

Whole batches are what clients ask for by default, and all members together may hold only so many records.
Where each record takes its time, a few members would work off what they were given for seconds, and all
others would have nothing to do. So a member is given no more than its part of what may be held, and a batch
is cut for that. A cut batch leaves whole for each of its parts, though. Members that are done with a batch
before the others would notice are given whole ones: it costs less to wait for them.

Batches that came whole may be more than all together may hold. What was given too much to some must not keep
others from their part.
"""

from __future__ import annotations

from collections.abc import Container, Sized
from typing import Final, Protocol

from millrace.queues.share_partition.acquiring import NEVER_CUT

PATIENCE_MS: Final = 50
"""What a member works off in this time is never cut."""
_WEIGHT: Final = 1 / 8
"""Of the newest acknowledgement in what is known of the pace."""


class Holders(Container[str], Sized, Protocol):
    """The members that hold records."""


class Pace:
    """How long members take for a record, as far as their acknowledgements tell."""

    __slots__ = ("record_ms",)

    def __init__(self) -> None:
        self.record_ms = -1.0
        """Negative while nobody has acknowledged anything."""

    def took(self, elapsed_ms: int, records: int) -> None:
        """A member has acknowledged, so long after it was given so many records. A lock that was renewed is
        younger than what it locks, which makes the member look faster than it is."""
        if records > 0:
            newest = max(elapsed_ms, 0) / records
            known = self.record_ms
            self.record_ms = newest if known < 0 else known + (newest - known) * _WEIGHT

    def cut_at(self, part: int, locks_max: int) -> int:
        """How many records a member may be given at once whose part of what may be held is this."""
        record_ms = self.record_ms
        if part >= locks_max or 0 <= record_ms * locks_max <= PATIENCE_MS:
            return NEVER_CUT
        return max(part, int(PATIENCE_MS / record_ms) if record_ms > 0 else 1)


def part_of(locks_max: int, *, waiting: int, holders: Holders, member_id: str) -> int:
    """A member's part of what may be held, if so many others wait and these hold some."""
    members = waiting + len(holders) + (member_id not in holders)
    return max(locks_max // members, 1)
