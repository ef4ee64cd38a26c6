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
from millrace.client.errors import ConnectionClosed, NobodyListens
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
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


def test_client_properties_are_refused_instead_of_ignored() -> None:
    address = BrokerAddress(bootstrap="a:1", command_config=Path("client.properties"), timeout_s=1.0)
    with (
        pytest.raises(RequestFailed, match="plaintext listeners only: leave out --command-config"),
        connected(address),
    ):
        pytest.fail("connected all the same")


def test_a_refusal_names_its_subject_and_its_code() -> None:
    raise_for(0, "a topic")
    with pytest.raises(RequestFailed, match=r"^a topic: .+ \(UNKNOWN_TOPIC_OR_PARTITION\)$"):
        raise_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a topic")
