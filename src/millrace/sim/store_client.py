"""A broker's way to the store that all brokers share: the way takes time, it can be cut, and an answer can be
lost after the store has done what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

from millrace.metadata.errors import StoreRefused, StoreUnavailable
from millrace.metadata.store import ChangeBatch, Compare, LeaseId, Put, Snapshot
from millrace.sim.loop import SimLoop
from millrace.sim.process import Process
from millrace.sim.store import MemoryStore

T = TypeVar("T")

STORE_HOST: Final = "store"
TIMEOUT_S: Final = 3.0
"""How long a client waits for a store that does not answer."""


class StoreClient:
    """Serves one process; the store goes on without it."""

    def __init__(self, store: MemoryStore, loop: SimLoop, process: Process) -> None:
        self._store = store
        self._loop = loop
        self._process = process
        self.operations_max = store.operations_max

    async def open(self) -> None:
        await self._ask(self._store.open_now)

    async def close(self) -> None:
        """The store is not this broker's to close."""

    async def load(self) -> Snapshot:
        return await self._ask(self._store.load_now)

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        return await self._ask(lambda: self._store.commit_now(compares, puts, deletes), is_change=True)

    async def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        await self._reach()
        async for batch in self._store.watch(after_revision):
            # The news travels, and does not arrive while the way is cut.
            await asyncio.sleep(self._latency())
            if self._is_cut():
                await asyncio.sleep(TIMEOUT_S)
                raise StoreUnavailable("the watch was cut off")
            yield batch

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        return await self._ask(lambda: self._store.grant_lease_now(ttl_ms), is_change=True)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        return await self._ask(lambda: self._store.keep_alive_now(lease_id), is_change=True)

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        await self._ask(lambda: self._store.revoke_lease_now(lease_id), is_change=True)

    async def _ask(self, work: Callable[[], T], *, is_change: bool = False) -> T:
        await self._reach()
        # This runs in nobody's context: what the store does, and the lease that it keeps, outlive the process
        # that asked.
        answer = self._loop.kernel.run(work)
        await asyncio.sleep(self._latency())
        if is_change and self._is_cut():
            await asyncio.sleep(TIMEOUT_S)
            raise StoreRefused("the store's answer was lost", "DEADLINE_EXCEEDED")
        return answer

    async def _reach(self) -> None:
        await asyncio.sleep(self._latency())
        if self._is_cut():
            await asyncio.sleep(TIMEOUT_S)
            raise StoreRefused("the store cannot be reached", "UNAVAILABLE")

    def _is_cut(self) -> bool:
        network = self._loop.network
        host = self._process.host
        return network.is_cut(host, STORE_HOST) or network.is_cut(STORE_HOST, host)

    def _latency(self) -> float:
        return self._loop.network.latency(self._process.host, STORE_HOST)
