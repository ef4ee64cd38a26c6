"""Questions to other brokers end: with an answer, with the peer, or in time."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from millrace.broker.replication.peers import CALL_TIMEOUT_S, Lane, PeerConnection, Peers, PeerUnreachable
from millrace.client.errors import NobodyListens
from millrace.client.security import SecurityOptions
from millrace.client.tls import TlsOptions
from millrace.core.ids import NodeId
from millrace.metadata.image import EMPTY, BrokerState, Endpoint, Image
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.harness.certificates import Authority
from tests.unit.metadata.virtual_time import run_virtually

ME, PEER = NodeId(1), NodeId(2)


class SilentTransport:
    """Takes everything, and nobody answers."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._is_aborted = False

    def write(self, _data: bytes) -> None:
        """Into nowhere."""

    def abort(self) -> None:
        if not self._is_aborted:
            self._is_aborted = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class SilentPeers(Peers):
    def __init__(self) -> None:
        self.image = image_with("first-run")
        self.opened: list[PeerConnection] = []
        super().__init__(lambda: self.image, node_id=ME, listener=None, declare_dead=self._not_dead)

    async def _not_dead(self, node_id: NodeId, _incarnation: str) -> None:
        raise AssertionError(f"broker {node_id} is silent, not dead")

    @override
    async def _connect(self, broker: BrokerState, tls: object = None) -> PeerConnection:
        connection = PeerConnection(broker.node_id, broker.incarnation, "peer:9092", "broker-1")
        connection.connection_made(cast("asyncio.BaseTransport", SilentTransport(connection)))
        self.opened.append(connection)
        return connection

    async def ask(self) -> Any:
        return await self.call(PEER, ApiKey.API_VERSIONS, 3, ApiVersionsRequest())


def image_with(incarnation: str | None) -> Image:
    if incarnation is None:
        return EMPTY
    broker = BrokerState(node_id=PEER, incarnation=incarnation, rack=None, endpoints=(), epoch=1)
    return replace(EMPTY, brokers={PEER: broker})


@pytest.mark.parametrize("successor", [None, "second-run"])
def test_nobody_waits_for_a_process_that_left_the_cluster(successor: str | None) -> None:
    """The marker of a transaction would wait for the whole time-out, though another broker leads by then."""

    async def scenario() -> None:
        peers = SilentPeers()
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        waiting = loop.create_task(peers.ask())
        await asyncio.sleep(1.0)
        before, peers.image = peers.image, image_with(successor)
        peers.image_changed(before, peers.image)
        with pytest.raises(PeerUnreachable):
            await waiting
        assert loop.time() - asked_at < 2.0
        peers.stop()

    run_virtually(scenario())


def test_another_broker_of_the_image_changes_nothing() -> None:
    async def scenario() -> None:
        peers = SilentPeers()
        waiting = asyncio.get_running_loop().create_task(peers.ask())
        await asyncio.sleep(1.0)
        peers.image_changed(EMPTY, peers.image)
        await asyncio.sleep(1.0)
        assert not waiting.done()
        waiting.cancel()
        peers.stop()

    run_virtually(scenario())


def test_a_connection_without_answers_is_not_used_again() -> None:
    """After a cut the system would send on it only after a pause as long as the cut."""

    async def scenario() -> None:
        peers = SilentPeers()
        words = f"^broker 2 cannot be reached: peer:9092 gave no answer within {CALL_TIMEOUT_S:g} s$"
        with pytest.raises(PeerUnreachable, match=words):
            await peers.ask()
        await asyncio.sleep(0)
        waiting = asyncio.get_running_loop().create_task(peers.ask())
        await asyncio.sleep(1.0)
        assert len({id(connection) for connection in peers.opened}) > 1
        assert peers.opened[0].is_lost
        waiting.cancel()
        peers.stop()

    run_virtually(scenario())


def test_what_may_wait_for_long_has_a_connection_of_its_own() -> None:
    """Answers come in the order of the questions: a marker that waits for replicas would hold up the rest."""

    async def scenario() -> None:
        peers = SilentPeers()
        loop = asyncio.get_running_loop()
        question = (PEER, ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
        lanes = (Lane.QUICK, Lane.MARKERS, Lane.QUICK, Lane.MARKERS)
        waiting = [loop.create_task(peers.call(*question, lane=lane)) for lane in lanes]
        await asyncio.sleep(1.0)
        assert len(peers.opened) == 2
        peers.opened[0].connection_lost(None)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, False, True, False]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        peers.stop()

    run_virtually(scenario())


def test_the_listener_between_brokers_is_found_however_its_name_is_written() -> None:
    """The names in `listeners` count in capitals, as in Kafka."""

    async def nobody_dies(_node_id: NodeId, _incarnation: str) -> None:
        raise AssertionError("nobody is dead")

    async def scenario() -> str:
        listening = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        endpoints = (
            Endpoint("CLIENT", "127.0.0.1", 1, "PLAINTEXT"),
            Endpoint("INTERNAL", "127.0.0.1", port, "PLAINTEXT"),
        )
        broker = BrokerState(node_id=PEER, incarnation="first-run", rack=None, endpoints=endpoints)
        image = replace(EMPTY, brokers={PEER: broker})
        peers = Peers(lambda: image, node_id=ME, listener="internal", declare_dead=nobody_dies)
        connection = await peers.open(PEER)
        connection.abort()
        peers.stop()
        listening.close()
        # The transport closes its socket in the next turn.
        await asyncio.sleep(0)
        return connection.address.replace(str(port), "its port")

    assert asyncio.run(scenario()) == "127.0.0.1:its port"


@pytest.mark.parametrize(
    "beginning, is_taken",
    [
        ((512 * 1024 * 1024).to_bytes(4), True),
        (b"HTTP", False),
        ((3).to_bytes(4), False),
        ((-1).to_bytes(4, signed=True), False),
    ],
)
def test_answers_may_be_as_large_as_settings_allow_but_must_be_answers(
    beginning: bytes, is_taken: bool
) -> None:
    """A follower that fetches half a gigabyte at a time would connect again and again, and never catch up."""

    async def scenario() -> None:
        connection = PeerConnection(PEER, "first-run", "peer:9092", "broker-1")
        connection.connection_made(cast("asyncio.BaseTransport", SilentTransport(connection)))
        connection.get_buffer(-1)[: len(beginning)] = beginning
        connection.buffer_updated(len(beginning))
        await asyncio.sleep(0)
        assert connection.is_lost is not is_taken
        assert len(connection.get_buffer(-1)) < 1024 * 1024, "memory is for bytes that have arrived"

    run_virtually(scenario())


class DoorPeers(Peers):
    """A peer whose port is open or closed, whether it runs or not."""

    def __init__(self) -> None:
        self.image = self.registered("first-run", 1)
        self.is_open = True
        self.reports: list[tuple[NodeId, str]] = []
        super().__init__(lambda: self.image, node_id=ME, listener=None, declare_dead=self._report)

    def registered(self, incarnation: str, epoch: int) -> Image:
        broker = BrokerState(node_id=PEER, incarnation=incarnation, rack=None, endpoints=(), epoch=epoch)
        return replace(EMPTY, brokers={PEER: broker})

    async def _report(self, node_id: NodeId, incarnation: str) -> None:
        self.reports.append((node_id, incarnation))
        self.image = EMPTY

    @override
    async def _connect(self, broker: BrokerState, tls: object = None) -> PeerConnection:
        await asyncio.sleep(0.001)
        if not self.is_open:
            raise NobodyListens("peer:9092", "refused")
        return PeerConnection(broker.node_id, broker.incarnation, "peer:9092", "broker-1")

    async def loses_a_connection(self) -> None:
        self.suspect(PEER)
        await asyncio.sleep(0.1)


def test_a_peer_that_connects_but_cannot_be_connected_to_keeps_its_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its advertised address may be wrong: that it refuses says nothing about its process."""

    async def scenario() -> None:
        peers = DoorPeers()
        peers.is_open = False
        for _ in range(5):
            peers.met(PEER)
            await peers.loses_a_connection()
            with pytest.raises(PeerUnreachable):
                await peers.open(PEER)
            await asyncio.sleep(20.0)
        assert peers.reports == []
        peers.stop()

    run_virtually(scenario())
    assert "cannot be connected to at the address that it advertises" in caplog.text


def test_a_peer_that_only_ever_connected_here_is_reported_dead_as_soon_as_its_port_is_closed() -> None:
    async def scenario() -> None:
        peers = DoorPeers()
        peers.met(PEER)
        await asyncio.sleep(0.1)
        peers.is_open = False
        await peers.loses_a_connection()
        assert peers.reports == [(PEER, "first-run")]
        peers.stop()

    run_virtually(scenario())


def test_a_peer_that_connects_before_it_listens_is_reported_dead_like_any_other() -> None:
    async def scenario() -> None:
        peers = DoorPeers()
        peers.is_open = False
        peers.met(PEER)
        await asyncio.sleep(0.2)
        peers.is_open = True
        await asyncio.sleep(0.5)
        peers.is_open = False
        await peers.loses_a_connection()
        assert peers.reports == [(PEER, "first-run")]
        peers.stop()

    run_virtually(scenario())


def test_a_process_that_survived_its_death_is_not_reported_again() -> None:
    """A firewall that refuses in its place would take its lease again and again."""

    async def scenario() -> None:
        peers = DoorPeers()
        await peers.open(PEER)
        peers.is_open = False
        await peers.loses_a_connection()
        assert peers.reports == [(PEER, "first-run")]
        for epoch in range(2, 5):
            peers.image = peers.registered("first-run", epoch)
            peers.met(PEER)
            await peers.loses_a_connection()
        assert len(peers.reports) == 1
        peers.image = peers.registered("second-run", 5)
        peers.is_open = True
        await peers.open(PEER)
        peers.is_open = False
        await peers.loses_a_connection()
        assert peers.reports[1:] == [(PEER, "second-run")], "of the next process a refusal is proof again"
        peers.stop()

    run_virtually(scenario())


def test_a_registration_that_was_made_meanwhile_is_not_ended() -> None:
    """Whoever registers again while its port is tried is alive."""

    async def scenario() -> None:
        peers = DoorPeers()
        await peers.open(PEER)
        peers.is_open = False
        peers.suspect(PEER)
        await asyncio.sleep(0)
        peers.image = peers.registered("first-run", 2)
        await asyncio.sleep(0.1)
        assert peers.reports == []
        peers.stop()

    run_virtually(scenario())


# A listener between brokers that asks who they are.


class Guard:
    """Takes logins by PLAIN over TLS, and answers heartbeats of those who have logged in."""

    def __init__(self, authority: Authority, session_ms: int = 0) -> None:
        self._session_ms = session_ms
        self.logins: list[bytes] = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(authority.identity("peer").both_file)
        self.tls.verify_mode = ssl.CERT_REQUIRED
        self.tls.load_verify_locations(authority.file)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, number, name_size = struct.unpack_from(">hhih", frame)
                at = 10 + name_size + (schema.request_header_version(key, version) >= 2)
                answer = self._answer(key, schema.request_decoder(key, version)(frame, at))
                tags = b"\0" if schema.response_header_version(key, version) else b""
                body = struct.pack(">i", number) + tags + schema.response_encoder(key, version)(answer)
                writer.write(struct.pack(">i", len(body)) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, key: int, request: Any) -> Any:
        match key:
            case ApiKey.SASL_HANDSHAKE:
                return SaslHandshakeResponse(mechanisms=["PLAIN"])
            case ApiKey.SASL_AUTHENTICATE:
                self.logins.append(request.auth_bytes)
                if request.auth_bytes != b"\0broker\0geheim":
                    return SaslAuthenticateResponse(error_code=58, error_message="who are you?")
                return SaslAuthenticateResponse(session_lifetime_ms=self._session_ms)
            case ApiKey.HEARTBEAT:
                return HeartbeatResponse(error_code=len(self.logins))
            case _:
                raise AssertionError(key)


def secured(
    authority: Authority, password: str = "geheim", trusted: Authority | None = None
) -> SecurityOptions:
    mine = authority.identity("broker-1")
    return SecurityOptions(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username="broker",
        password=password,
        tls=TlsOptions(
            ca_pem=(trusted or authority).certificate, certificate_pem=mine.certificate, key_pem=mine.key
        ),
    )


async def with_peers(
    guard: Guard, security: SecurityOptions, work: Callable[[Peers], Awaitable[None]]
) -> None:
    async def nobody_dies(_node_id: NodeId, _incarnation: str) -> None:
        raise AssertionError("nobody is dead")

    listening = await asyncio.start_server(guard.serve, "127.0.0.1", 0, ssl=guard.tls)
    port = listening.sockets[0].getsockname()[1]
    endpoint = Endpoint("INSIDE", "127.0.0.1", port, "SASL_SSL")
    broker = BrokerState(node_id=PEER, incarnation="first-run", rack=None, endpoints=(endpoint,))
    image = replace(EMPTY, brokers={PEER: broker})
    peers = Peers(
        lambda: image, node_id=ME, listener="INSIDE", declare_dead=nobody_dies, security=lambda: security
    )
    try:
        async with asyncio.timeout(30):
            await work(peers)
    finally:
        peers.stop()
        listening.close()
        await asyncio.sleep(0.05)


def test_a_broker_logs_in_to_its_peers_and_again_before_the_session_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    guard = Guard(authority, session_ms=300)

    async def work(peers: Peers) -> None:
        logins = 0
        while logins < 3:
            response = await peers.call(PEER, ApiKey.HEARTBEAT, 4, HeartbeatRequest())
            logins = response.error_code
            await asyncio.sleep(0.02)

    asyncio.run(with_peers(guard, secured(authority), work))
    assert set(guard.logins) == {b"\0broker\0geheim"}


def test_a_peer_that_refuses_the_login_or_is_not_trusted_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It listens, so it is not dead; and the log would be full of it, since fetchers try again and again."""
    authority, other = Authority(tmp_path / "1"), Authority(tmp_path / "2")
    guard = Guard(authority)

    async def work(peers: Peers) -> None:
        for _ in range(3):
            with pytest.raises(
                PeerUnreachable, match=r"broker 2 cannot be reached: .*(who are you|not trusted)"
            ):
                await peers.open(PEER)

    for security, words in (
        (secured(authority, "falsch"), "broker 2 cannot be talked to: login at 127.0.0.1"),
        (secured(authority, trusted=other), "broker 2 cannot be talked to: the certificate of 127.0.0.1"),
    ):
        caplog.clear()
        asyncio.run(with_peers(guard, security, work))
        assert caplog.text.count(words) == 1
        assert "falsch" not in caplog.text


def test_whether_a_peer_listens_is_asked_without_a_login(tmp_path: Path) -> None:
    """A probe of a broker under stress must not cost it a handshake."""
    authority = Authority(tmp_path)
    guard = Guard(authority)

    async def work(peers: Peers) -> None:
        peers.met(PEER)
        await asyncio.sleep(0.2)
        peers.suspect(PEER)
        assert peers.is_probing, "it has been reached, so its silence would mean something"
        await asyncio.sleep(0.2)

    asyncio.run(with_peers(guard, secured(authority), work))
    assert guard.logins == []
