"""Keys for tokens: fetched from files and by https, fetched again, and from nowhere else."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from joserfc.jwk import ECKey, KeySet

from millrace.broker.network.key_sets import KeySetFeed, KeySetPlace, fetch_key_set
from millrace.core.override import override
from millrace.security.errors import InvalidKeySet, RefusedUrl


def key_set(*key_ids: str) -> bytes:
    keys: list[Any] = [ECKey.generate_key("P-256", {"kid": key_id, "use": "sig"}) for key_id in key_ids]
    return json.dumps(KeySet(keys).as_dict(private=False)).encode()


class Provider:
    """Answers by https with what a test says."""

    def __init__(self, authority: trustme.CA) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = provider.pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, *_words: object) -> None:
                """Nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def provider(authority: trustme.CA) -> Iterator[Provider]:
    provider = Provider(authority)
    yield provider
    provider.stop()


def fetch(authority: trustme.CA, url: str, *allowed: str) -> bytes:
    def context() -> ssl.SSLContext:
        made = ssl.create_default_context()
        authority.configure_trust(made)
        return made

    return fetch_key_set(url, (url, *allowed), context=context)


def test_a_key_set_comes_by_https(provider: Provider, authority: trustme.CA) -> None:
    provider.pages["/keys?x=1"] = (200, {}, b"content")
    assert fetch(authority, f"{provider.url}/keys?x=1") == b"content"


def test_a_certificate_that_nobody_vouches_for_is_refused(provider: Provider) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        fetch_key_set(f"{provider.url}/keys", (f"{provider.url}/keys",))


def test_redirects_lead_only_to_what_is_allowed(provider: Provider, authority: trustme.CA) -> None:
    """Fault S18: the provider's answer must not choose what we fetch."""
    provider.pages["/new"] = (200, {}, b"new")
    provider.pages["/old"] = (302, {"Location": "/new"}, b"")
    assert fetch(authority, f"{provider.url}/old", f"{provider.url}/new") == b"new"
    with pytest.raises(RefusedUrl, match="not on the list"):
        fetch(authority, f"{provider.url}/old")
    for location in ("file:///etc/passwd", "http://169.254.169.254/latest", "https://169.254.169.254/"):
        provider.pages["/away"] = (302, {"Location": location}, b"")
        with pytest.raises(RefusedUrl):
            fetch(authority, f"{provider.url}/away", location)
    provider.pages["/round"] = (302, {"Location": "/round"}, b"")
    with pytest.raises(RefusedUrl, match="more than 3 redirects"):
        fetch(authority, f"{provider.url}/round")


def test_another_status_and_a_silent_host_are_failures(provider: Provider, authority: trustme.CA) -> None:
    with pytest.raises(InvalidKeySet, match="status 404"):
        fetch(authority, f"{provider.url}/nothing")
    with pytest.raises(ConnectionRefusedError):
        fetch(authority, "https://localhost:1/keys")


def place(url: str, **times: float) -> KeySetPlace:
    chosen = {"refresh_s": 3600.0, "retry_s": 0.01, "retry_s_max": 0.05, **times}
    return KeySetPlace(url=url, allowed_urls=(url,), **chosen)


def test_an_unknown_key_is_fetched_and_a_failure_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"

    async def main() -> None:
        feed = KeySetFeed(place(file.as_uri()), None)
        task = asyncio.get_running_loop().create_task(feed.run())
        while feed.failures_count < 2:
            await asyncio.sleep(0.005)
        file.write_bytes(key_set("first"))
        while feed.keys.find("first", "ES256", 0) is None:
            await asyncio.sleep(0.005)
        file.write_bytes(key_set("first", "second"))
        assert feed.keys.find("second", "ES256", 10_000) is None
        async with asyncio.timeout(5):
            while feed.keys.find("second", "ES256", 10_001) is None:
                await asyncio.sleep(0.005)
        # What is damaged later takes nothing away.
        failures = feed.failures_count
        file.write_bytes(b"{}")
        assert feed.keys.find("third", "ES256", 20_000) is None
        while feed.failures_count == failures:
            await asyncio.sleep(0.005)
        assert feed.keys.find("first", "ES256", 30_000) is not None
        task.cancel()

    asyncio.run(main())
