"""One connection: frames out and in, over a pair of sockets whose other end is played by the test."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator

import pytest

from millrace.core.override import override
from millrace.pipeline.errors import ConnectionFailed, PipelineError
from millrace.pipeline.kafka.connection import RESPONSE_BYTES_MAX, Connection
from millrace.wire.api_keys import ApiKey


class Socket(socket.socket):
    """A unix socket takes no options of TCP."""

    @override
    def setsockopt(self, *_: object) -> None:
        pass


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    near = Socket(ours.family, ours.type, ours.proto, ours.detach())
    near.settimeout(5)
    monkeypatch.setattr(socket, "create_connection", lambda _address, timeout: near)
    connection = Connection("broker", 9092, client_id="me", timeout_s=5)
    with theirs:
        yield connection, theirs
        connection.close()


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def test_requests_are_numbered_and_framed(pair: tuple[Connection, socket.socket]) -> None:
    connection, broker = pair
    assert connection.send(ApiKey.METADATA, 8, b"body") == 1
    # A header of version 1 has no tags.
    assert broker.recv(100) == struct.pack(">ihhih", 16, 3, 8, 1, 2) + b"mebody"
    assert connection.send(ApiKey.METADATA, 12, b"body") == 2
    assert broker.recv(100) == struct.pack(">ihhih", 17, 3, 12, 2, 2) + b"me\0body"


def test_answers_come_in_order_also_in_pieces(pair: tuple[Connection, socket.socket]) -> None:
    connection, broker = pair
    broker.sendall(answer(1, b"first") + answer(2, b"\0second")[:9])
    assert bytes(connection.receive(1, ApiKey.METADATA, 8)) == b"first"
    broker.sendall(answer(2, b"\0second")[9:])
    # The byte of a header of version 1 is no part of the body.
    assert bytes(connection.receive(2, ApiKey.METADATA, 12)) == b"second"


def test_an_answer_larger_than_the_buffer_leaves_earlier_views_alone(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    large = b"x" * 70_000
    broker.sendall(answer(1, b"small") + answer(2, large))
    first = connection.receive(1, ApiKey.METADATA, 8)
    assert bytes(connection.receive(2, ApiKey.METADATA, 8)) == large
    assert bytes(first) == b"small"


@pytest.mark.parametrize("sent, words", [
    (b"HTTP/1.1 400 Bad Request", "broker:9092 answers, but not with the Kafka protocol"),
    (struct.pack(">ii", RESPONSE_BYTES_MAX + 1, 1), "not with the Kafka protocol"),
    (struct.pack(">ii", 3, 1), "not with the Kafka protocol"),
    (answer(7, b"x"), "answered request 7 instead of 1"),
])  # fmt: skip
def test_what_is_no_answer_to_the_request_ends_the_connection(
    sent: bytes, words: str, pair: tuple[Connection, socket.socket]
) -> None:
    connection, broker = pair
    broker.sendall(sent)
    with pytest.raises(ConnectionFailed, match=words):
        connection.receive(1, ApiKey.METADATA, 8)


def test_a_broker_that_closes_is_told_with_what_may_be_wrong(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    broker.sendall(b"\0\0")
    broker.close()
    with pytest.raises(ConnectionFailed, match=r"closed the connection.*set security\.protocol"):
        connection.receive(1, ApiKey.METADATA, 8)
    with pytest.raises(ConnectionFailed, match="the connection to broker:9092 failed: Broken pipe"):
        connection.send(ApiKey.METADATA, 8, b"")


def refuse(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_address: object, timeout: float) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)


def handshake_error() -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    return error


@pytest.mark.parametrize("error, words", [
    (ConnectionRefusedError(111, "Connection refused"), "no broker answers at b:1: Connection refused"),
    (TimeoutError("timed out"), "no broker answers at b:1: timed out"),
    (handshake_error(), "TLS with b:1 failed: WRONG_VERSION_NUMBER"),
])  # fmt: skip
def test_what_hinders_a_connection_is_worth_another_try(
    error: OSError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(error, monkeypatch)
    with pytest.raises(ConnectionFailed, match=words):
        Connection("b", 1, client_id="me", timeout_s=1)


def test_a_certificate_that_is_not_trusted_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "bad")
    error.verify_message = "self-signed certificate"
    refuse(error, monkeypatch)
    with pytest.raises(PipelineError, match="not trusted: self-signed certificate") as refused:
        Connection("b", 1, client_id="me", timeout_s=1)
    assert not isinstance(refused.value, ConnectionFailed)
