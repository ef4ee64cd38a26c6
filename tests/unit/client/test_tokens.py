"""Tokens from a setting, a file and an endpoint; of the endpoint as little as possible is asked."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from millrace.client.errors import ClientError, ConnectionFailed, InvalidOption, LoginFailed
from millrace.client.tokens import TokenEndpoint, TokenSource
from millrace.core.override import override
from tests.harness.certificates import Authority


class Provider:
    """Gives numbered tokens to whoever shows the right secret."""

    def __init__(self, authority: Authority) -> None:
        provider = self
        self.seen: list[tuple[str, dict[str, list[str]]]] = []
        self.status = 200
        self.body: object = None
        self.location: str | None = None

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                provider.seen.append((self.headers["Authorization"], parse_qs(form)))
                body = provider.body
                if body is None:
                    body = {"access_token": f"token-{len(provider.seen)}", "expires_in": 100}
                self.send_response(provider.status)
                if provider.location is not None:
                    self.send_header("Location", provider.location)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            @override
            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.identity("provider").both_file)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def provider(authority: Authority) -> Iterator[Provider]:
    found = Provider(authority)
    yield found
    found.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def source(provider: Provider, authority: Authority, clock: Clock | None = None) -> TokenSource:
    endpoint = TokenEndpoint(
        url=provider.url,
        client_id="my client",
        client_secret="ge:heim",
        scope="kafka",
        ca_file=str(authority.file),
    )
    return TokenSource(endpoint=endpoint, now=clock or Clock())


def test_a_token_is_asked_for_once_and_again_before_it_expires(
    provider: Provider, authority: Authority
) -> None:
    clock = Clock()
    tokens = source(provider, authority, clock)
    assert [tokens.take() for _ in range(3)] == ["token-1"] * 3
    clock.now_s += 79
    assert tokens.take() == "token-1"
    clock.now_s += 2
    assert tokens.take() == "token-2"
    header, form = provider.seen[0]
    # RFC 6749, section 2.3.1: id and secret are encoded like a form before they are joined.
    assert base64.b64decode(header.removeprefix("Basic ")) == b"my%20client:ge%3Aheim"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}


def test_another_process_asks_for_itself(provider: Provider, authority: Authority) -> None:
    """Tasks of Spark get the options as bytes, and these hold no token that may be too old by then."""
    tokens = TokenSource(endpoint=source(provider, authority)._endpoint)
    assert tokens.take() == "token-1"
    data = pickle.dumps(tokens)
    assert b"token-1" not in data
    assert pickle.loads(data).take() == "token-2"


@pytest.mark.parametrize("status, body, kind", [
    (401, {"error": "invalid_client"}, LoginFailed),
    (503, b"later", ConnectionFailed),
    (429, b"slower", ConnectionFailed),
    (200, b"no JSON", LoginFailed),
    (200, [], LoginFailed),
    (200, {"expires_in": 5}, LoginFailed),
    (200, {"access_token": "two words"}, LoginFailed),
])  # fmt: skip
def test_an_endpoint_without_a_token_for_us(
    provider: Provider, authority: Authority, status: int, body: object, kind: type[ClientError]
) -> None:
    provider.status, provider.body = status, body
    with pytest.raises(kind) as failed:
        source(provider, authority).take()
    assert type(failed.value) is kind
    assert "heim" not in str(failed.value)


def test_a_redirect_is_not_followed(provider: Provider, authority: Authority) -> None:
    """The secret would go with it."""
    provider.status, provider.location = 302, provider.url
    with pytest.raises(LoginFailed, match="answered 302"):
        source(provider, authority).take()
    assert len(provider.seen) == 1


def test_an_endpoint_that_nobody_trusts_gets_no_secret(provider: Provider) -> None:
    endpoint = TokenEndpoint(url=provider.url, client_id="c", client_secret="geheim")
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        TokenSource(endpoint=endpoint).take()
    assert provider.seen == []
    assert "geheim" not in repr(endpoint)


def test_secrets_go_only_where_nobody_listens() -> None:
    with pytest.raises(InvalidOption, match="must begin with https://"):
        TokenSource(endpoint=TokenEndpoint(url="http://idp/token", client_id="c", client_secret="s"))


def test_a_file_is_read_at_every_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    tokens = TokenSource(file=file)
    assert tokens.take() == "first"
    file.write_text("second")
    assert tokens.take() == "second"
    file.write_text("no token at all")
    with pytest.raises(LoginFailed, match="given as a token is none") as failed:
        tokens.take()
    assert "at all" not in str(failed.value)
    file.unlink()
    with pytest.raises(LoginFailed, match="cannot be read from"):
        tokens.take()


def test_a_token_of_the_settings_is_taken_as_it_is() -> None:
    tokens = TokenSource(token="a.b.c")
    assert tokens.take() == "a.b.c"
    assert "a.b.c" not in repr(tokens)
