"""One request after the other over a plain connection: what is sent, read back, and said of failures."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.broker_requests import Connection, connected, raise_for
from millrace.cli.clients import RequestFailed
from millrace.cli.options import BrokerAddress
from millrace.client.errors import BrokerRefused, ConnectionClosed, NobodyListens
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.unit.client.socket_pairs import socket_pair

ADDRESS = BrokerAddress(bootstrap="broker:9, other:10", command_config=None, timeout_s=3.0)


@pytest.fixture
def far_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The broker's side of the next connection that is opened."""
    near, far = socket_pair()

    def create_connection(address: tuple[str, int], timeout: float) -> socket.socket:
        assert (address, timeout) == (("broker", 9), 3.0)
        near.settimeout(timeout)
        return near

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with near, far:
        yield far


@pytest.mark.parametrize("version", [3, 4])
def test_a_request_is_framed_and_its_answer_decoded(far_end: socket.socket, version: int) -> None:
    body = schema.response_encoder(ApiKey.HEARTBEAT, version)(HeartbeatResponse(error_code=27))
    head = struct.pack(">i", 1) + (b"\0" if version >= 4 else b"")
    # The answer is there before the question: one thread is enough.
    far_end.sendall(struct.pack(">i", len(head + body)) + head + body)
    with connected(ADDRESS) as connection:
        answer = connection.ask(ApiKey.HEARTBEAT, version, HeartbeatRequest(group_id="g", member_id="m"))
    assert answer.error_code == 27
    frame = far_end.recv(1000)
    assert struct.unpack_from(">ihhih", frame) == (len(frame) - 4, ApiKey.HEARTBEAT, version, 1, 12)
    assert frame[14:26] == b"millrace-cli"
    at = 27 if version >= 4 else 26
    assert schema.request_decoder(ApiKey.HEARTBEAT, version)(frame, at).group_id == "g"
    # The end of the block has closed the connection.
    assert far_end.recv(1) == b""


def test_a_connection_that_is_closed_in_the_middle_of_an_answer_is_told(far_end: socket.socket) -> None:
    far_end.sendall(struct.pack(">ii", 100, 1) + b"only this")
    far_end.shutdown(socket.SHUT_WR)
    connection = Connection("broker", 9, 3.0)
    with pytest.raises(ConnectionClosed, match=r"^broker:9 closed the connection$"):
        connection.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest())


def test_nobody_there_is_one_line_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(NobodyListens, match=r"^no broker answers at h:1: Connection refused$"):
        Connection("h", 1, 1.0)


def answer(version: int, correlation_id: int, key: ApiKey, response: object) -> bytes:
    body = schema.response_encoder(key, version)(response)
    head = struct.pack(">i", correlation_id) + (b"\0" if version >= 2 else b"")
    return struct.pack(">i", len(head + body)) + head + body


def test_a_file_of_properties_makes_it_log_in_first(far_end: socket.socket, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="ada" password="geheim";\n'
    )
    far_end.sendall(answer(1, 1, ApiKey.SASL_HANDSHAKE, SaslHandshakeResponse(mechanisms=["PLAIN"])))
    far_end.sendall(answer(2, 2, ApiKey.SASL_AUTHENTICATE, SaslAuthenticateResponse(error_code=58)))
    address = BrokerAddress(bootstrap="broker:9", command_config=path, timeout_s=3.0)
    with pytest.raises(BrokerRefused, match="SASL_AUTHENTICATION_FAILED") as refused, connected(address):
        pytest.fail("connected all the same")
    assert b"\0ada\0geheim" in far_end.recv(1000)
    assert "geheim" not in str(refused.value)
    # The connection is not left open.
    assert far_end.recv(1) == b""


def test_the_next_broker_is_tried_where_the_first_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket_pair()

    def dial(address: tuple[str, int], timeout: float) -> socket.socket:
        if address == ("broker", 9):
            raise ConnectionRefusedError(111, "refused")
        return near

    monkeypatch.setattr(socket, "create_connection", dial)
    with near, far, connected(ADDRESS) as connection:
        assert connection.address == "other:10"


def test_who_is_cut_off_without_a_login_is_told_how_to_give_one(far_end: socket.socket) -> None:
    far_end.shutdown(socket.SHUT_WR)
    with (
        pytest.raises(RequestFailed, match=r"closed the connection; .* by --command-config$"),
        connected(ADDRESS) as connection,
    ):
        connection.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest())


def test_a_refusal_names_its_subject_and_its_code() -> None:
    with pytest.raises(RequestFailed, match=r"^a topic: it is not yours \(TOPIC_AUTHORIZATION_FAILED\)$"):
        raise_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a topic", "it is not yours")
    raise_for(0, "a topic")
    with pytest.raises(RequestFailed, match=r"^a topic: .+ \(UNKNOWN_TOPIC_OR_PARTITION\)$"):
        raise_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a topic")
