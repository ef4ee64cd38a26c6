"""Failures of librdkafka in one line each, and addresses."""

from __future__ import annotations

import base64
import socket
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli import broker_requests, clients
from millrace.cli.clients import (
    RequestFailed,
    answer_of,
    client_properties,
    describe_error,
    error_code,
    explained,
    report_each,
    split_host_port,
)
from millrace.cli.options import DEFAULT_BOOTSTRAP, BrokerAddress
from millrace.client.errors import LoginFailed
from millrace.core.override import override
from tests.unit.cli.fakes import ADDRESS, done, failed


@pytest.mark.parametrize(
    "text, address",
    [
        ("localhost:9092", ("localhost", 9092)),
        ("[::1]:1", ("::1", 1)),
        ("PLAINTEXT://h:65535", ("h", 65535)),
    ],
)
def test_an_address_is_split_at_its_port(text: str, address: tuple[str, int]) -> None:
    assert split_host_port(text) == address


@pytest.mark.parametrize("text", ["", "localhost", ":9092", "h:", "h:x", "h:65536", "h:-1"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(RequestFailed, match="is not an address of the form HOST:PORT"):
        split_host_port(text)


@given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.integers(0, 65535))
def test_every_host_and_port_are_split_again(host: str, port: int) -> None:
    assert split_host_port(f"{host}:{port}") == (host, port)


def test_an_error_of_a_broker_has_its_name_and_one_of_the_library_has_not() -> None:
    of_broker = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "Topic 't' already exists")
    assert describe_error(of_broker) == "Topic 't' already exists (TOPIC_ALREADY_EXISTS)"
    assert describe_error(KafkaException(of_broker)) == describe_error(of_broker)
    assert describe_error(KafkaError(KafkaError._TIMED_OUT, "timed out")) == "timed out"
    assert describe_error(KafkaException("plain text")) == "plain text"


def test_a_failure_names_its_subject_and_keeps_its_code() -> None:
    with pytest.raises(RequestFailed, match=r"^t: it failed \(TOPIC_ALREADY_EXISTS\)$") as caught:
        answer_of(failed(KafkaError.TOPIC_ALREADY_EXISTS), ADDRESS, subject="t")
    assert error_code(caught.value) == KafkaError.TOPIC_ALREADY_EXISTS
    assert error_code(RequestFailed("no cause")) is None
    assert error_code(None) is None


def test_no_answer_is_told_with_the_time_that_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class Never(Future[Any]):
        @override
        def result(self, timeout: float | None = None) -> Any:
            waited.append(timeout)
            raise TimeoutError

    with pytest.raises(RequestFailed, match=r"^t: no answer within 1 s$"):
        answer_of(Never(), ADDRESS, subject="t")
    # A little longer than the library itself waits, whose own error says more.
    assert waited == [2.0]


def test_exceptions_in_a_block_become_one_line() -> None:
    error = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all down"))
    with pytest.raises(RequestFailed, match=r"^all down$"), explained():
        raise error
    with pytest.raises(RequestFailed, match=r"^t-0: all down$"), explained("t-0"):
        raise error


def test_one_failure_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    futures = {
        "a": done(),
        "b": failed(KafkaError.TOPIC_ALREADY_EXISTS),
        "c": failed(KafkaError.INVALID_PARTITIONS),
        "d": failed(KafkaError.TOPIC_ALREADY_EXISTS),
        "e": done(),
    }

    def failure(name: str, error: RequestFailed) -> str | None:
        return None if name == "d" else str(error)

    with pytest.raises(click.ClickException, match=r"^c: it failed \(INVALID_PARTITIONS\)$"):
        report_each(futures, ADDRESS, done="created", failure=failure)
    printed = capsys.readouterr()
    assert printed.out == "created a\ncreated e\n"
    assert printed.err == "Error: b: it failed (TOPIC_ALREADY_EXISTS)\n"


def test_a_file_names_the_brokers_unless_the_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = []

    class Socket:
        def close(self) -> None:
            """Nothing is open."""

    def dial(address: tuple[str, int], timeout: float) -> Socket:
        dialled.append((address, timeout))
        return Socket()

    monkeypatch.setattr(socket, "create_connection", dial)
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=from-file:7\nlinger.ms=5\nkey.serializer=of.Java\n")
    address = BrokerAddress(bootstrap=DEFAULT_BOOTSTRAP, command_config=path, timeout_s=30.0)
    properties = client_properties(address)
    assert properties["bootstrap.servers"] == "from-file:7"
    assert properties["linger.ms"] == "5"
    assert "key.serializer" not in properties
    assert properties["socket.timeout.ms"] == "30000"
    # As librdkafka writes them; callbacks cannot be written at all.
    assert properties["log.connection.close"] == "false"
    assert "error_cb" not in properties
    assert dialled == [(("from-file", 7), 5.0)]
    named = BrokerAddress(bootstrap="h:1", command_config=path, timeout_s=30.0)
    assert client_properties(named)["bootstrap.servers"] == "h:1"


def test_a_login_that_fails_is_told_before_the_library_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def connect(host: str, port: int, where: BrokerAddress) -> None:
        asked.append((host, port, where.command_config))
        raise LoginFailed("h:1 does not offer PLAIN")

    monkeypatch.setattr(broker_requests, "connect", connect)
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=p\n"
    )
    with pytest.raises(LoginFailed):
        client_properties(BrokerAddress(bootstrap="h:1", command_config=path, timeout_s=1.0))
    assert asked == [("h", 1, path)]


def test_any_of_several_brokers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = socket.socketpair()

    def dial(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] != "c":
            raise ConnectionRefusedError(111, "refused")
        return here

    monkeypatch.setattr(socket, "create_connection", dial)
    with there:
        client_properties(BrokerAddress(bootstrap="a:1, b:2, c:3", command_config=None, timeout_s=1.0))
        with pytest.raises(RequestFailed, match=r"^no broker answers at a:1: refused; b:2: refused$"):
            client_properties(BrokerAddress(bootstrap="a:1, b:2", command_config=None, timeout_s=1.0))


@pytest.mark.parametrize("claims, is_known", [(b'{"exp": 1234567890}', True), (b'{"sub": "x"}', False)])
def test_tokens_of_a_file_reach_the_library_with_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: bytes, is_known: bool
) -> None:
    token = "e30." + base64.urlsafe_b64encode(claims).decode().rstrip("=") + ".c2ln"
    (tmp_path / "token").write_text(token)
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/token\nsasl.oauthbearer.extensions=pool=p\n"
    )
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(clients, "AdminClient", made.append)
    monkeypatch.setattr(clients, "_require_reachable", lambda *_: None)
    clients.admin_client(BrokerAddress(bootstrap="h:1", command_config=path, timeout_s=1.0))
    (config,) = made
    # The library would fetch by itself, and cannot read a file.
    assert "sasl.oauthbearer.token.endpoint.url" not in config
    found = config["oauth_cb"]("")
    assert (found[0], found[2:]) == (token, ("", {"pool": "p"}))
    assert (found[1] == 1234567890) is is_known
    assert found[1] > 0


def test_who_is_cut_off_without_a_login_is_told_how_to_give_one() -> None:
    class Client:
        def list_topics(self, timeout: float) -> object:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "failed"))

    client: Any = Client()
    with pytest.raises(RequestFailed, match=r"^failed; if its listener uses TLS or SASL"):
        clients.cluster_metadata(client, ADDRESS)
    configured = BrokerAddress(bootstrap="h:1", command_config=Path("f"), timeout_s=1.0)
    with pytest.raises(RequestFailed, match=r"^failed$"):
        clients.cluster_metadata(client, configured)


@pytest.mark.parametrize(
    "url, is_possible", [("https://login.example/token", True), ("file:///token", False)]
)
def test_where_no_callback_can_be_given_the_library_fetches_tokens_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, is_possible: bool
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.client.id=c\n"
        f"sasl.oauthbearer.client.secret=geheim\nsasl.oauthbearer.token.endpoint.url={url}\n"
    )
    monkeypatch.setattr(clients, "_require_reachable", lambda *_: None)
    address = BrokerAddress(bootstrap="h:1", command_config=path, timeout_s=1.0)
    if is_possible:
        properties = client_properties(address)
        assert properties["sasl.oauthbearer.method"] == "oidc"
        assert properties["sasl.oauthbearer.client.secret"] == "geheim"
    else:
        with pytest.raises(RequestFailed, match="from an https endpoint alone"):
            client_properties(address)
