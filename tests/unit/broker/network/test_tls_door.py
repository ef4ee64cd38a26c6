"""Clients come in by TLS, over real sockets: with and without certificates, too slow, or too often."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from millrace.broker.handlers import APIS
from millrace.broker.network import tls_door as module
from millrace.broker.network.admission import ConnectionLimits
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.server import Server, ServerLimits
from millrace.broker.network.tls_listener import TlsListener
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.outbox import Outbox
from millrace.security.mapping_rules import parse_mapping_rules
from millrace.security.principals import NOBODY, user
from millrace.security.tls import KeyStore, TlsSettings, TrustStore
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest
from tests.harness.tls_files import Authority
from tests.unit.broker.handlers.broker import Broker, FixedClock
from tests.unit.broker.network.client import frame
from tests.unit.security.audit.samples import Hands, auditor_with

LIMITS = ServerLimits(
    frame_bytes_max=1 << 20,
    request_memory_bytes=1 << 24,
    connections=ConnectionLimits(connections_max=100, per_ip_max=100),
    idle_timeout_s=60.0,
    frame_timeout_s=10.0,
)
VERSIONS = frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def settings_of(authority: Authority, **settings: Any) -> TlsSettings:
    chosen = {"rules": parse_mapping_rules("DEFAULT"), **settings}
    return TlsSettings(
        keys=KeyStore(location=str(authority.issue())),
        trust=TrustStore(location=str(authority.file)),
        **chosen,
    )


class Opened:
    """A server with one listener, and ways to reach it."""

    def __init__(self, server: Server, tls: TlsListener, port: int, authority: Authority) -> None:
        self.server = server
        self.tls = tls
        self.port = port
        self.authority = authority

    async def dial(
        self, certificate: Path | None = None, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=context or self.authority.client(certificate),
            server_hostname="localhost",
        )

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """The size of the answer to ApiVersions."""
        writer.write(VERSIONS)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return len(await reader.readexactly(size))

    async def failure(self, kind: str) -> None:
        async with asyncio.timeout(5):
            while not self.tls.failures.get(kind):
                await asyncio.sleep(0.005)

    async def handshakes(self, count: int) -> None:
        """Clients may be through before the server is."""
        async with asyncio.timeout(5):
            while self.tls.handshakes_count < count:
                await asyncio.sleep(0.005)

    @property
    def connections(self) -> list[Any]:
        return list(self.server._connections)


@asynccontextmanager
async def opened(broker: Broker, authority: Authority, **settings: Any) -> AsyncIterator[Opened]:
    server = Server(dispatcher=Dispatcher(APIS), services=broker.services, limits=LIMITS, ticks=float)
    tls = TlsListener("TLS", settings_of(authority, **settings), FixedClock(), None)
    _, port = await server.listen("TLS", "127.0.0.1", 0, None, tls)
    try:
        yield Opened(server, tls, port, authority)
    finally:
        await server.stop(0)


def first_message(authority: Authority) -> bytes:
    """What a client begins its handshake with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


def run(work: Callable[[Broker], Coroutine[Any, Any, None]], broker: Broker) -> None:
    """On uvloop, which is what a broker runs on; its transports are not asyncio's."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(broker))


def test_a_client_is_served_by_both_loops(broker: Broker, authority: Authority) -> None:
    async def work(broker: Broker) -> None:
        async with opened(broker, authority) as server:
            reader, writer = await server.dial()
            for _ in range(3):
                assert await server.ask(reader, writer) > 100
            (connection,) = server.connections
            assert connection.decisions.identity == NOBODY
            assert connection.endpoint.peer_host == "127.0.0.1"
            assert server.tls.handshakes_count == 1
            writer.close()
            async with asyncio.timeout(5):
                while server.connections:
                    await asyncio.sleep(0.005)

    run(work, broker)
    broker.run(work(broker))


def test_a_burst_of_handshakes_begins_one_by_one_with_turns_of_the_loop_between(
    broker: Broker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 30

    async def work(broker: Broker) -> None:
        async with opened(broker, authority) as server:
            loop = asyncio.get_running_loop()
            turns = 0
            begun: list[int] = []
            is_over = False
            connect = loop.connect_accepted_socket

            def turn() -> None:
                nonlocal turns
                turns += 1
                if not is_over:
                    loop.call_soon(turn)

            class Watched:
                """The loop, telling in which turn each handshake begins."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(loop, name)

                def connect_accepted_socket(self, *words: Any, **more: Any) -> Any:
                    begun.append(turns)
                    return connect(*words, **more)

            monkeypatch.setattr(server.server, "loop", Watched())
            turn()
            dialled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
            async with asyncio.timeout(5):
                while server.tls.under_way_count < count:
                    await asyncio.sleep(0.005)
                assert begun == [], "nobody has sent anything"
                for _, writer in dialled:
                    writer.write(first_message(authority))
                while len(begun) < count:
                    await asyncio.sleep(0.005)
            is_over = True
            assert len(set(begun)) == count, "no two of them begin in the same turn"
            for _, writer in dialled:
                writer.close()
            await server.failure("closed")

    run(work, broker)


def test_no_more_handshakes_are_begun_than_are_allowed_and_silent_clients_take_no_place(
    broker: Broker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEGUN_MAX", 1)

    async def work(broker: Broker) -> None:
        async with opened(broker, authority, handshake_s_max=1.0) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            reader, writer = await server.dial()
            assert await server.ask(reader, writer) > 100
            # Half of a first message takes the only place, until its time is over.
            _, half = await asyncio.open_connection("127.0.0.1", server.port)
            half.write(b"\x16\x03\x01\x02\x00\x01")
            await half.drain()
            await asyncio.sleep(0.3)
            waiting = asyncio.ensure_future(server.dial())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            _, late = await waiting
            await server.handshakes(2)
            await server.failure("timeout")
            for _, each in [*silent, (None, writer), (None, half), (None, late)]:
                each.close()

    run(work, broker)


def test_a_request_that_comes_with_the_end_of_the_handshake_is_not_lost(
    broker: Broker, authority: Authority
) -> None:
    """With TLS 1.3 a client's first request may come in the same packet as the end of its handshake."""

    async def work(broker: Broker) -> None:
        async with opened(broker, authority) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            side = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    side.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
            side.write(VERSIONS)
            writer.write(outgoing.read())
            received = b""
            async with asyncio.timeout(5):
                while len(received) < 100:
                    try:
                        received += side.read(65_536)
                    except ssl.SSLWantReadError:
                        incoming.write(await reader.read(65_536))
            writer.close()

    run(work, broker)


def test_a_certificate_makes_its_holder_a_principal(broker: Broker, authority: Authority) -> None:
    async def work(broker: Broker) -> None:
        rules = parse_mapping_rules(r"RULE:.*CN=(\w+).*/$1/L")
        async with opened(
            broker, authority, client_auth="required", rules=rules, groups_attribute="OU"
        ) as server:
            known = authority.issue("c", name="client", common_name="Alice", unit="ops")
            reader, writer = await server.dial(known)
            await server.ask(reader, writer)
            (connection,) = server.connections
            assert connection.decisions.identity.principal == user("alice")
            assert connection.decisions.identity.groups == ("ops",)
            writer.close()
            # The name that no rule matches is nobody's.
            reader, writer = await server.dial(authority.issue("c", name="odd", common_name="!"))
            writer.write(VERSIONS)
            assert await _ends(reader)
            assert server.tls.failures == {"principal": 1}

    run(work, broker)


def test_certificates_are_told_to_the_audit_and_refused_while_it_is_closed(
    broker: Broker, authority: Authority
) -> None:
    async def work(broker: Broker) -> None:
        outbox, hands = Outbox("file", 2), Hands()
        auditor = auditor_with([outbox], hands, AuditPolicy(is_closed=True))
        broker.services.access.auditor = auditor
        rules = parse_mapping_rules(r"RULE:.*CN=(\w+).*/$1/L")
        async with opened(broker, authority, client_auth="required", rules=rules) as server:
            known = authority.issue("c", name="client", common_name="Alice")
            reader, writer = await server.dial(known)
            await server.ask(reader, writer)
            writer.close()
            reader, writer = await server.dial(authority.issue("c", name="odd", common_name="!"))
            assert await _ends(reader)
            logins = [event.what for event in outbox.first(9)]
            assert [(one.actor.principal, one.mechanism, one.is_success) for one in logins] == [  # type: ignore[union-attr]
                ("User:alice", "TLS", True),
                ("", "TLS", False),
            ]
            # The outbox is full now, and nobody empties it.
            reader, writer = await server.dial(known)
            assert await _ends(reader)
            assert auditor.refused == 1

    run(work, broker)


async def _ends(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(5):
        try:
            return await reader.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


def test_a_client_without_the_certificate_that_is_required_stays_outside(
    broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    async def work(broker: Broker) -> None:
        async with opened(broker, authority, client_auth="required") as server:
            for context in (authority.client(), authority.client(Authority(tmp_path).issue("c"))):
                try:
                    reader, writer = await server.dial(context=context)
                    writer.write(VERSIONS)
                    assert await _ends(reader)
                except (ConnectionError, ssl.SSLError):
                    pass
            await server.failure("certificate")
            assert not server.connections
            reader, writer = await server.dial(authority.issue("c", name="client"))
            await server.ask(reader, writer)
            writer.close()

    run(work, broker)


@pytest.mark.parametrize(
    "data", [VERSIONS, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\x05rubbish"]
)
def test_what_is_no_tls_is_closed_with_a_hint_and_the_listener_goes_on(
    broker: Broker, authority: Authority, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Fault S4."""

    async def work(broker: Broker) -> None:
        async with opened(broker, authority) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(data)
            async with asyncio.timeout(5):
                while not server.tls.failures:
                    await asyncio.sleep(0.005)
                await reader.read()
            writer.close()
            assert server.tls.under_way_count == 0
            reader, writer = await server.dial()
            assert await server.ask(reader, writer)
            writer.close()

    run(work, broker)
    told = [record.__dict__ for record in caplog.records if "no TLS" in record.message]
    assert told[0]["peer"] == "127.0.0.1"
    if data != b"\x16\x03\x01\x00\x05rubbish":
        assert told[0]["reason"] == "plaintext"


def test_a_slow_handshake_is_cut_off(broker: Broker, authority: Authority) -> None:
    async def work(broker: Broker) -> None:
        async with opened(broker, authority, handshake_s_max=0.1) as server:
            silent, other = await asyncio.open_connection("127.0.0.1", server.port)
            slow, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16\x03\x01")
            assert await _ends(silent)
            assert await _ends(slow)
            await server.failure("timeout")
            writer.close()
            other.close()
            async with asyncio.timeout(5):
                while server.tls.under_way_count:
                    await asyncio.sleep(0.005)

    run(work, broker)


def test_an_address_gets_its_share_of_handshakes_and_no_more(broker: Broker, authority: Authority) -> None:
    """Fault S11: a storm of handshakes waits, and what would wait too long is closed."""

    async def work(broker: Broker) -> None:
        async with opened(broker, authority, handshakes_per_s=5, handshake_s_max=0.3) as server:
            outcomes = await asyncio.gather(*(server.dial() for _ in range(20)), return_exceptions=True)
            let_in = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
            assert 10 <= len(let_in) <= 13
            assert server.server.refused["tls_rate"] == 20 - len(let_in)
            for _, writer in let_in:
                writer.close()

    run(work, broker)


def test_new_certificates_count_for_new_handshakes_and_live_connections_stay(
    broker: Broker, tmp_path: Path
) -> None:
    async def work(broker: Broker) -> None:
        own = Authority(tmp_path)
        async with opened(broker, own, are_other_names_allowed=True) as server:
            before, writer_before = await server.dial()
            await server.ask(before, writer_before)
            first = writer_before.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            await server.tls.look()
            assert server.tls.reloads_count == 0
            own.issue()
            await server.tls.look()
            assert server.tls.reloads_count == 1
            after, writer_after = await server.dial()
            assert writer_after.get_extra_info("ssl_object").getpeercert()["serialNumber"] != first
            await server.ask(before, writer_before)
            # A broken pair changes nothing.
            Path(server.tls.settings.keys.location or "").write_text("broken")
            await server.tls.look()
            assert server.tls.reload_failures_count == 1
            again, writer_again = await server.dial()
            for reader, writer in ((before, writer_before), (after, writer_after), (again, writer_again)):
                assert await server.ask(reader, writer)
                writer.close()

    run(work, broker)


def test_large_answers_leave_through_tls(broker: Broker, authority: Authority) -> None:
    """A limit of 0 on what a transport keeps would stall it for ever."""

    async def work(broker: Broker) -> None:
        async with opened(broker, authority) as server:
            reader, writer = await server.dial()
            count = 400
            writer.write(VERSIONS * count)
            async with asyncio.timeout(10):
                for _ in range(count):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
            (connection,) = server.connections
            connection.out.write(bytes(8_000_000))
            connection.out.write(b"end")
            async with asyncio.timeout(10):
                assert (await reader.readexactly(8_000_003))[-3:] == b"end"
            writer.close()

    run(work, broker)
