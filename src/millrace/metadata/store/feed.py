"""The recent changes of a store that lives in this process, for those who watch it. It forgets old ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from millrace.metadata.errors import StoreUnavailable, StoreWentBack, WatchLost
from millrace.metadata.store import ChangeBatch

KEPT_CHANGES_MAX: Final = 5_000
"""Counts changed keys, not batches. A watcher in this process is at most a few turns of the loop behind."""


class ChangeFeed:
    """Hands the changes of a store to those who follow it, and keeps the latest for those who come later."""

    def __init__(self, revision: int, *, kept_changes_max: int = KEPT_CHANGES_MAX) -> None:
        self.revision = revision
        self._compacted = revision
        self._kept_changes_max = kept_changes_max
        self._kept_changes = 0
        self._batches: deque[ChangeBatch] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self._interruption: StoreUnavailable | None = None

    def publish(self, batch: ChangeBatch) -> None:
        assert batch.revision == self.revision + 1, (batch.revision, self.revision)
        self.revision = batch.revision
        self._batches.append(batch)
        self._kept_changes += len(batch.changes)
        # The newest batch stays however large it is, or a watcher that is up to date would be thrown out.
        while self._kept_changes > self._kept_changes_max and len(self._batches) > 1:
            self._forget_oldest()
        self._wake()

    def compact(self) -> None:
        """Forget everything up to now."""
        while self._batches:
            self._forget_oldest()

    def reset(self, revision: int) -> None:
        """Go on from another state; those who watch learn it from the revision."""
        self._batches.clear()
        self._kept_changes = 0
        self.revision = self._compacted = revision
        self._wake()

    def interrupt(self, error: StoreUnavailable | None) -> None:
        """Fail all watches, also those to come, until this is called with None."""
        self._interruption = error
        self._wake()

    async def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        while True:
            if self._interruption is not None:
                raise StoreUnavailable(str(self._interruption))
            if after_revision > self.revision:
                raise StoreWentBack(seen=after_revision, found=self.revision)
            if after_revision < self._compacted:
                raise WatchLost(after_revision, self._compacted + 1)
            if after_revision == self.revision:
                await self._next_change()
                continue
            batch = self._batches[after_revision - self._compacted]
            after_revision = batch.revision
            yield batch

    async def _next_change(self) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _forget_oldest(self) -> None:
        batch = self._batches.popleft()
        self._kept_changes -= len(batch.changes)
        self._compacted = batch.revision
