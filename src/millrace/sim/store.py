"""A store in memory, for tests and the simulator. Several brokers may share one; it can be cut off and set
back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from millrace.metadata.errors import Conflict, StoreUnavailable
from millrace.metadata.store import (
    ABSENT,
    ChangeBatch,
    Compare,
    KeyChange,
    LeaseId,
    Put,
    Snapshot,
    Versioned,
)
from millrace.metadata.store.feed import ChangeFeed
from millrace.metadata.store.leases import LeaseTable


class MemoryStore:
    def __init__(self, *, operations_max: int = 1_000_000) -> None:
        self.operations_max = operations_max
        self.commit_count = 0
        self._entries: dict[str, Versioned] = {}
        self._lease_of: dict[str, LeaseId] = {}
        self._feed = ChangeFeed(0)
        self._leases = LeaseTable(self._end_lease)
        self._is_available = True

    # Faults.

    def set_available(self, is_available: bool) -> None:
        """Answer nobody until called again."""
        self._is_available = is_available
        self._feed.interrupt(None if is_available else StoreUnavailable("the simulated store is away"))

    def compact(self) -> None:
        """Forget how the present state came about."""
        self._feed.compact()

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the store was at an earlier time."""
        self._entries = dict(snapshot.entries)
        self._lease_of.clear()
        self._feed.reset(snapshot.revision)

    # The interface.

    async def open(self) -> None:
        await self._reach()

    async def close(self) -> None:
        self._leases.close()

    async def load(self) -> Snapshot:
        await self._reach()
        return Snapshot(self._feed.revision, dict(self._entries))

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        await self._reach()
        operations = max(len(compares), len(puts) + len(deletes))
        assert operations <= self.operations_max, (operations, self.operations_max)
        keys = [put.key for put in puts] + list(deletes)
        assert len(set(keys)) == len(keys), "a key is written twice in one commit"
        for put in puts:
            self._leases.check(put.lease_id)
        for key, mod_revision in compares:
            entry = self._entries.get(key)
            if (ABSENT if entry is None else entry.mod_revision) != mod_revision:
                raise Conflict([compare.key for compare in compares])
        self._apply(puts, [key for key in deletes if key in self._entries])
        self.commit_count += 1
        return self._feed.revision

    def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        return self._feed.watch(after_revision)

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        await self._reach()
        return self._leases.grant(ttl_ms)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        await self._reach()
        return self._leases.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        await self._reach()
        if self._leases.end(lease_id):
            self._end_lease(lease_id)

    async def _reach(self) -> None:
        # A real store answers in a later turn of the loop; so must this one, or races stay unseen.
        await asyncio.sleep(0)
        if not self._is_available:
            raise StoreUnavailable("the simulated store is away")

    def _end_lease(self, lease_id: LeaseId) -> None:
        self._apply((), sorted(key for key, holder in self._lease_of.items() if holder == lease_id))

    def _apply(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        if not puts and not deletes:
            return
        revision = self._feed.revision + 1
        changes = []
        for key, value, lease_id in puts:
            self._entries[key] = Versioned(value, revision)
            self._lease_of.pop(key, None)
            if lease_id is not None:
                self._lease_of[key] = lease_id
            changes.append(KeyChange(key, value, revision))
        for key in deletes:
            del self._entries[key]
            self._lease_of.pop(key, None)
            changes.append(KeyChange(key, None, revision))
        self._feed.publish(ChangeBatch(revision, tuple(changes)))
