"""The interface of the metadata store, as narrow as etcd's: revisions, transactions with compares, leases,
watches.

The store knows nothing of what its values mean. Every implementation passes tests/conformance/store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, NewType, Protocol

LeaseId = NewType("LeaseId", int)

ABSENT: Final = 0
"""The compared revision of a key that must not exist. The first change of a store has revision 1."""


class Versioned(NamedTuple):
    """The value of a key, and the revision that last changed it."""

    value: bytes
    mod_revision: int


class Snapshot(NamedTuple):
    """All that a store holds at one revision."""

    revision: int
    entries: dict[str, Versioned]


class Compare(NamedTuple):
    """Holds if the key was last changed at exactly this revision, or is absent for `ABSENT`."""

    key: str
    mod_revision: int


class Put(NamedTuple):
    """A key to write."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None
    """The key is deleted when this lease ends."""


class KeyChange(NamedTuple):
    """What one revision did to one key."""

    key: str
    value: bytes | None
    """None if the key was deleted."""
    mod_revision: int


class ChangeBatch(NamedTuple):
    """All changes of one revision: they happened at once."""

    revision: int
    changes: tuple[KeyChange, ...]


class Store(Protocol):
    """Where metadata lies: keys with values, changed in transactions that compare revisions."""

    operations_max: int
    """How many compares, puts and deletes one commit may have, each kind counted by itself."""

    async def open(self) -> None:
        """Make ready for use; raises StoreDamaged or StoreUnavailable."""

    async def close(self) -> None:
        """End all watches and release everything."""

    async def load(self) -> Snapshot:
        """Everything there is, at one revision."""

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """Apply all of it or nothing; the change is durable when this returns. Returns the revision after it.

        A key is in at most one put or delete. Deleting an absent key is no change, and a commit without a
        change returns the present revision. Raises Conflict if a compare does not hold, LeaseExpired for a
        lease that has ended, StoreUnavailable when the outcome is not known."""

    def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        """All changes after a revision, in order, without end. Raises WatchLost when some of them are not
        known any more, StoreWentBack when the store has not come that far, StoreUnavailable when it does not
        answer."""

    async def grant_lease(self, ttl_ms: int) -> LeaseId: ...

    async def keep_alive(self, lease_id: LeaseId) -> int:
        """Start the lease's time anew; returns that time in ms. Raises LeaseExpired."""

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        """End a lease now and delete its keys. A lease that has ended is no error."""
