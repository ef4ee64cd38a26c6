"""What every metadata store must do, the same body for each. etcd joins with the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from millrace.metadata.errors import Conflict, LeaseExpired, StoreWentBack
from millrace.metadata.store import ABSENT, ChangeBatch, Compare, KeyChange, Put, Snapshot, Store, Versioned
from millrace.metadata.store.embedded import EmbeddedStore
from millrace.sim.store import MemoryStore

T = TypeVar("T")
MakeStore: TypeAlias = Callable[[], Store]

TTL_MS = 40


@pytest.fixture(params=["embedded", "memory"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "memory":
        return MemoryStore
    return lambda: EmbeddedStore(str(tmp_path / "metadata.sqlite"))


def run(body: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(body)


@asynccontextmanager
async def opened(make_store: MakeStore) -> AsyncIterator[Store]:
    store = make_store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    async with asyncio.timeout(seconds):
        return await awaitable


async def take(watch: AsyncIterator[ChangeBatch], count: int) -> list[ChangeBatch]:
    return [await within(5, anext(watch)) for _ in range(count)]


def test_a_new_store_is_empty_at_revision_zero(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            assert await store.load() == Snapshot(0, {})

    run(body())


def test_a_commit_is_all_of_one_revision(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            assert await store.commit(puts=[Put("a", b"1"), Put("b", b"2")]) == 1
            assert await store.commit(puts=[Put("b", b"3")], deletes=["a"]) == 2
            assert await store.load() == Snapshot(2, {"b": Versioned(b"3", 2)})

    run(body())


def test_nothing_is_written_when_a_compare_fails(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            for compare in (Compare("a", ABSENT), Compare("a", 7), Compare("b", 1)):
                with pytest.raises(Conflict):
                    await store.commit(compares=[compare], puts=[Put("c", b"")], deletes=["a"])
            assert await store.load() == Snapshot(1, {"a": Versioned(b"1", 1)})

    run(body())


def test_compares_on_revision_and_on_absence_let_a_commit_through(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            compares = [Compare("a", 1), Compare("b", ABSENT)]
            assert await store.commit(compares=compares, puts=[Put("b", b"2")]) == 2

    run(body())


def test_a_commit_without_a_change_has_the_present_revision(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            assert await store.commit(deletes=["never there"]) == 1
            assert await store.commit(compares=[Compare("a", 1)]) == 1

    run(body())


def test_of_concurrent_creators_exactly_one_wins(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            outcomes = await asyncio.gather(
                *(
                    store.commit(compares=[Compare("a", ABSENT)], puts=[Put("a", str(number).encode())])
                    for number in range(20)
                ),
                return_exceptions=True,
            )
            assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
            (revision,) = [outcome for outcome in outcomes if isinstance(outcome, int)]
            assert (await store.load()).entries["a"].mod_revision == revision == 1

    run(body())


def test_a_watch_sees_every_change_in_order(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            watch = store.watch(0)
            await store.commit(puts=[Put("b", b"2"), Put("c", b"3")])
            await store.commit(deletes=["a"])
            assert await take(watch, 3) == [
                ChangeBatch(1, (KeyChange("a", b"1", 1),)),
                ChangeBatch(2, (KeyChange("b", b"2", 2), KeyChange("c", b"3", 2))),
                ChangeBatch(3, (KeyChange("a", None, 3),)),
            ]

    run(body())


def test_a_watch_waits_for_what_is_to_come(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            waiting = asyncio.ensure_future(anext(store.watch(1)))
            await asyncio.sleep(0)
            assert not waiting.done()
            await store.commit(puts=[Put("a", b"2")])
            assert (await within(5, waiting)).revision == 2

    run(body())


def test_two_watches_do_not_take_from_each_other(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first, second = store.watch(0), store.watch(0)
            for number in range(5):
                await store.commit(puts=[Put("a", str(number).encode())])
            assert await take(first, 5) == await take(second, 5)

    run(body())


def test_a_watch_from_the_future_shows_that_the_store_went_back(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            await store.commit(puts=[Put("a", b"1")])
            with pytest.raises(StoreWentBack):
                await within(5, anext(store.watch(9)))

    run(body())


def test_keys_go_when_their_lease_is_revoked(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            lease = await store.grant_lease(60_000)
            await store.commit(puts=[Put("a", b"", lease), Put("b", b"", lease), Put("c", b"")])
            watch = store.watch(1)
            await store.revoke_lease(lease)
            assert await take(watch, 1) == [
                ChangeBatch(2, (KeyChange("a", None, 2), KeyChange("b", None, 2)))
            ]
            assert list((await store.load()).entries) == ["c"]
            with pytest.raises(LeaseExpired):
                await store.keep_alive(lease)
            await store.revoke_lease(lease)

    run(body())


def test_keys_go_when_their_lease_expires_and_not_before(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            loop = asyncio.get_running_loop()
            lease = await store.grant_lease(TTL_MS)
            await store.commit(puts=[Put("a", b"", lease)])
            watch = store.watch(1)
            kept_until = loop.time()
            for _ in range(3):
                await asyncio.sleep(TTL_MS / 2000)
                assert await store.keep_alive(lease) == TTL_MS
                kept_until = loop.time()
            (batch,) = await take(watch, 1)
            assert batch.changes == (KeyChange("a", None, batch.revision),)
            # asyncio may run a timer early by the resolution of its clock.
            assert loop.time() - kept_until >= TTL_MS / 1000 - 0.002

    run(body())


def test_a_key_written_again_follows_its_new_lease(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first, second = await store.grant_lease(60_000), await store.grant_lease(60_000)
            await store.commit(puts=[Put("moved", b"", first), Put("freed", b"", first)])
            await store.commit(puts=[Put("moved", b"", second), Put("freed", b"")])
            await store.revoke_lease(first)
            assert sorted((await store.load()).entries) == ["freed", "moved"]
            await store.revoke_lease(second)
            assert sorted((await store.load()).entries) == ["freed"]

    run(body())


def test_an_ended_lease_takes_no_keys(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            lease = await store.grant_lease(60_000)
            await store.revoke_lease(lease)
            with pytest.raises(LeaseExpired):
                await store.commit(puts=[Put("a", b"", lease)])
            assert (await store.load()).revision == 0

    run(body())


def test_many_keys_fit_in_one_commit(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            puts = [Put(f"partitions/{number}", bytes(50)) for number in range(1_000)]
            assert await store.commit(puts=puts) == 1
            (batch,) = await take(store.watch(0), 1)
            assert len(batch.changes) == 1_000
            assert await store.commit(deletes=[put.key for put in puts]) == 2
            assert (await store.load()).entries == {}

    run(body())
