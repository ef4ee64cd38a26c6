"""The store on a real etcd when things go wrong: outages, compaction, a wiped disk, logins and TLS."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typing_extensions import override

from millrace.core.ids import NodeId
from millrace.metadata.commands import Policy
from millrace.metadata.errors import StoreUnavailable, StoreWentBack, WatchLost
from millrace.metadata.leftovers import Leftover, find_leftovers
from millrace.metadata.service import Metadata, NewTopic
from millrace.metadata.store import ABSENT, Compare, Put, Snapshot, Versioned
from millrace.metadata.store.etcd import EtcdStore
from millrace.metadata.store.etcd_calls import EtcdSettings
from tests.harness.background import background
from tests.harness.etcd import EtcdProcess, lasting_port
from tests.unit.metadata.worlds import CountedIds, broker

pytestmark = pytest.mark.slow

T = TypeVar("T")
StartEtcd = Callable[..., EtcdProcess]
PATIENT_MS = 30_000
"""For what must succeed, on however slow a machine."""
HASTY_MS = 10_000
"""For what must fail."""


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[StartEtcd]:
    started: list[EtcdProcess] = []

    def start(*options: str, is_plain: bool = True) -> EtcdProcess:
        server = EtcdProcess(tmp_path / f"etcd-{len(started)}", options)
        started.append(server)
        server.start(is_plain=is_plain)
        return server

    yield start
    for server in started:
        server.end()


def run(body: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(120):
            return await body

    return asyncio.run(bounded())


@asynccontextmanager
async def store_of(*endpoints: str, prefix: str = "test", **settings: Any) -> AsyncIterator[EtcdStore]:
    settings.setdefault("request_timeout_ms", PATIENT_MS)
    store = EtcdStore(EtcdSettings(endpoints=endpoints, prefix=prefix, **settings))
    try:
        yield store
    finally:
        await store.close()


async def eventually(work: Callable[[], Awaitable[T]]) -> T:
    """The first answer that is no outage."""
    while True:
        try:
            return await work()
        except StoreUnavailable:
            await asyncio.sleep(0.1)


def test_what_was_committed_survives_an_outage_and_the_store_needs_no_restart(start_etcd: StartEtcd) -> None:
    server = start_etcd()

    async def body() -> None:
        async with store_of(server.endpoint, request_timeout_ms=HASTY_MS) as store:
            await eventually(store.open)
            revision = await eventually(lambda: store.commit(puts=[Put("a", b"1")]))
            watch = store.watch(revision)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.2)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await waiting
            for call in (store.load(), store.commit(puts=[Put("b", b"2")]), store.grant_lease(60_000)):
                with pytest.raises(StoreUnavailable):
                    await call
            server.start()
            snapshot = await eventually(store.load)
            assert snapshot.entries["a"] == Versioned(b"1", revision)
            later = await eventually(
                lambda: store.commit(compares=[Compare("a", revision)], puts=[Put("c", b"3")])
            )
            batch = await eventually(lambda: anext(store.watch(later - 1)))
            assert batch.revision == later

    run(body())


def test_changes_that_were_compacted_away_are_said_to_be_lost(start_etcd: StartEtcd) -> None:
    server = start_etcd()

    async def body() -> None:
        async with store_of(server.endpoint) as store:
            first = await store.commit(puts=[Put("a", b"1")])
            last = first
            for number in range(5):
                last = await store.commit(puts=[Put("a", str(number).encode())])
            server.control("compact", str(last))
            with pytest.raises(WatchLost):
                await anext(store.watch(first))
            assert await store.load() == Snapshot(last, {"a": Versioned(b"4", last)})

    run(body())


def test_brokers_may_be_started_before_their_etcd(start_etcd: StartEtcd) -> None:
    server = start_etcd()
    server.kill()

    async def body() -> None:
        async with background() as tasks:
            store = EtcdStore(
                EtcdSettings(endpoints=(server.endpoint,), request_timeout_ms=HASTY_MS, prefix="test")
            )
            metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
            starting = asyncio.create_task(metadata.start(tasks))
            await asyncio.sleep(1.0)
            assert not starting.done()
            await asyncio.to_thread(server.start)
            await starting
            assert metadata.image.cluster_id
            await metadata.close()

    run(body())


def test_metadata_reload_what_a_compacted_watch_did_not_tell(start_etcd: StartEtcd) -> None:
    """F13: the store compacted while a watch was down."""
    server = start_etcd()

    async def body() -> None:
        async with background() as tasks, store_of(server.endpoint) as other:
            store = EtcdStore(
                EtcdSettings(endpoints=(server.endpoint,), request_timeout_ms=HASTY_MS, prefix="test")
            )
            metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await eventually(store.open)
            await metadata.start(tasks)
            await eventually(lambda: metadata.register_broker(broker(1)))
            server.kill()
            await asyncio.sleep(0.5)
            server.start()
            # Before the watch is back, much has happened, and nobody remembers it one by one.
            revision = await eventually(lambda: other.commit(puts=[Put("producer_ids", b'{"next": 77}')]))
            server.control("compact", str(revision))
            while metadata.image.next_producer_id != 77:
                await asyncio.sleep(0.05)
            (topic,) = await eventually(lambda: metadata.create_topics([NewTopic(name="t", configs={})]))
            assert not isinstance(topic, Exception)
            await metadata.close()

    run(body())


class CutEtcd(EtcdStore):
    """Whoever uses it goes in the middle of the next creation."""

    commits_left = -1

    @override
    async def commit(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if self.commits_left == 0:
            self.commits_left = -1
            raise StoreUnavailable("its broker is gone")
        self.commits_left -= 1
        return await super().commit(compares=compares, puts=puts, deletes=deletes)


async def leftovers_in(metadata: Metadata, store: EtcdStore) -> list[Leftover]:
    """As soon as the image has all that is in the store: on a busy machine it follows a while later."""
    revision = (await store.load()).revision
    while metadata.image.revision < revision:
        await asyncio.sleep(0.01)
    return list(find_leftovers(metadata.image))


def test_what_a_creation_left_that_was_cut_short_is_cleared_up(start_etcd: StartEtcd) -> None:
    server = start_etcd()
    large = NewTopic(name="large", partition_count=300, replication_factor=1, configs={})

    async def body() -> None:
        store = CutEtcd(EtcdSettings(endpoints=(server.endpoint,), request_timeout_ms=PATIENT_MS))
        async with background() as tasks:
            metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await metadata.start(tasks)
            await metadata.register_broker(broker(1))
            await metadata.claim_controller(NodeId(1), "first")
            office = metadata.image.controller_revision
            for commits in (1, 2, 3):
                store.commits_left = commits
                with pytest.raises(StoreUnavailable):
                    await metadata.create_topics([large])
                (leftover,) = await leftovers_in(metadata, store)
                assert leftover.begun_at
                assert await metadata.clear_up(leftover, controller_revision=office)
                assert not await metadata.clear_up(leftover, controller_revision=office), "it is gone"
                entries = (await store.load()).entries
                assert not [key for key in entries if key.startswith(("partitions/", "creations/"))]
            await metadata.create_topics([large])
            assert len(metadata.image.topics["large"].partitions) == 300
            store.commits_left = 2
            with pytest.raises(StoreUnavailable):
                await metadata.delete_topics(["large"])
            (leftover,) = await leftovers_in(metadata, store)
            assert await metadata.clear_up(leftover, controller_revision=office)
            entries = (await store.load()).entries
            assert not [key for key in entries if key.startswith(("partitions/", "creations/", "topics/"))]
            await metadata.close()

    run(body())


def test_an_etcd_that_lost_its_data_is_noticed(start_etcd: StartEtcd) -> None:
    """F14: the store's revision goes back."""
    server = start_etcd()

    async def body() -> None:
        async with store_of(server.endpoint, request_timeout_ms=HASTY_MS) as store:
            revision = 0
            for _ in range(5):
                revision = await eventually(lambda: store.commit(puts=[Put("a", b"1")]))
            server.kill()
            shutil.rmtree(server.directory / "data")
            server.start()
            with pytest.raises(StoreWentBack):
                await eventually(lambda: anext(store.watch(revision)))

    run(body())


def test_clusters_with_different_prefixes_do_not_see_each_other(start_etcd: StartEtcd) -> None:
    server = start_etcd()

    async def body() -> None:
        async with (
            store_of(server.endpoint, prefix="one") as one,
            store_of(server.endpoint, prefix="one-more") as two,
        ):
            mine = await one.commit(compares=[Compare("a", ABSENT)], puts=[Put("a", b"1")])
            theirs = await two.commit(compares=[Compare("a", ABSENT)], puts=[Put("a", b"2")])
            assert theirs > mine
            assert (await one.load()).entries == {"a": Versioned(b"1", mine)}
            # Nothing changed here, so there is no later revision that this cluster could wait for.
            assert await one.commit(deletes=["never there"]) >= mine
            watch = one.watch(mine)
            await two.commit(puts=[Put("b", b"3")])
            last = await one.commit(puts=[Put("c", b"4")])
            assert (await anext(watch)).revision == last

    run(body())


def test_a_member_that_is_down_is_passed_over(start_etcd: StartEtcd) -> None:
    server = start_etcd()

    async def body() -> None:
        nobody = f"http://127.0.0.1:{lasting_port()}"
        async with store_of(nobody, server.endpoint) as store:
            await store.open()
            revision = await store.commit(puts=[Put("a", b"1")])
            assert (await anext(store.watch(revision - 1))).revision == revision

    run(body())


def test_a_login_is_asked_for_and_renewed(start_etcd: StartEtcd) -> None:
    server = start_etcd()
    server.control("user", "add", "root:rootpw")
    server.control("user", "grant-role", "root", "root")
    server.control("role", "add", "millrace")
    server.control("role", "grant-permission", "millrace", "--prefix=true", "readwrite", "test/")
    server.control("user", "add", "millrace:secret")
    server.control("user", "grant-role", "millrace", "millrace")
    server.control("auth", "enable")

    async def body() -> None:
        async with store_of(server.endpoint, username="millrace", password="secret") as store:
            await store.open()
            lease = await store.grant_lease(60_000)
            revision = await store.commit(puts=[Put("a", b"1", lease)])
            assert (await anext(store.watch(revision - 1))).revision == revision
            assert await store.keep_alive(lease) == 60_000
            # etcd keeps its tokens in memory: after a restart ours is worth nothing.
            server.kill()
            server.start()
            assert "a" in (await eventually(store.load)).entries
        for wrong in ({"password": "wrong"}, {"password": "secret", "prefix": "elsewhere"}):
            async with store_of(server.endpoint, username="millrace", **wrong) as refused:
                with pytest.raises(StoreUnavailable, match=r"authentication failed|permission denied"):
                    await refused.open()
        async with store_of(server.endpoint) as nobody:
            with pytest.raises(StoreUnavailable, match="user name is empty"):
                await nobody.open()

    run(body())


def test_a_token_that_has_expired_is_renewed_and_changes_go_on_being_told(start_etcd: StartEtcd) -> None:
    """A quiet cluster asks nothing for longer than a token lasts."""
    server = start_etcd("--auth-token-ttl", "1")
    server.control("user", "add", "root:rootpw")
    server.control("user", "grant-role", "root", "root")
    server.control("auth", "enable")

    async def body() -> None:
        async with store_of(server.endpoint, username="root", password="rootpw") as store:
            await store.open()
            lease = await store.grant_lease(60_000)
            revision = await store.commit(puts=[Put("a", b"1", lease)])
            changes = store.watch(revision)
            calls = store._calls
            first = calls._token
            # etcd looks for old tokens once a second.
            await asyncio.sleep(3.5)
            assert await store.keep_alive(lease) == 60_000
            second = await store.commit(puts=[Put("b", b"2", lease)])
            assert calls._token != first, "the first one would count no more"
            assert (await anext(changes)).revision == second
            assert set((await store.load()).entries) == {"a", "b"}

    run(body())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_etcd_is_reached_over_tls_with_a_certificate(start_etcd: StartEtcd, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=etcd"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    port = lasting_port()
    endpoint = f"https://127.0.0.1:{port}"
    start_etcd(
        *("--listen-client-urls", endpoint, "--advertise-client-urls", endpoint),
        *("--cert-file", str(certificate), "--key-file", str(key)),
        *("--client-cert-auth", "--trusted-ca-file", str(certificate)),
        is_plain=False,
    )

    async def body() -> None:
        authority = certificate.read_bytes()
        identity: dict[str, Any] = {"certificate": authority, "private_key": key.read_bytes()}
        async with store_of(
            endpoint, certificate_authority=authority, request_timeout_ms=HASTY_MS, **identity
        ) as store:
            await eventually(store.open)
            revision = await eventually(lambda: store.commit(puts=[Put("a", b"1")]))
            assert (await eventually(store.load)).entries["a"] == Versioned(b"1", revision)
        strangers: list[dict[str, Any]] = [{"certificate_authority": authority}, identity]
        for stranger in strangers:
            async with store_of(endpoint, request_timeout_ms=HASTY_MS, **stranger) as refused:
                with pytest.raises(StoreUnavailable):
                    await refused.open()

    run(body())
