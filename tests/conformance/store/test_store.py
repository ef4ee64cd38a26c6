"""What every metadata store must do, the same body for each. etcd is the real program, shared by all tests,
each with a prefix of its own: revisions begin anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from millrace.metadata.errors import Conflict, LeaseExpired, StoreWentBack
from millrace.metadata.store import ABSENT, ChangeBatch, Compare, KeyChange, Put, Snapshot, Store, Versioned
from tests.conformance.store.conftest import MakeStore

T = TypeVar("T")


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


async def revision_of(store: Store) -> int:
    return (await store.load()).revision


async def take(watch: AsyncIterator[ChangeBatch], count: int) -> list[ChangeBatch]:
    return [await within(60, anext(watch)) for _ in range(count)]


def test_a_new_store_is_empty(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            assert (await store.load()).entries == {}

    run(body())


def test_a_commit_is_all_of_one_revision(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first = await store.commit(puts=[Put("a", b"1"), Put("b", b"2")])
            assert await store.load() == Snapshot(
                first, {"a": Versioned(b"1", first), "b": Versioned(b"2", first)}
            )
            assert await store.commit(puts=[Put("b", b"3")], deletes=["a"]) == first + 1
            assert await store.load() == Snapshot(first + 1, {"b": Versioned(b"3", first + 1)})

    run(body())


def test_nothing_is_written_when_a_compare_fails(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first = await store.commit(puts=[Put("a", b"1")])
            for compare in (Compare("a", ABSENT), Compare("a", first + 6), Compare("b", first)):
                with pytest.raises(Conflict):
                    await store.commit(compares=[compare], puts=[Put("c", b"")], deletes=["a"])
            assert await store.load() == Snapshot(first, {"a": Versioned(b"1", first)})

    run(body())


def test_compares_on_revision_and_on_absence_let_a_commit_through(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first = await store.commit(puts=[Put("a", b"1")])
            compares = [Compare("a", first), Compare("b", ABSENT)]
            assert await store.commit(compares=compares, puts=[Put("b", b"2")]) == first + 1

    run(body())


def test_a_commit_without_a_change_has_the_present_revision(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first = await store.commit(puts=[Put("a", b"1")])
            assert await store.commit(deletes=["never there"]) == first
            assert await store.commit(compares=[Compare("a", first)]) == first

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
            assert (await store.load()).entries["a"].mod_revision == revision

    run(body())


def test_a_watch_sees_every_change_in_order(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            start = await revision_of(store)
            one = await store.commit(puts=[Put("a", b"1")])
            watch = store.watch(start)
            two = await store.commit(puts=[Put("b", b"2"), Put("c", b"3")])
            three = await store.commit(deletes=["a"])
            assert await take(watch, 3) == [
                ChangeBatch(one, (KeyChange("a", b"1", one),)),
                ChangeBatch(two, (KeyChange("b", b"2", two), KeyChange("c", b"3", two))),
                ChangeBatch(three, (KeyChange("a", None, three),)),
            ]

    run(body())


def test_a_watch_waits_for_what_is_to_come(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            first = await store.commit(puts=[Put("a", b"1")])
            waiting = asyncio.ensure_future(anext(store.watch(first)))
            await asyncio.sleep(0)
            assert not waiting.done()
            second = await store.commit(puts=[Put("a", b"2")])
            assert (await within(60, waiting)).revision == second

    run(body())


def test_two_watches_do_not_take_from_each_other(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            start = await revision_of(store)
            first, second = store.watch(start), store.watch(start)
            for number in range(5):
                await store.commit(puts=[Put("a", str(number).encode())])
            assert await take(first, 5) == await take(second, 5)

    run(body())


def test_a_watch_from_the_future_shows_that_the_store_went_back(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            revision = await store.commit(puts=[Put("a", b"1")])
            with pytest.raises(StoreWentBack):
                await within(60, anext(store.watch(revision + 1_000_000)))

    run(body())


def test_keys_go_when_their_lease_is_revoked(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            lease = await store.grant_lease(60_000)
            first = await store.commit(puts=[Put("a", b"", lease), Put("b", b"", lease), Put("c", b"")])
            watch = store.watch(first)
            await store.revoke_lease(lease)
            (batch,) = await take(watch, 1)
            gone = batch.revision
            assert gone > first
            assert batch.changes == (KeyChange("a", None, gone), KeyChange("b", None, gone))
            assert list((await store.load()).entries) == ["c"]
            with pytest.raises(LeaseExpired):
                await store.keep_alive(lease)
            await store.revoke_lease(lease)

    run(body())


def test_keys_go_when_their_lease_expires_and_not_before(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            loop = asyncio.get_running_loop()
            ttl_ms = make_store.ttl_ms
            lease = await store.grant_lease(ttl_ms)
            revision = await store.commit(puts=[Put("a", b"", lease)])
            watch = store.watch(revision)
            sent_at = loop.time()
            for _ in range(3):
                await asyncio.sleep(ttl_ms / 5000)
                sent_at = loop.time()
                assert await store.keep_alive(lease) == ttl_ms
            (batch,) = await take(watch, 1)
            assert batch.changes == (KeyChange("a", None, batch.revision),)
            # asyncio may run a timer early by the resolution of its clock.
            assert loop.time() - sent_at >= ttl_ms / 1000 - 0.002

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
            assert (await store.load()).entries == {}

    run(body())


def test_many_keys_fit_in_one_commit(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as store:
            count = min(store.operations_max, 1_000)
            start = await revision_of(store)
            puts = [Put(f"partitions/{number}", bytes(50)) for number in range(count)]
            first = await store.commit(puts=puts, compares=[Compare(put.key, ABSENT) for put in puts])
            (batch,) = await take(store.watch(start), 1)
            assert (batch.revision, len(batch.changes)) == (first, count)
            assert await store.commit(deletes=[put.key for put in puts]) == first + 1
            assert (await store.load()).entries == {}

    run(body())
