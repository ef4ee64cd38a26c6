"""Questions over a connection in a loop end: with an answer, with the connection, or in time."""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from millrace.client.async_connection import AsyncConnection, connect
from millrace.client.errors import (
    BrokerRefused,
    ConnectionClosed,
    ConnectionFailed,
    InvalidAnswer,
    NobodyListens,
    NotReached,
    NotTrusted,
    TimedOut,
)
from millrace.client.opening import Login
from millrace.client.questions import Question, Questions, Work
from millrace.client.security import SecurityOptions
from millrace.client.tls import TlsOptions
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.harness.certificates import Authority
from tests.unit.metadata.virtual_time import run_virtually


class Broker:
    """In the place of a transport: keeps what is sent, and answers when the test says so."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.sent: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def says(self, data: bytes) -> None:
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def answers(self, correlation_id: int, code: int) -> None:
        body = schema.response_encoder(ApiKey.HEARTBEAT, 4)(HeartbeatResponse(error_code=code))
        self.says(struct.pack(">iib", 5 + len(body), correlation_id, 0) + body)


def connected() -> tuple[AsyncConnection, Broker]:
    connection = AsyncConnection("broker:9092", "me")
    broker = Broker(connection)
    connection.connection_made(cast("asyncio.BaseTransport", broker))
    return connection, broker


def ask(connection: AsyncConnection) -> asyncio.Future[Any]:
    return connection.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g"))


def test_many_questions_are_on_their_way_at_once_and_answered_in_any_order() -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked = [ask(connection) for _ in range(3)]
        assert len(broker.sent) == 3
        for number in (2, 3, 1):
            broker.answers(number, number)
        assert [(await each).error_code for each in asked] == [1, 2, 3]

    run_virtually(scenario())


@pytest.mark.parametrize("error, words", [
    (None, r"^broker:9092 closed the connection$"),
    (ConnectionResetError(104, "reset"), r"^the connection to broker:9092 failed: \[Errno 104\] reset$"),
])  # fmt: skip
def test_a_connection_that_ends_in_the_middle_of_an_answer_fails_all_who_wait(
    error: Exception | None, words: str
) -> None:
    async def scenario() -> None:
        connection, broker = connected()
        lost: list[AsyncConnection] = []
        connection.on_lost = lost.append
        asked = [ask(connection), ask(connection)]
        broker.says(struct.pack(">ii", 100, 1) + b"only this")
        connection.connection_lost(error)
        for each in asked:
            with pytest.raises(ConnectionClosed, match=words):
                await each
        assert lost == [connection]
        with pytest.raises(ConnectionClosed, match=words):
            _ = ask(connection)
        unsent: list[memoryview | None] = []
        connection.send(ApiKey.HEARTBEAT, 4, b"", unsent.append)
        assert (unsent, len(broker.sent)) == ([None], 2)

    run_virtually(scenario())


def test_without_an_answer_in_time_the_connection_is_given_up() -> None:
    """What comes late must not meet the next question."""

    async def scenario() -> None:
        connection, broker = connected()
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut, match=r"^broker:9092 gave no answer within 3 s$"):
            await connection.answer_of(ask(connection), 3.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
        assert broker.is_aborted
        assert connection.is_lost, "at once: the next one must not choose it"

    run_virtually(scenario())


def test_an_answer_that_comes_after_its_asker_left_is_no_trouble() -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked, other = ask(connection), ask(connection)
        asked.cancel()
        broker.answers(1, 5)
        broker.answers(2, 6)
        assert (await other).error_code == 6
        assert not connection.is_lost

    run_virtually(scenario())


@pytest.mark.parametrize("sent, words", [
    (b"HTTP", "broker:9092 answers, but not with the Kafka protocol: a frame of 1213486160 bytes"),
    (struct.pack(">i", -5), "not with the Kafka protocol: a frame of -5 bytes"),
    (struct.pack(">ii", 4, 9), "broker:9092 answered request 9, which nobody waits for"),
    (struct.pack(">iib", 7, 1, 0) + b"??", "broker:9092 sent an answer to Heartbeat that is none"),
])  # fmt: skip
def test_nonsense_fails_all_who_wait_and_is_logged(
    sent: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked = [ask(connection), ask(connection)]
        broker.says(sent)
        for each in asked:
            with pytest.raises(InvalidAnswer, match=words):
                await each
        assert connection.is_lost

    run_virtually(scenario())
    assert "broker:9092" in caplog.text


def test_questions_are_asked_one_after_the_other() -> None:
    def questions() -> Questions[list[int]]:
        first = yield Question(ApiKey.HEARTBEAT, 4, HeartbeatRequest())
        second = yield Question(ApiKey.HEARTBEAT, 4, HeartbeatRequest())
        return [first.error_code, second.error_code]

    async def scenario() -> None:
        connection, broker = connected()
        asking = asyncio.get_running_loop().create_task(connection.answers_to(questions(), 5.0))
        for number in (1, 2):
            await asyncio.sleep(0.1)
            assert len(broker.sent) == number, "the second waits for the first"
            broker.answers(number, 10 * number)
        assert await asking == [10, 20]

    run_virtually(scenario())


class Doors(asyncio.SelectorEventLoop):
    """Connects, or fails, or neither for an hour."""

    def __init__(self, outcome: Exception | bool) -> None:
        super().__init__()
        self._outcome = outcome

    @override
    async def create_connection(  # type: ignore[override]
        self, make: Callable[[], AsyncConnection], host: str, port: int
    ) -> tuple[None, AsyncConnection]:
        assert (host, port) == ("h", 1)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if not self._outcome:
            await asyncio.sleep(3600)
        return None, make()


@pytest.mark.parametrize("outcome, kind, words", [
    (ConnectionRefusedError(111, "Connection refused"), NobodyListens, "no broker answers at h:1: Conn"),
    (OSError("Multiple exceptions"), NotReached, "no broker answers at h:1: Multiple exceptions"),
    (False, NotReached, "no broker answers at h:1: TimeoutError"),
])  # fmt: skip
def test_what_hinders_a_connection_is_told_with_the_address(
    outcome: Exception | bool, kind: type[ConnectionFailed], words: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionFailed, match=words) as refused:
            await connect(lambda address: AsyncConnection(address, "me"), "h", 1, timeout_s=0.01)
        assert type(refused.value) is kind

    with asyncio.Runner(loop_factory=lambda: Doors(outcome)) as runner:
        runner.run(scenario())


def test_a_connection_knows_its_address() -> None:
    async def scenario() -> None:
        found = await connect(lambda address: AsyncConnection(address, "me"), "h", 1, timeout_s=None)
        assert found.address == "h:1"

    with asyncio.Runner(loop_factory=lambda: Doors(True)) as runner:
        runner.run(scenario())


# Sessions that end, and TLS.

LOGIN = SecurityOptions(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="geheim")


def frame_of(api_key: int, version: int, correlation_id: int, message: Any) -> bytes:
    tags = b"\0" if schema.response_header_version(api_key, version) else b""
    body = struct.pack(">i", correlation_id) + tags + schema.response_encoder(api_key, version)(message)
    return struct.pack(">i", len(body)) + body


def keys_sent(broker: Broker) -> list[int]:
    """The api keys of all frames, of which several may have gone in one piece."""
    found: list[int] = []
    data = b"".join(broker.sent)
    while data:
        size, key = struct.unpack_from(">ih", data)
        found.append(key)
        data = data[4 + size :]
    return found


def test_a_login_is_repeated_in_time_and_requests_wait_for_it() -> None:
    """Between the handshake and its end a broker takes nothing else (KIP-368)."""

    async def scenario() -> None:
        connection, broker = connected()
        keeping = asyncio.get_running_loop().create_task(
            connection.keep_logged_in(Login("broker:9092", LOGIN, 10_000), 5.0)
        )
        early = ask(connection)
        await asyncio.sleep(8.4)
        assert keys_sent(broker) == [ApiKey.HEARTBEAT]
        await asyncio.sleep(0.2)
        late = ask(connection)
        assert keys_sent(broker) == [ApiKey.HEARTBEAT, ApiKey.SASL_HANDSHAKE]
        broker.answers(1, 1)
        broker.says(frame_of(ApiKey.SASL_HANDSHAKE, 1, 2, SaslHandshakeResponse(mechanisms=["PLAIN"])))
        await asyncio.sleep(0.1)
        assert keys_sent(broker)[2:] == [ApiKey.SASL_AUTHENTICATE]
        answer = SaslAuthenticateResponse(session_lifetime_ms=20_000)
        broker.says(frame_of(ApiKey.SASL_AUTHENTICATE, 2, 4, answer))
        await asyncio.sleep(0.1)
        assert keys_sent(broker)[3:] == [ApiKey.HEARTBEAT]
        broker.answers(3, 3)
        assert ((await early).error_code, (await late).error_code) == (1, 3)
        await asyncio.sleep(16.9)
        assert keys_sent(broker)[4:] == [ApiKey.SASL_HANDSHAKE], "by the new session's length"
        connection.abort()
        with pytest.raises(ConnectionClosed):
            await keeping

    run_virtually(scenario())


def test_a_login_that_is_refused_the_second_time_ends_the_connection() -> None:
    async def scenario() -> None:
        connection, broker = connected()
        keeping = asyncio.get_running_loop().create_task(
            connection.keep_logged_in(Login("broker:9092", LOGIN, 1_000), 5.0)
        )
        await asyncio.sleep(0.9)
        waiting = ask(connection)
        broker.says(frame_of(ApiKey.SASL_HANDSHAKE, 1, 1, SaslHandshakeResponse()))
        await asyncio.sleep(0.1)
        refusal = SaslAuthenticateResponse(error_code=58, error_message="no more")
        broker.says(frame_of(ApiKey.SASL_AUTHENTICATE, 2, 3, refusal))
        with pytest.raises(BrokerRefused, match="login at broker:9092: no more"):
            await keeping
        with pytest.raises(ConnectionClosed, match="login at broker:9092: no more"):
            await waiting
        assert broker.is_aborted

    run_virtually(scenario())


def test_nobody_keeps_logged_in_to_a_connection_that_is_gone() -> None:
    async def scenario() -> None:
        connection, _ = connected()
        keeping = asyncio.get_running_loop().create_task(
            connection.keep_logged_in(Login("broker:9092", LOGIN, 3_600_000), 5.0)
        )
        await asyncio.sleep(1)
        connection.connection_lost(None)
        await asyncio.wait_for(keeping, 1)

    run_virtually(scenario())


def test_work_is_done_off_the_loop() -> None:
    def questions() -> Questions[object]:
        return (yield Work(threading.get_ident))

    async def scenario() -> None:
        connection, _ = connected()
        assert await connection.answers_to(questions(), 5.0) != threading.get_ident()

    asyncio.run(scenario())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_over_tls(tmp_path: Path, loop_factory: Callable[[], Any]) -> None:
    """With the certificates of both ends, and with answers larger than a record of TLS."""
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.identity("broker").both_file)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(authority.file)
    mine = authority.identity("me")
    ours = TlsOptions(ca_pem=authority.certificate, certificate_pem=mine.certificate, key_pem=mine.key)
    size = 300_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(4)
        request = await reader.readexactly(*struct.unpack(">i", head))
        (number,) = struct.unpack_from(">i", request, 4)
        writer.write(struct.pack(">iib", size + 5, number, 0) + b"x" * size)
        await reader.read()
        writer.close()

    async def scenario() -> None:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
        port = listening.sockets[0].getsockname()[1]

        def make(address: str) -> AsyncConnection:
            return AsyncConnection(address, "me")

        connection = await connect(make, "127.0.0.1", port, timeout_s=10, tls=ours.context())
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.send(
            ApiKey.HEARTBEAT, 4, b"", lambda body: received.set_result(b"" if body is None else bytes(body))
        )
        async with asyncio.timeout(10):
            assert await received == b"x" * size
        connection.abort()
        with pytest.raises(NotTrusted, match=rf"certificate of 127\.0\.0\.1:{port} is not trusted"):
            await connect(make, "127.0.0.1", port, timeout_s=10, tls=TlsOptions().context())
        listening.close()
        # A loop that ends at once would leave transports behind that are about to close.
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
