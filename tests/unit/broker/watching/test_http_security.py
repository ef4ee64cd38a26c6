"""The HTTP port over TLS, and files that change while it is open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from millrace.broker.watching import http_security
from millrace.broker.watching.http import Guarded, HttpResponse, HttpServer
from millrace.broker.watching.http_security import HttpCredentials, HttpSecurity
from millrace.metadata.errors import InvalidConfig
from tests.harness.certificates import Authority

FIRST, SECOND = "the-first-of-two-tokens", "the-second-of-two-tokens"


async def ping() -> HttpResponse:
    return HttpResponse(200, b"pong")


async def get(port: int, trusted: ssl.SSLContext | None, token: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    writer.write(f"GET /ping HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_certificate_and_token_are_replaced_while_the_port_is_open(
    tmp_path: Path, loop_factory: Callable[[], Any]
) -> None:
    first, second = Authority(tmp_path / "1"), Authority(tmp_path / "2")
    store, token_file = tmp_path / "store.pem", tmp_path / "token"
    store.write_text(first.identity("port", password="tresor").both_file.read_text())
    token_file.write_text(FIRST + "\n")
    settings = HttpSecurity(key_store=str(store), key_password="tresor", token_file=str(token_file))

    async def scenario() -> None:
        credentials = await http_security.load(settings)
        assert credentials.guard is not None
        server = HttpServer({"/ping": ping}, guarded=Guarded(credentials.guard, {}))
        _, port = await server.start("127.0.0.1", 0, credentials.listening)
        trusts_first, trusts_second = (
            ssl.create_default_context(cafile=str(authority.file)) for authority in (first, second)
        )
        assert await get(port, trusts_first, FIRST) == 200
        assert await get(port, trusts_first, SECOND) == 401
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(port, trusts_second, FIRST)
        await credentials.look()
        assert await get(port, trusts_first, FIRST) == 200, "nothing has changed"
        store.write_text("no certificate")
        await credentials.look()
        assert await get(port, trusts_first, FIRST) == 200, "what was good goes on"
        store.write_text(second.identity("port", password="tresor").both_file.read_text())
        token_file.write_text(SECOND)
        await credentials.look()
        assert await get(port, trusts_second, SECOND) == 200
        assert await get(port, trusts_second, FIRST) == 401
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(port, trusts_first, SECOND)
        server.stop()
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def load(settings: HttpSecurity) -> HttpCredentials:
    return asyncio.run(http_security.load(settings))


def test_without_settings_the_port_is_open_and_plain() -> None:
    found = load(HttpSecurity())
    assert (found.guard, found.listening) == (None, None)


def test_what_cannot_be_used_is_refused_without_a_secret(tmp_path: Path) -> None:
    identity = Authority(tmp_path).identity("port", password="tresor")
    short, umlaut = tmp_path / "short", tmp_path / "umlaut"
    short.write_text("geheim\n")
    umlaut.write_text("geheim-geheim-geheim-ö")
    bad = (
        HttpSecurity(key_store=str(tmp_path / "missing")),
        HttpSecurity(key_store=str(short)),
        HttpSecurity(key_store=str(identity.both_file), key_password="falsch"),
        HttpSecurity(key_store=str(identity.both_file)),
        HttpSecurity(token="geheim"),
        HttpSecurity(token="geheim geheim geheim"),
        HttpSecurity(token_file=str(short)),
        HttpSecurity(token_file=str(umlaut)),
        HttpSecurity(token_file=str(tmp_path / "missing")),
    )
    for settings in bad:
        with pytest.raises(InvalidConfig) as refused:
            load(settings)
        for secret in ("geheim", "tresor", "falsch"):
            assert secret not in str(refused.value)
            assert secret not in repr(settings)
