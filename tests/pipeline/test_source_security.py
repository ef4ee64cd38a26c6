"""The source's client logs in and speaks TLS. Millrace has neither yet, so a stand-in answers."""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import BrokerRefused, LoginFailed, NotTrusted
from millrace.client.security import SecurityOptions, read_security
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.wire.messages.metadata import MetadataResponse, MetadataResponseTopic
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse

SERVED = {ApiKey.METADATA: 12, ApiKey.API_VERSIONS: 3}


class StandIn:
    """Knows one user, and topics only after that user has logged in."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(30)
            try:
                self._talk(
                    connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
                )
            except (OSError, ssl.SSLError):
                pass
            finally:
                connection.close()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            is_known = False
            while head := stream.read(4):
                request = stream.read(struct.unpack(">i", head)[0])
                key, version, correlation_id, name_size = struct.unpack_from(">hhih", request)
                flexible = schema.request_header_version(key, version) >= 2
                message = schema.request_decoder(key, version)(request, 10 + name_size + flexible)
                response, is_known = self._answer(key, message, is_known)
                if response is None:
                    return
                tags = b"\0" if schema.response_header_version(key, version) else b""
                body = (
                    struct.pack(">i", correlation_id) + tags + schema.response_encoder(key, version)(response)
                )
                connection.sendall(struct.pack(">i", len(body)) + body)

    def _answer(self, key: int, message: Any, is_known: bool) -> tuple[Any, bool]:
        match key:
            case ApiKey.API_VERSIONS:
                keys = [ApiVersion(api_key=each, max_version=most) for each, most in SERVED.items()]
                return ApiVersionsResponse(api_keys=keys), is_known
            case ApiKey.SASL_HANDSHAKE if message.mechanism == "PLAIN":
                return SaslHandshakeResponse(mechanisms=["PLAIN"]), is_known
            case ApiKey.SASL_HANDSHAKE:
                return SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN"]), is_known
            case ApiKey.SASL_AUTHENTICATE if message.auth_bytes == b"\0reader\0secret":
                return SaslAuthenticateResponse(), True
            case ApiKey.SASL_AUTHENTICATE:
                return SaslAuthenticateResponse(error_code=58, error_message="who are you?"), False
            case ApiKey.METADATA if is_known:
                return MetadataResponse(
                    topics=[MetadataResponseTopic(name="secret", topic_id=bytes(16))]
                ), True
        return None, is_known


def login(protocol: str = "SASL_PLAINTEXT", **more: str) -> SecurityOptions:
    given = {"security.protocol": protocol, "sasl.username": "reader", "sasl.password": "secret"}
    return read_security(given | {name.replace("_", "."): value for name, value in more.items()})


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


def topics(server: StandIn, security: SecurityOptions) -> list[str]:
    with BrokerClient(f"127.0.0.1:{server.port}", security=security, timeout_ms=60_000) as client:
        return list(client.metadata())


def test_a_user_logs_in(stand_in: StandIn) -> None:
    assert topics(stand_in, login()) == ["secret"]


def test_a_wrong_password_is_refused_once(stand_in: StandIn) -> None:
    with pytest.raises(BrokerRefused, match=r"login at .*who are you\?") as refused:
        topics(stand_in, login(sasl_password="guess"))
    assert "guess" not in str(refused.value)


def test_a_mechanism_that_is_not_offered_is_named(stand_in: StandIn) -> None:
    with pytest.raises(LoginFailed, match="does not offer SCRAM-SHA-256; it offers: PLAIN"):
        topics(stand_in, login(sasl_mechanism="SCRAM-SHA-256"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    key, file = folder / "key.pem", folder / "certificate.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(file)]
    subprocess.run([openssl, *words], check=True, capture_output=True, timeout=60)
    return file, key


def test_a_login_over_tls(certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    server = StandIn(context)
    try:
        assert topics(server, login("SASL_SSL", ssl_ca_location=str(file))) == ["secret"]
        with pytest.raises(NotTrusted, match="is not trusted"):
            topics(server, login("SASL_SSL"))
    finally:
        server.close()
