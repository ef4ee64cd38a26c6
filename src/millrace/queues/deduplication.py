"""Which ids a partition has stored of late, so that a record that is sent again is not stored again.

Rules without I/O: time goes in. An id is known by 64 bits of its hash, with the time and the batch of its
record. A thousand million ids in a window make it likely that two of them meet; whoever has fewer need not
care.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition

ID_BYTES: Final = 112
"""What one id takes in memory, as measured, and a little more."""
EXPIRIES_IN_WINDOW: Final = 16
"""So often within the window ids that are too old leave the memory."""


class IdsNotLoaded(MillraceError):
    """A batch has to wait until the ids of its partition are known again."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition}: the ids of its last records are still being read; try again")


class _Stored(NamedTuple):
    """What all ids of a batch share."""

    time_ms: int
    base_offset: int


class StoredIds:
    """The ids of one partition, the oldest first."""

    __slots__ = ("_expire_at_ms", "_ids", "_newest_ms")

    def __init__(self) -> None:
        self._ids: dict[int, _Stored] = {}
        self._newest_ms = 0
        self._expire_at_ms = 0

    def __len__(self) -> int:
        return len(self._ids)

    def repeated(self, ids: Iterable[tuple[int, int]], older_than_ms: int) -> list[int]:
        """The places of the records whose ids were stored since, or stand in the same batch before."""
        known = self._ids
        seen: dict[int, None] = {}
        found = []
        for place, hashed in ids:
            stored = known.get(hashed)
            if hashed in seen or (stored is not None and stored.time_ms >= older_than_ms):
                found.append(place)
            else:
                seen[hashed] = None
        return found

    def batch_of(self, hashed: int) -> int | None:
        """The base offset of the batch that the id was stored with; None if it is not known."""
        stored = self._ids.get(hashed)
        return None if stored is None else stored.base_offset

    def add(self, hashes: Sequence[int], *, time_ms: int, base_offset: int) -> int:
        """Enter the ids of a batch behind all others; returns how many there are more. A clock that goes back
        makes them as old as the newest."""
        ids = self._ids
        before = len(ids)
        self._newest_ms = max(self._newest_ms, time_ms)
        stored = _Stored(self._newest_ms, base_offset)
        for hashed in hashes:
            # An id that is known but too old to count goes to the end.
            ids.pop(hashed, None)
            ids[hashed] = stored
        return len(ids) - before

    def expire(self, older_than_ms: int) -> int:
        """Forget what was stored before, if that may be much; returns how many ids are gone.

        A dictionary that loses its first entries one by one takes ever longer to find the first one left, so
        this happens once in a while, and `repeated` looks at the time."""
        if older_than_ms < self._expire_at_ms:
            return 0
        gone = []
        for hashed, stored in self._ids.items():
            if stored.time_ms >= older_than_ms:
                break
            gone.append(hashed)
        for hashed in gone:
            del self._ids[hashed]
        self._expire_at_ms = older_than_ms + (self._newest_ms - older_than_ms) // EXPIRIES_IN_WINDOW
        return len(gone)

    def drop_oldest(self, count: int) -> int:
        """Forget so many of the oldest, because there is no room; returns how many."""
        gone = list(islice(self._ids, count))
        for hashed in gone:
            del self._ids[hashed]
        return len(gone)
