"""What only a file can suffer: damage, a second process, a full disk, and the end of the process."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.metadata.errors import StoreDamaged, StoreUnavailable, WatchLost
from millrace.metadata.store import ChangeBatch, Compare, KeyChange, Put, Snapshot, Versioned
from millrace.metadata.store.embedded import EmbeddedStore
from millrace.metadata.store.feed import ChangeFeed
from millrace.metadata.store.sqlite_file import APPLICATION_ID, RESERVE_BYTES


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


async def fill(path: Path, count: int = 50) -> Snapshot:
    store = EmbeddedStore(str(path))
    await store.open()
    for number in range(count):
        await store.commit(puts=[Put(f"key/{number}", bytes(200))])
    snapshot = await store.load()
    await store.close()
    return snapshot


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        before = await fill(tmp_path / "metadata.sqlite")
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        assert await store.load() == before
        assert await store.commit(compares=[Compare("key/0", 1)], puts=[Put("key/0", b"")]) == 51
        await store.close()

    run(body())


def test_a_commit_is_in_the_file_when_it_returns(tmp_path: Path) -> None:
    # The process may die right after: what a second reader finds in copies of the files is what a restart
    # finds.
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        await store.commit(puts=[Put("a", b"1")])
        for name in ("metadata.sqlite", "metadata.sqlite-wal"):
            (tmp_path / f"copy-of-{name}").write_bytes((tmp_path / name).read_bytes())
        await store.close()
        copy = EmbeddedStore(str(tmp_path / "copy-of-metadata.sqlite"))
        await copy.open()
        assert await copy.load() == Snapshot(1, {"a": Versioned(b"1", 1)})
        await copy.close()

    run(body())


def test_what_hung_on_a_lease_is_gone_with_the_process(tmp_path: Path) -> None:
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        lease = await store.grant_lease(60_000)
        await store.commit(puts=[Put("brokers/1", b"", lease), Put("topics/a", b"")])
        await store.close()
        again = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await again.open()
        assert await again.load() == Snapshot(2, {"topics/a": Versioned(b"", 1)})
        with pytest.raises(WatchLost):
            await anext(again.watch(1))
        await again.close()

    run(body())


@pytest.mark.parametrize("near", [b"SQLite format 3", b"CREATE TABLE entries", b"key/25"])
def test_damage_is_reported_and_the_file_left_alone(tmp_path: Path, near: bytes) -> None:
    # F8: an error that says what to do; never an empty store in place of a damaged one.
    path = tmp_path / "metadata.sqlite"

    async def body() -> None:
        await fill(path)
        content = bytearray(path.read_bytes())
        place = content.index(near)
        content[place : place + 64] = b"\xa5" * 64
        path.write_bytes(content)
        store = EmbeddedStore(str(path))
        with pytest.raises(StoreDamaged, match="The logs are untouched"):
            await open_and_load(store)
        await store.close()
        assert path.read_bytes()[place : place + 64] == b"\xa5" * 64

    run(body())


async def open_and_load(store: EmbeddedStore) -> None:
    await store.open()
    await store.load()


def test_a_changed_value_fails_its_checksum(tmp_path: Path) -> None:
    # SQLite itself does not notice a flipped bit inside a value.
    path = tmp_path / "metadata.sqlite"

    async def body() -> None:
        await fill(path, 3)
        with sqlite3.connect(path) as database:
            database.execute("UPDATE entries SET value = x'00' WHERE key = 'key/1'")
        database.close()
        store = EmbeddedStore(str(path))
        await store.open()
        with pytest.raises(StoreDamaged, match="'key/1' fails its checksum"):
            await store.load()
        await store.close()

    run(body())


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        text = tmp_path / "text.sqlite"
        text.write_text("these are not the pages you are looking for " * 50)
        with pytest.raises(StoreDamaged, match="not a database"):
            await EmbeddedStore(str(text)).open()
        other = tmp_path / "other.sqlite"
        with sqlite3.connect(other) as database:
            database.execute("CREATE TABLE photos (name TEXT)")
        database.close()
        with pytest.raises(StoreDamaged, match="another program"):
            await EmbeddedStore(str(other)).open()
        newer = tmp_path / "newer.sqlite"
        with sqlite3.connect(newer) as database:
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(StoreDamaged, match="format 99"):
            await EmbeddedStore(str(newer)).open()

    run(body())


def test_a_second_process_on_the_same_file_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        path = str(tmp_path / "metadata.sqlite")
        first, second = EmbeddedStore(path), EmbeddedStore(path, busy_timeout_ms=0)
        await first.open()
        await first.commit(puts=[Put("a", b"")])
        with pytest.raises(StoreUnavailable, match="in use by another process"):
            await second.open()
        await first.close()

    run(body())


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(StoreUnavailable, match=r"absent/metadata\.sqlite"):
            await EmbeddedStore(str(tmp_path / "absent" / "metadata.sqlite")).open()

    run(body())


def test_a_full_disk_costs_the_reserve_first_and_then_refuses(tmp_path: Path) -> None:
    # Deleting a topic is how a user makes room, so it must be possible on a full disk.
    async def body() -> None:
        path = tmp_path / "metadata.sqlite"
        reserve = tmp_path / "metadata.sqlite.reserve"
        store = EmbeddedStore(str(path))
        await store.open()
        assert reserve.stat().st_size == RESERVE_BYTES
        await store.commit(puts=[Put("a", b"")])
        database = store._file._database
        assert database is not None
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        with pytest.raises(StoreUnavailable, match="full"):
            await store.commit(puts=[Put("large", bytes(100_000))])
        assert not reserve.exists()
        assert await store.commit(deletes=["a"]) == 2
        assert await store.load() == Snapshot(2, {})
        await store.close()

    run(body())


def test_commits_that_wait_for_the_disk_share_a_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        groups: list[int] = []
        write = store._file.write

        def counted(requests: Sequence[Any]) -> Any:
            groups.append(len(requests))
            return write(requests)

        store._file.write = counted  # type: ignore[method-assign]
        revisions = await asyncio.gather(
            *(store.commit(puts=[Put(str(number), b"")]) for number in range(50))
        )
        assert sorted(revisions) == list(range(1, 51))
        assert groups == [1, 49]
        await store.close()

    run(body())


def test_one_thread_at_a_time_uses_the_file(tmp_path: Path) -> None:
    # A snapshot that was read while a commit was written had a revision that its entries did not have.
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        await store.commit(puts=[Put("first", b"")])
        inside: list[str] = []

        def alone(name: str) -> Callable[..., Any]:
            work = getattr(store._file, name)

            def checked(*arguments: Any) -> Any:
                inside.append(name)
                threading.Event().wait(0.002)
                try:
                    assert inside == [name]
                    return work(*arguments)
                finally:
                    inside.remove(name)

            return checked

        for name in ("load", "write", "close"):
            setattr(store._file, name, alone(name))
        for number in range(10):
            loaded, _, again, _ = await asyncio.gather(
                store.load(),
                store.commit(puts=[Put(f"a{number}", b"")]),
                store.load(),
                store.commit(puts=[Put(f"b{number}", b"")]),
            )
            for snapshot in (loaded, again):
                assert max(entry.mod_revision for entry in snapshot.entries.values()) == snapshot.revision
        await asyncio.gather(store.load(), store.close())

    run(body())


def test_a_closed_store_refuses_and_ends_its_watches(tmp_path: Path) -> None:
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "metadata.sqlite"))
        await store.open()
        watching = asyncio.ensure_future(anext(store.watch(0)))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await watching
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.commit(puts=[Put("a", b"")])

    run(body())


def test_history_is_bounded_but_the_newest_change_stays() -> None:
    async def body() -> None:
        feed = ChangeFeed(0, kept_changes_max=3)
        for revision in range(1, 6):
            feed.publish(ChangeBatch(revision, (KeyChange("a", b"", revision),)))
        with pytest.raises(WatchLost):
            await anext(feed.watch(1))
        assert (await anext(feed.watch(2))).revision == 3
        feed.publish(ChangeBatch(6, tuple(KeyChange(str(number), b"", 6) for number in range(10))))
        assert len((await anext(feed.watch(5))).changes) == 10

    run(body())
