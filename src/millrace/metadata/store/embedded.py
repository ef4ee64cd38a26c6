"""The store of a single broker: a SQLite file, reached through the loop's executor, durable when a commit
returns.

Commits that arrive while the disk is busy share the next transaction, so that many small changes cost few
flushes. Leases end with the process, which is the only one that can hold the file: a start removes whatever
hung on one. A file that cannot be trusted is reported as StoreDamaged and left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from millrace.metadata.errors import StoreUnavailable
from millrace.metadata.store import ChangeBatch, Compare, LeaseId, Put, Snapshot
from millrace.metadata.store.feed import ChangeFeed
from millrace.metadata.store.leases import LeaseTable
from millrace.metadata.store.sqlite_file import Commit, EndLease, Request, SqliteFile, Written


class _Waiting(NamedTuple):
    """A request, and the future of whoever waits for its outcome."""

    request: Request
    done: asyncio.Future[int]


class EmbeddedStore:
    """The store of a single broker: a SQLite file behind the same interface as etcd."""

    operations_max = 1_000_000

    def __init__(self, path: str, *, busy_timeout_ms: int = 2_000, lane: Executor | None = None) -> None:
        """`busy_timeout_ms` says how long to wait for an earlier broker that is about to end."""
        self.path = path
        self._file = SqliteFile(path, busy_timeout_ms=busy_timeout_ms)
        self._lane = lane
        self._is_open = False
        self._feed = ChangeFeed(0)
        self._leases = LeaseTable(self._lease_expired)
        self._queue: list[_Waiting] = []
        self._is_busy = False
        """Whether a thread uses the file, which only one may do at a time."""
        self._idle: asyncio.Future[None] | None = None

    async def open(self) -> None:
        revision = await asyncio.get_running_loop().run_in_executor(self._lane, self._file.open)
        self._is_open = True
        self._feed = ChangeFeed(revision)

    async def close(self) -> None:
        self._leases.close()
        self._is_open = False
        await self._wait_until_idle()
        self._feed.interrupt(StoreUnavailable("the metadata store is closed"))
        await asyncio.get_running_loop().run_in_executor(self._lane, self._file.close)

    async def load(self) -> Snapshot:
        await self._wait_until_idle()
        self._is_busy = True
        loading = asyncio.get_running_loop().run_in_executor(self._lane, self._file.load)
        loading.add_done_callback(lambda _: self._go_on())
        # The thread goes on, whatever becomes of the caller.
        return await asyncio.shield(loading)

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        keys = [put.key for put in puts] + list(deletes)
        assert len(set(keys)) == len(keys), "a key is written twice in one commit"
        for put in puts:
            self._leases.check(put.lease_id)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._enqueue(Commit(tuple(compares), tuple(puts), tuple(deletes)), done)
        return await done

    def watch(self, after_revision: int) -> AsyncIterator[ChangeBatch]:
        return self._feed.watch(after_revision)

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        return self._leases.grant(ttl_ms)

    async def keep_alive(self, lease_id: LeaseId) -> int:
        return self._leases.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        if self._leases.end(lease_id):
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._enqueue(EndLease(lease_id), done)
            await done

    # What runs on the loop.

    async def _wait_until_idle(self) -> None:
        while self._is_busy:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _lease_expired(self, lease_id: LeaseId) -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Nobody waits for this; an error comes from the disk and meets the next commit as well.
        done.add_done_callback(lambda ended: ended.exception() if not ended.cancelled() else None)
        self._enqueue(EndLease(lease_id), done)

    def _enqueue(self, request: Request, done: asyncio.Future[int]) -> None:
        if not self._is_open:
            raise StoreUnavailable("the metadata store is closed")
        self._queue.append(_Waiting(request, done))
        if not self._is_busy:
            self._write_queue()

    def _write_queue(self) -> None:
        waiting, self._queue = self._queue, []
        self._is_busy = True
        requests = tuple(each.request for each in waiting)
        writing = asyncio.get_running_loop().run_in_executor(self._lane, self._file.write, requests)
        writing.add_done_callback(lambda done: self._written(waiting, done))

    def _go_on(self) -> None:
        """Use the file for the next requests, or tell who waits that it is free."""
        self._is_busy = False
        if self._queue:
            self._write_queue()
        elif self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _written(self, waiting: list[_Waiting], done: asyncio.Future[list[Written]]) -> None:
        self._go_on()
        failure = done.exception()
        if failure is not None:
            for each in waiting:
                if not each.done.done():
                    each.done.set_exception(failure)
            return
        for each, written in zip(waiting, done.result(), strict=True):
            if written.batch is not None:
                self._feed.publish(written.batch)
            if each.done.done():
                continue
            if written.error is not None:
                each.done.set_exception(written.error)
            else:
                each.done.set_result(self._feed.revision)
