"""The recent changes of a store, for those who watch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millrace.metadata.errors import StoreUnavailable, StoreWentBack, WatchLost
from millrace.metadata.store import ChangeBatch, KeyChange
from millrace.metadata.store.feed import ChangeFeed


def batch(revision: int, changes: int = 1) -> ChangeBatch:
    return ChangeBatch(revision, tuple(KeyChange(f"k{number}", b"v", revision) for number in range(changes)))


async def take(watch: AsyncIterator[ChangeBatch], count: int) -> list[int]:
    return [(await anext(watch)).revision for _ in range(count)]


def test_a_watcher_gets_what_it_has_not_seen_and_then_what_comes() -> None:
    async def body() -> None:
        feed = ChangeFeed(10)
        for revision in (11, 12, 13):
            feed.publish(batch(revision))
        watch = feed.watch(11)
        assert await take(watch, 2) == [12, 13]
        following = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0)
        assert not following.done()
        feed.publish(batch(14))
        assert await following == [14]

    asyncio.run(body())


def test_all_watchers_get_every_change() -> None:
    async def body() -> None:
        feed = ChangeFeed(0)
        readers = [asyncio.ensure_future(take(feed.watch(0), 2)) for _ in range(3)]
        await asyncio.sleep(0)
        feed.publish(batch(1))
        feed.publish(batch(2))
        assert await asyncio.gather(*readers) == [[1, 2]] * 3

    asyncio.run(body())


def test_a_watcher_that_is_too_far_behind_is_told_where_it_can_go_on() -> None:
    async def body() -> None:
        feed = ChangeFeed(0, kept_changes_max=3)
        for revision in (1, 2, 3, 4):
            feed.publish(batch(revision))
        with pytest.raises(WatchLost):
            await take(feed.watch(0), 1)
        assert await take(feed.watch(1), 3) == [2, 3, 4]
        feed.compact()
        with pytest.raises(WatchLost):
            await take(feed.watch(3), 1)

    asyncio.run(body())


def test_a_store_that_went_back_is_told_to_who_has_seen_more() -> None:
    async def body() -> None:
        feed = ChangeFeed(7)
        waiting = asyncio.ensure_future(take(feed.watch(7), 1))
        await asyncio.sleep(0)
        feed.reset(5)
        with pytest.raises(StoreWentBack):
            await waiting

    asyncio.run(body())


def test_an_interruption_ends_all_watches_until_it_is_over() -> None:
    async def body() -> None:
        feed = ChangeFeed(0)
        waiting = asyncio.ensure_future(take(feed.watch(0), 1))
        await asyncio.sleep(0)
        feed.interrupt(StoreUnavailable("closed"))
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailable, match="closed"):
            await take(feed.watch(0), 1)
        feed.interrupt(None)
        feed.publish(batch(1))
        assert await take(feed.watch(0), 1) == [1]

    asyncio.run(body())


def test_a_revision_that_is_left_out_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        ChangeFeed(0).publish(batch(2))
