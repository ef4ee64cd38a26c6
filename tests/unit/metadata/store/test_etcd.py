"""What is asked of etcd, and what its answers mean. (tests/conformance/store compares with a real one.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aetcd import rpc

from millrace.metadata.errors import (
    Conflict,
    LeaseExpired,
    StoreRefused,
    StoreUnavailable,
    StoreWentBack,
    WatchLost,
)
from millrace.metadata.store import Compare, LeaseId, Put
from millrace.metadata.store.etcd import KEYS_PER_PAGE, OPERATIONS_MAX, EtcdStore
from millrace.metadata.store.etcd_calls import EtcdSettings

Reply = Callable[[Any], Any]


class Channel:
    """As much of a channel as the stubs look at: each call is named by its path."""

    def __getattr__(self, _kind: str) -> Callable[..., str]:
        return lambda path, **_: str(path.rpartition("/")[2])


class Calls:
    """In the place of the connections: replies by the name of the call, one after the other."""

    def __init__(self, **replies: Sequence[Any]) -> None:
        self._replies = {name: list(some) for name, some in replies.items()}
        self.asked: list[tuple[str, Any, bool]] = []
        self.is_cancelled = False

    def _next(self, name: str) -> Any:
        reply = self._replies[name].pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask(self, call_of: Callable[[Any], Any], request: Any, *, is_repeatable: bool = True) -> Any:
        name = call_of(Channel())
        self.asked.append((name, request, is_repeatable))
        return self._next(name)

    async def exchange(self, call_of: Callable[[Any], Any], request: Any) -> Any:
        return await self.ask(call_of, request)

    async def open_stream(self, call_of: Callable[[Any], Any]) -> Any:
        return SimpleNamespace(name=call_of(Channel()), cancel=self._cancel)

    async def write(self, stream: Any, request: Any) -> None:
        self.asked.append((stream.name, request, False))

    async def read(self, stream: Any) -> Any:
        return self._next(stream.name)

    def _cancel(self) -> None:
        self.is_cancelled = True


def store_with(calls: Calls) -> EtcdStore:
    store = EtcdStore(EtcdSettings(endpoints=("h:1",), prefix="/cluster/"))
    store._calls = calls  # type: ignore[assignment]
    return store


def run(body: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(body)


def header(revision: int) -> Any:
    return rpc.ResponseHeader(revision=revision)


def page(revision: int, *keys: str, more: bool = False) -> Any:
    kvs = [rpc.KeyValue(key=f"cluster/{key}".encode(), value=b"v", mod_revision=3) for key in keys]
    return rpc.RangeResponse(header=header(revision), kvs=kvs, more=more)


def transaction(revision: int, *, succeeded: bool = True, deleted: int = 0) -> Any:
    response = rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse(deleted=deleted))
    return rpc.TxnResponse(header=header(revision), succeeded=succeeded, responses=[response])


def test_a_snapshot_is_of_one_moment_however_many_pages_it_has() -> None:
    calls = Calls(Range=[page(20, "a", "b", more=True), page(25, "c")])
    snapshot = run(store_with(calls).load())
    assert snapshot.revision == 20
    assert list(snapshot.entries) == ["a", "b", "c"]
    first, second = (request for _, request, _ in calls.asked)
    assert (first.key, first.range_end, first.revision, first.limit) == (
        b"cluster/",
        b"cluster0",
        0,
        KEYS_PER_PAGE,
    )
    # Behind the last key of the page before, at its revision.
    assert (second.key, second.range_end, second.revision) == (b"cluster/b\0", b"cluster0", 20)


def test_a_snapshot_whose_revision_is_compacted_away_is_begun_again() -> None:
    compacted = StoreRefused("compacted", "OUT_OF_RANGE")
    calls = Calls(Range=[page(20, "a", more=True), compacted, page(30, "a")])
    assert run(store_with(calls).load()).revision == 30
    with pytest.raises(StoreUnavailable, match="compacts faster"):
        run(store_with(Calls(Range=[compacted] * 5)).load())
    with pytest.raises(StoreRefused, match="no permission"):
        run(store_with(Calls(Range=[StoreRefused("no permission", "PERMISSION_DENIED")])).load())


def test_a_commit_compares_puts_and_deletes_in_one_transaction_that_is_never_repeated() -> None:
    calls = Calls(Txn=[transaction(41)])
    revision = run(
        store_with(calls).commit(
            compares=[Compare("a", 7)], puts=[Put("a", b"1", LeaseId(9)), Put("b", b"2")], deletes=["c"]
        )
    )
    assert revision == 41
    ((name, request, is_repeatable),) = calls.asked
    assert (name, is_repeatable) == ("Txn", False)
    (compare,) = request.compare
    assert (compare.key, compare.mod_revision, compare.result) == (b"cluster/a", 7, rpc.Compare.EQUAL)
    first, second, third = request.success
    assert (first.request_put.key, first.request_put.lease) == (b"cluster/a", 9)
    assert (second.request_put.value, second.request_put.lease) == (b"2", 0)
    assert third.request_delete_range.key == b"cluster/c"


def test_a_comparison_that_fails_is_a_conflict() -> None:
    with pytest.raises(Conflict):
        run(
            store_with(Calls(Txn=[transaction(41, succeeded=False)])).commit(
                compares=[Compare("a", 7)], puts=[Put("a", b"1")]
            )
        )


def test_a_commit_that_changes_nothing_has_no_revision_of_another_cluster() -> None:
    async def body() -> None:
        calls = Calls(Txn=[transaction(41), transaction(99, deleted=0), transaction(100, deleted=1)])
        store = store_with(calls)
        assert await store.commit(puts=[Put("a", b"1")]) == 41
        # Others share this etcd: its revision has moved on, ours has not.
        assert await store.commit(deletes=["gone"]) == 41
        assert await store.commit(deletes=["there"]) == 100

    run(body())


def test_a_lease_that_is_gone_is_told_from_other_refusals() -> None:
    gone = StoreRefused("etcdserver: requested lease not found", "NOT_FOUND")
    with pytest.raises(LeaseExpired):
        run(store_with(Calls(Txn=[gone])).commit(puts=[Put("a", b"1", LeaseId(5))]))
    full = StoreRefused("etcdserver: mvcc: database space exceeded", "RESOURCE_EXHAUSTED")
    with pytest.raises(StoreRefused, match="space exceeded"):
        run(store_with(Calls(Txn=[full])).commit(puts=[Put("a", b"1", LeaseId(5))]))


def test_more_operations_than_etcd_takes_are_a_bug() -> None:
    puts = [Put(f"k{number}", b"") for number in range(OPERATIONS_MAX + 1)]
    with pytest.raises(AssertionError):
        run(store_with(Calls()).commit(puts=puts))


def test_leases_are_whole_seconds_and_never_shorter_than_asked_for() -> None:
    calls = Calls(LeaseGrant=[rpc.LeaseGrantResponse(ID=7)] * 2)
    assert run(store_with(calls).grant_lease(3_001)) == 7
    run(store_with(calls).grant_lease(3_000))
    assert [request.TTL for _, request, _ in calls.asked] == [4, 3]


def test_a_lease_that_ended_can_be_revoked_but_not_kept() -> None:
    kept = [rpc.LeaseKeepAliveResponse(TTL=5), rpc.LeaseKeepAliveResponse(TTL=0)]
    store = store_with(Calls(LeaseKeepAlive=kept, LeaseRevoke=[StoreRefused("none", "NOT_FOUND")]))
    assert run(store.keep_alive(LeaseId(1))) == 5_000
    with pytest.raises(LeaseExpired):
        run(store.keep_alive(LeaseId(1)))
    run(store.revoke_lease(LeaseId(1)))


def event(key: str, revision: int, *, deleted: bool = False) -> Any:
    kind = rpc.Event.DELETE if deleted else rpc.Event.PUT
    kv = rpc.KeyValue(key=f"cluster/{key}".encode(), value=b"v", mod_revision=revision)
    return rpc.Event(type=kind, kv=kv)


def test_a_watch_gives_the_changes_of_a_revision_together() -> None:
    async def body() -> None:
        events = [event("a", 11), event("b", 11, deleted=True), event("c", 14)]
        calls = Calls(Range=[page(20)], Watch=[rpc.WatchResponse(events=events)])
        watch = store_with(calls).watch(10)
        first, second = await anext(watch), await anext(watch)
        assert (first.revision, [(change.key, change.value) for change in first.changes]) == (
            11,
            [("a", b"v"), ("b", None)],
        )
        assert second.revision == 14
        create = calls.asked[1][1].create_request
        assert (create.key, create.range_end, create.start_revision) == (b"cluster/", b"cluster0", 11)
        await watch.aclose()  # type: ignore[attr-defined]
        assert calls.is_cancelled

    run(body())


@pytest.mark.parametrize(
    "present, answer, failure",
    [
        (9, None, StoreWentBack),
        (20, rpc.WatchResponse(compact_revision=15, canceled=True), WatchLost),
        (20, rpc.WatchResponse(canceled=True, cancel_reason="no leader"), StoreUnavailable),
    ],
)
def test_the_end_of_a_watch_says_what_to_do_next(present: int, answer: Any, failure: type[Exception]) -> None:
    calls = Calls(Range=[page(present)], Watch=[answer])
    with pytest.raises(failure):
        run(anext(store_with(calls).watch(10)))  # type: ignore[arg-type]


@pytest.mark.parametrize("version, is_warned", [("3.5.1", True), ("3.5.3", False)])
def test_a_version_that_may_lose_data_is_warned_of(
    version: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run(store_with(Calls(Range=[page(1)], Status=[rpc.StatusResponse(version=version)])).open())
    assert ("may lose consistency" in caplog.text) is is_warned


def test_whoever_may_not_ask_for_the_version_is_let_in_all_the_same() -> None:
    run(store_with(Calls(Range=[page(1)], Status=[StoreUnavailable("not allowed")])).open())
