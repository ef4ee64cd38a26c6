"""The store of a single broker: a SQLite file, reached through the loop's executor, durable when a commit
returns.

Commits that arrive while the disk is busy share the next transaction, so that many small changes cost few
flushes. Leases end with the process, which is the only one that can hold the file: whatever hung on one is
removed at the start. A file that cannot be trusted is reported as StoreDamaged and left as it is.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from millrace.metadata.errors import Conflict, MetadataError, StoreDamaged, StoreUnavailable
from millrace.metadata.store import (
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

APPLICATION_ID: Final = 0x4D696C6C
"""Marks the file as ours, so that no other program's database is taken for it."""
FORMAT_VERSION: Final = 1
RESERVE_BYTES: Final = 512 * 1024
"""Freed when the disk is full: deleting a topic must remain possible, and needs a commit itself."""

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, mod_revision INTEGER NOT NULL, lease_id INTEGER, checksum
    INTEGER NOT NULL ) WITHOUT ROWID;
INSERT INTO state VALUES ('revision', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""
_UPSERT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)"


class _Commit(NamedTuple):
    compares: Sequence[Compare]
    puts: Sequence[Put]
    deletes: Sequence[str]
    done: asyncio.Future[int]


class _EndLease(NamedTuple):
    lease_id: LeaseId
    done: asyncio.Future[int]


_Request = _Commit | _EndLease


class _Written(NamedTuple):
    """What became of one request: its changes (none if it changed nothing) or its error."""

    batch: ChangeBatch | None
    error: MetadataError | None


class EmbeddedStore:
    operations_max = 1_000_000

    def __init__(self, path: str, *, busy_timeout_ms: int = 2_000) -> None:
        """`busy_timeout_ms`: how long to wait for a broker before us that is about to end."""
        self.path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._reserve_path = path + ".reserve"
        self._database: sqlite3.Connection | None = None
        self._revision = 0
        self._feed = ChangeFeed(0)
        self._leases = LeaseTable(self._lease_expired)
        self._queue: list[_Request] = []
        self._is_writing = False
        self._idle: asyncio.Future[None] | None = None

    async def open(self) -> None:
        assert self._database is None, "opened twice"
        await asyncio.get_running_loop().run_in_executor(None, self._open)
        self._feed = ChangeFeed(self._revision)

    async def close(self) -> None:
        self._leases.close()
        await self._wait_until_idle()
        self._feed.interrupt(StoreUnavailable("the metadata store is closed"))
        if self._database is not None:
            database, self._database = self._database, None
            await asyncio.get_running_loop().run_in_executor(None, database.close)

    async def load(self) -> Snapshot:
        await self._wait_until_idle()
        return await asyncio.get_running_loop().run_in_executor(None, self._load)

    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        keys = [put.key for put in puts] + list(deletes)
        assert len(set(keys)) == len(keys), "a key is written twice in one commit"
        for put in puts:
            self._leases.check(put.lease_id)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._enqueue(_Commit(compares, puts, deletes, done))
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
            self._enqueue(_EndLease(lease_id, done))
            await done

    # On the loop.

    async def _wait_until_idle(self) -> None:
        while self._is_writing:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _lease_expired(self, lease_id: LeaseId) -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Nobody waits for it; an error is the disk's and meets the next commit as well.
        done.add_done_callback(lambda ended: ended.exception() if not ended.cancelled() else None)
        self._enqueue(_EndLease(lease_id, done))

    def _enqueue(self, request: _Request) -> None:
        if self._database is None:
            raise StoreUnavailable("the metadata store is closed")
        self._queue.append(request)
        if not self._is_writing:
            self._write_queue()

    def _write_queue(self) -> None:
        requests, self._queue = self._queue, []
        self._is_writing = True
        writing = asyncio.get_running_loop().run_in_executor(None, self._write, requests)
        writing.add_done_callback(lambda done: self._written(requests, done))

    def _written(self, requests: list[_Request], done: asyncio.Future[list[_Written]]) -> None:
        self._is_writing = False
        if self._queue:
            self._write_queue()
        elif self._idle is not None:
            self._idle.set_result(None)
            self._idle = None
        failure = done.exception()
        if failure is not None:
            for request in requests:
                if not request.done.done():
                    request.done.set_exception(failure)
            return
        for request, written in zip(requests, done.result(), strict=True):
            if written.batch is not None:
                self._feed.publish(written.batch)
            if request.done.done():
                continue
            if written.error is not None:
                request.done.set_exception(written.error)
            else:
                request.done.set_result(self._feed.revision)

    # In the executor, one call at a time.

    def _open(self) -> None:
        try:
            database = sqlite3.connect(
                self.path, timeout=self._busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        try:
            # Exclusive: a second broker on the same file must fail at once.
            for pragma in (
                "locking_mode = EXCLUSIVE",
                "journal_mode = WAL",
                "synchronous = FULL",
                "cache_size = -512",
            ):
                database.execute(f"PRAGMA {pragma}").fetchall()
            self._prepare(database)
            self._revision = self._read_revision(database)
            self._database = database
            self._drop_leased(database)
        except sqlite3.Error as error:
            database.close()
            raise self._failure(error) from error
        except BaseException:
            database.close()
            raise
        self._make_reserve()

    def _prepare(self, database: sqlite3.Connection) -> None:
        (application_id,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application_id == 0 and tables == 0:
            database.executescript(_SCHEMA)
            return
        if application_id != APPLICATION_ID:
            raise StoreDamaged(self.path, "it is the database of another program")
        if version != FORMAT_VERSION:
            raise StoreDamaged(
                self.path, f"it has format {version}, this version of Millrace writes {FORMAT_VERSION}"
            )
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreDamaged(self.path, str(verdict))

    def _read_revision(self, database: sqlite3.Connection) -> int:
        row = database.execute("SELECT value FROM state WHERE name = 'revision'").fetchone()
        if row is None:
            raise StoreDamaged(self.path, "its revision is missing")
        return int(row[0])

    def _drop_leased(self, database: sqlite3.Connection) -> None:
        if (
            database.execute("SELECT 1 FROM entries WHERE lease_id IS NOT NULL LIMIT 1").fetchone()
            is not None
        ):
            self._revision += 1
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM entries WHERE lease_id IS NOT NULL")
            self._write_revision(database)
            database.execute("COMMIT")

    def _load(self) -> Snapshot:
        database = self._database
        if database is None:
            raise StoreUnavailable("the metadata store is closed")
        entries: dict[str, Versioned] = {}
        try:
            rows = database.execute("SELECT key, value, mod_revision, checksum FROM entries")
            for key, value, mod_revision, checksum in rows:
                if not isinstance(value, bytes) or checksum != _checksum(key, value, mod_revision):
                    raise StoreDamaged(self.path, f"the entry {key!r} fails its checksum")
                entries[key] = Versioned(value, mod_revision)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return Snapshot(self._revision, entries)

    def _write(self, requests: list[_Request]) -> list[_Written]:
        database = self._database
        assert database is not None, "closed while writing"
        try:
            return self._write_once(database, requests)
        except sqlite3.Error as error:
            failure = self._failure(error)
            is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            if not (is_full and self._free_reserve()):
                raise failure from error
        try:
            return self._write_once(database, requests)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _write_once(self, database: sqlite3.Connection, requests: list[_Request]) -> list[_Written]:
        before = self._revision
        database.execute("BEGIN IMMEDIATE")
        try:
            written = [self._apply(database, request) for request in requests]
            if self._revision != before:
                self._write_revision(database)
            database.execute("COMMIT")
        except BaseException:
            self._revision = before
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return written

    def _apply(self, database: sqlite3.Connection, request: _Request) -> _Written:
        if isinstance(request, _EndLease):
            rows = database.execute(
                "SELECT key FROM entries WHERE lease_id = ? ORDER BY key", (request.lease_id,)
            )
            return self._change(database, (), [key for (key,) in rows])
        for key, mod_revision in request.compares:
            row = database.execute("SELECT mod_revision FROM entries WHERE key = ?", (key,)).fetchone()
            if (row[0] if row is not None else 0) != mod_revision:
                return _Written(None, Conflict([compare.key for compare in request.compares]))
        present = [
            key
            for key in request.deletes
            if database.execute("SELECT 1 FROM entries WHERE key = ?", (key,)).fetchone() is not None
        ]
        return self._change(database, request.puts, present)

    def _change(self, database: sqlite3.Connection, puts: Sequence[Put], deletes: Sequence[str]) -> _Written:
        if not puts and not deletes:
            return _Written(None, None)
        self._revision += 1
        revision = self._revision
        database.executemany(
            _UPSERT,
            ((key, value, revision, lease, _checksum(key, value, revision)) for key, value, lease in puts),
        )
        database.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in deletes))
        changes = [KeyChange(put.key, put.value, revision) for put in puts]
        changes += [KeyChange(key, None, revision) for key in deletes]
        return _Written(ChangeBatch(revision, tuple(changes)), None)

    def _write_revision(self, database: sqlite3.Connection) -> None:
        database.execute("UPDATE state SET value = ? WHERE name = 'revision'", (self._revision,))

    def _failure(self, error: sqlite3.Error) -> MetadataError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # Without a code it is the Python layer that could make no sense of what it read.
        if code in (0, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreDamaged(self.path, str(error))
        if code == sqlite3.SQLITE_BUSY:
            return StoreUnavailable(f"the metadata store {self.path} is in use by another process")
        return StoreUnavailable(f"the metadata store {self.path}: {error}")

    def _make_reserve(self) -> None:
        if os.path.exists(self._reserve_path):
            return
        try:
            with open(self._reserve_path, "wb") as reserve:
                reserve.write(bytes(RESERVE_BYTES))
        except OSError:
            # A disk that is full already: the next start tries again.
            self._free_reserve()

    def _free_reserve(self) -> bool:
        try:
            os.unlink(self._reserve_path)
        except OSError:
            return False
        return True


def _checksum(key: str, value: bytes, mod_revision: int) -> int:
    return zlib.crc32(value, zlib.crc32(f"{key}@{mod_revision}".encode()))
