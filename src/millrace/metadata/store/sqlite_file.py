"""The SQLite file behind the store of a single broker.

Threads use it, one call at a time: the caller waits for the result before the next one. The loop never looks
into it.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.metadata.errors import Conflict, MetadataError, StoreDamaged, StoreUnavailable
from millrace.metadata.store import ChangeBatch, Compare, KeyChange, LeaseId, Put, Snapshot, Versioned

APPLICATION_ID: Final = 0x4D696C6C
"""Marks the file as ours, so that no other program's database is taken for it."""
FORMAT_VERSION: Final = 1
RESERVE_BYTES: Final = 512 * 1024
"""Space that is freed when the disk is full: deleting a topic must remain possible, and needs a commit."""

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


class Commit(NamedTuple):
    """A transaction that somebody asked for."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...]
    deletes: tuple[str, ...]


class EndLease(NamedTuple):
    """The removal of all keys that hang on a lease."""

    lease_id: LeaseId


Request = Commit | EndLease


class Written(NamedTuple):
    """What became of one request: its changes (none if it changed nothing) or its error."""

    batch: ChangeBatch | None
    error: MetadataError | None


class SqliteFile:
    """The SQLite file of the metadata, for one thread at a time."""

    def __init__(self, path: str, *, busy_timeout_ms: int) -> None:
        self.path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._reserve_path = path + ".reserve"
        self._database: sqlite3.Connection | None = None
        self._revision = 0

    def open(self) -> int:
        """Open the file, or make it; returns its revision."""
        assert self._database is None, "opened twice"
        try:
            database = sqlite3.connect(
                self.path, timeout=self._busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        try:
            # The lock is exclusive: a second broker on the same file must fail at once.
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
        return self._revision

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

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

    def load(self) -> Snapshot:
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

    def write(self, requests: Sequence[Request]) -> list[Written]:
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

    def _write_once(self, database: sqlite3.Connection, requests: Sequence[Request]) -> list[Written]:
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

    def _apply(self, database: sqlite3.Connection, request: Request) -> Written:
        if isinstance(request, EndLease):
            rows = database.execute(
                "SELECT key FROM entries WHERE lease_id = ? ORDER BY key", (request.lease_id,)
            )
            return self._change(database, (), [key for (key,) in rows])
        for key, mod_revision in request.compares:
            row = database.execute("SELECT mod_revision FROM entries WHERE key = ?", (key,)).fetchone()
            if (row[0] if row is not None else 0) != mod_revision:
                return Written(None, Conflict([compare.key for compare in request.compares]))
        present = [
            key
            for key in request.deletes
            if database.execute("SELECT 1 FROM entries WHERE key = ?", (key,)).fetchone() is not None
        ]
        return self._change(database, request.puts, present)

    def _change(self, database: sqlite3.Connection, puts: Sequence[Put], deletes: Sequence[str]) -> Written:
        if not puts and not deletes:
            return Written(None, None)
        self._revision += 1
        revision = self._revision
        database.executemany(
            _UPSERT,
            ((key, value, revision, lease, _checksum(key, value, revision)) for key, value, lease in puts),
        )
        database.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in deletes))
        changes = [KeyChange(put.key, put.value, revision) for put in puts]
        changes += [KeyChange(key, None, revision) for key in deletes]
        return Written(ChangeBatch(revision, tuple(changes)), None)

    def _write_revision(self, database: sqlite3.Connection) -> None:
        database.execute("UPDATE state SET value = ? WHERE name = 'revision'", (self._revision,))

    def _failure(self, error: sqlite3.Error) -> MetadataError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # An error without a code comes from Python's layer, which could make no sense of what it read.
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
            # The disk is full already: the next start tries again.
            self._free_reserve()

    def _free_reserve(self) -> bool:
        try:
            os.unlink(self._reserve_path)
        except OSError:
            return False
        return True


def _checksum(key: str, value: bytes, mod_revision: int) -> int:
    return zlib.crc32(value, zlib.crc32(f"{key}@{mod_revision}".encode()))
