"""A store in memory, for tests and the simulator. Several brokers may share one; it can be cut off and set
back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

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
    """A metadata store that lives as long as the test."""

    def __init__(self, *, operations_max: int = 1_000_000) -> None:
        self.operations_max = operations_max
        self.commit_count = 0
        self.on_change: Callable[[Sequence[KeyChange]], None] | None = None
        """Hears of every change at the moment it is made."""
        self._entries: dict[str, Versioned] = {}
        self._lease_of: dict[str, LeaseId] = {}
        self._feed = ChangeFeed(0)
        self._leases = LeaseTable(self._end_lease)
        self._is_available = True

    # Faults.

    def set_available(self, is_available: bool) -> None:
        """Answer everybody from now on, or nobody."""
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

    def peek(self) -> Snapshot:
        """The present state, also while nobody is answered."""
        return Snapshot(self._feed.revision, dict(self._entries))

    # The interface. Those who bring their own delays call the same as `..._now`.

    async def open(self) -> None:
        await _next_turn()
        self.open_now()

    def open_now(self) -> None:
        self._check_available()

    async def close(self) -> None:
        self._leases.close()

    async def load(self) -> Snapshot:
        await _next_turn()
        return self.load_now()

    def load_now(self) -> Snapshot:
        self._check_available()
        return self.peek()

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        await _next_turn()
        return self.commit_now(compares, puts, deletes)

    def commit_now(self, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> int:
        self._check_available()
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
        await _next_turn()
        return self.grant_lease_now(ttl_ms)

    def grant_lease_now(self, ttl_ms: int) -> LeaseId:
        self._check_available()
        return self._leases.grant(ttl_ms)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        await _next_turn()
        return self.keep_alive_now(lease_id)

    def keep_alive_now(self, lease_id: LeaseId) -> int:
        self._check_available()
        return self._leases.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        await _next_turn()
        self.revoke_lease_now(lease_id)

    def revoke_lease_now(self, lease_id: LeaseId) -> None:
        self._check_available()
        if self._leases.end(lease_id):
            self._end_lease(lease_id)

    def _check_available(self) -> None:
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
        if self.on_change is not None:
            self.on_change(changes)
        self._feed.publish(ChangeBatch(revision, tuple(changes)))


async def _next_turn() -> None:
    """A real store answers in a later turn of the loop; so must this one, or races stay unseen."""
    await asyncio.sleep(0)
