"""One connection: frames out and in, over a pair of sockets whose other end is played by the test."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import cast

import pytest

from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    InvalidAnswer,
    NobodyListens,
    NotReached,
    NotTrusted,
    TimedOut,
)
from millrace.client.exchange import FRAME_BYTES_MAX
from millrace.client.questions import Question, Questions, Work
from millrace.client.security import SecurityOptions
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsResponse
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.unit.client.socket_pairs import socket_pair

Pair = tuple[BlockingConnection, socket.socket]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    near, far = socket_pair()

    def connect(_address: object, timeout: float) -> socket.socket:
        near.settimeout(timeout)
        return near

    monkeypatch.setattr(socket, "create_connection", connect)
    connection = BlockingConnection("broker", 9092, client_id="me", timeout_s=5)
    with far:
        yield connection, far
        connection.close()


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def test_requests_are_numbered_and_framed(pair: Pair) -> None:
    connection, broker = pair
    assert connection.send(ApiKey.METADATA, 8, b"body") == 1
    # A header of version 1 has no tags.
    assert broker.recv(100) == struct.pack(">ihhih", 16, 3, 8, 1, 2) + b"mebody"
    assert connection.send(ApiKey.METADATA, 12, b"body") == 2
    assert broker.recv(100) == struct.pack(">ihhih", 17, 3, 12, 2, 2) + b"me\0body"


def test_answers_come_in_order_also_in_pieces(pair: Pair) -> None:
    connection, broker = pair
    connection.send(ApiKey.METADATA, 8, b"")
    connection.send(ApiKey.METADATA, 12, b"")
    broker.sendall(answer(1, b"first") + answer(2, b"\0second")[:9])
    assert bytes(connection.receive(1)) == b"first"
    broker.sendall(answer(2, b"\0second")[9:])
    # The byte of a header of version 1 is no part of the body.
    assert bytes(connection.receive(2)) == b"second"


def test_an_answer_larger_than_the_buffer_leaves_earlier_views_alone(pair: Pair) -> None:
    connection, broker = pair
    large = b"x" * 70_000
    connection.send(ApiKey.METADATA, 8, b"")
    connection.send(ApiKey.METADATA, 8, b"")
    broker.sendall(answer(1, b"small") + answer(2, large))
    first = connection.receive(1)
    assert bytes(connection.receive(2)) == large
    assert bytes(first) == b"small"


@pytest.mark.parametrize("sent, words", [
    (b"HTTP/1.1 400 Bad Request", "broker:9092 answers, but not with the Kafka protocol: a frame of 1213"),
    (struct.pack(">ii", FRAME_BYTES_MAX + 1, 1), "not with the Kafka protocol: a frame of 1073741825 bytes"),
    (struct.pack(">ii", 3, 1), "not with the Kafka protocol: a frame of 3 bytes"),
    (struct.pack(">ii", -1, 1), "not with the Kafka protocol: a frame of -1 bytes"),
    (answer(2, b"x"), "broker:9092 answered request 2 instead of 1"),
    (answer(7, b"x"), "broker:9092 answered request 7 instead of 1"),
])  # fmt: skip
def test_what_is_no_answer_to_the_request_ends_the_connection(sent: bytes, words: str, pair: Pair) -> None:
    connection, broker = pair
    connection.send(ApiKey.METADATA, 8, b"")
    connection.send(ApiKey.METADATA, 8, b"")
    broker.sendall(sent)
    with pytest.raises(InvalidAnswer, match=words):
        connection.receive(1)


def test_an_answer_is_not_taken_twice(pair: Pair) -> None:
    connection, broker = pair
    connection.send(ApiKey.METADATA, 8, b"")
    broker.sendall(2 * answer(1, b"x"))
    connection.receive(1)
    with pytest.raises(InvalidAnswer, match="answered request 1 instead of 1"):
        connection.receive(1)


@pytest.mark.parametrize("sent", [b"", b"\0\0", answer(1, b"whole")[:-1]])
def test_a_broker_that_closes_in_the_middle_is_told(sent: bytes, pair: Pair) -> None:
    connection, broker = pair
    connection.send(ApiKey.METADATA, 8, b"")
    broker.sendall(sent)
    broker.recv(100)
    broker.close()
    with pytest.raises(ConnectionClosed, match=r"^broker:9092 closed the connection$"):
        connection.receive(1)
    with pytest.raises(ConnectionClosed, match="the connection to broker:9092 failed: Broken pipe"):
        connection.send(ApiKey.METADATA, 8, b"")


def test_a_broker_that_falls_silent_is_told_with_the_time_that_it_had(pair: Pair) -> None:
    connection, broker = pair
    connection._socket.settimeout(0.01)
    connection.send(ApiKey.METADATA, 8, b"")
    broker.sendall(answer(1, b"half of an answer")[:12])
    with pytest.raises(TimedOut, match=r"^broker:9092 gave no answer within 5 s$"):
        connection.receive(1)


@pytest.mark.parametrize("version", [3, 4])
def test_a_message_is_asked_and_its_answer_decoded(version: int, pair: Pair) -> None:
    connection, broker = pair
    body = schema.response_encoder(ApiKey.HEARTBEAT, version)(HeartbeatResponse(error_code=27))
    # The answer is there before the question: one thread is enough.
    broker.sendall(answer(1, (b"\0" if version >= 4 else b"") + body))
    found = connection.ask(ApiKey.HEARTBEAT, version, HeartbeatRequest(group_id="g", member_id="m"))
    assert found.error_code == 27


def test_an_answer_that_cannot_be_decoded_is_a_failed_connection(pair: Pair) -> None:
    connection, broker = pair
    broker.sendall(answer(1, b"\0\0"))
    with pytest.raises(InvalidAnswer, match="broker:9092 sent an answer to Heartbeat that is none"):
        connection.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest())


def test_questions_are_asked_one_after_the_other(pair: Pair) -> None:
    connection, broker = pair

    def questions() -> Questions[list[int]]:
        first = yield Question(ApiKey.HEARTBEAT, 3, HeartbeatRequest())
        second = yield Question(ApiKey.HEARTBEAT, 3, HeartbeatRequest())
        return [first.error_code, second.error_code]

    encode = schema.response_encoder(ApiKey.HEARTBEAT, 3)
    broker.sendall(answer(1, encode(HeartbeatResponse(error_code=1))))
    broker.sendall(answer(2, encode(HeartbeatResponse(error_code=2))))
    assert connection.answers_to(questions()) == [1, 2]


@pytest.mark.parametrize("error, kind, words", [
    (ConnectionRefusedError(111, "Connection refused"), NobodyListens, "at b:1: Connection refused"),
    (TimeoutError("timed out"), NotReached, "no broker answers at b:1: timed out"),
    (socket.gaierror(-2, "Name or service not known"), NotReached, "no broker answers at b:1: Name"),
])  # fmt: skip
def test_what_hinders_a_connection_is_worth_another_try(
    error: OSError, kind: type[ConnectionFailed], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_address: object, timeout: float) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectionFailed, match=words) as refused:
        BlockingConnection("b", 1, client_id="me", timeout_s=1)
    assert type(refused.value) is kind


class FailingTls:
    """In the place of an SSLContext."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wrap_socket(self, _plain: socket.socket, server_hostname: str) -> ssl.SSLSocket:
        assert server_hostname == "broker"
        raise self._error


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "bad")
    error.verify_message = "self-signed certificate"
    return error


def wrong_version() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize("error, kind, words", [
    (wrong_version(), ConnectionFailed, r"^TLS with broker:9092 failed: WRONG_VERSION_NUMBER$"),
    (TimeoutError("timed out"), NotReached, r"^no broker answers at broker:9092: timed out$"),
    (untrusted(), NotTrusted, r"^the certificate of broker:9092 is not trusted: self-signed certificate; "),
])  # fmt: skip
def test_a_handshake_that_fails_closes_the_connection(
    error: Exception, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = socket_pair()
    monkeypatch.setattr(socket, "create_connection", lambda _address, timeout: near)
    tls = cast("ssl.SSLContext", FailingTls(error))
    with far:
        with pytest.raises(kind, match=words):
            BlockingConnection("broker", 9092, client_id="me", timeout_s=5, tls=tls)
        assert far.recv(1) == b""


def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    assert not issubclass(NotTrusted, ConnectionFailed)


# Sessions that end.

LOGIN = SecurityOptions(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password="geheim")


def whole_answer(api_key: int, version: int, correlation_id: int, message: object) -> bytes:
    tags = b"\0" if schema.response_header_version(api_key, version) else b""
    return answer(correlation_id, tags + schema.response_encoder(api_key, version)(message))


def login_answers(first: int, session_ms: int) -> bytes:
    """To a handshake of this number and the token after it."""
    return whole_answer(ApiKey.SASL_HANDSHAKE, 1, first, SaslHandshakeResponse()) + whole_answer(
        ApiKey.SASL_AUTHENTICATE, 2, first + 1, SaslAuthenticateResponse(session_lifetime_ms=session_ms)
    )


def keys_received(broker: socket.socket) -> list[int]:
    data = broker.recv(10_000)
    found: list[int] = []
    while data:
        size, key = struct.unpack_from(">ih", data)
        found.append(key)
        data = data[4 + size :]
    return found


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 5_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def test_a_login_is_repeated_before_the_next_request_once_the_session_is_old(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, broker = pair
    clock = Clock(monkeypatch)
    versions = whole_answer(ApiKey.API_VERSIONS, 3, 1, ApiVersionsResponse())
    broker.sendall(versions + login_answers(2, session_ms=10_000))
    connection.open_with("me", LOGIN)
    assert keys_received(broker) == [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    clock.now_s += 8.4
    assert connection.send(ApiKey.METADATA, 8, b"") == 4
    clock.now_s += 0.2
    connection.send(ApiKey.METADATA, 8, b"")
    assert keys_received(broker) == [ApiKey.METADATA] * 2, "an answer is due: it can wait"
    broker.sendall(answer(4, b"first") + answer(5, b"second"))
    connection.receive(4)
    kept = connection.receive(5)
    broker.sendall(login_answers(6, session_ms=0))
    assert connection.send(ApiKey.METADATA, 8, b"") == 8
    assert keys_received(broker) == [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA]
    assert bytes(kept) == b"second", "still looked at while the next answer is on its way"
    clock.now_s += 10**6
    connection.send(ApiKey.METADATA, 8, b"")
    assert keys_received(broker) == [ApiKey.METADATA], "this session has no end"


def test_a_login_that_is_refused_the_second_time_is_a_lost_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, broker = pair
    clock = Clock(monkeypatch)
    broker.sendall(
        whole_answer(ApiKey.API_VERSIONS, 3, 1, ApiVersionsResponse()) + login_answers(2, session_ms=1_000)
    )
    connection.open_with("me", LOGIN)
    clock.now_s += 1
    broker.sendall(whole_answer(ApiKey.SASL_HANDSHAKE, 1, 4, SaslHandshakeResponse(error_code=33)))
    with pytest.raises(ConnectionClosed, match="does not offer PLAIN"):
        connection.send(ApiKey.METADATA, 8, b"")


def test_work_is_done_at_once(pair: Pair) -> None:
    connection, _ = pair

    def questions() -> Questions[object]:
        return (yield Work(lambda: 7))

    assert connection.answers_to(questions()) == 7
