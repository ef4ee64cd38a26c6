"""The HTTP port: a fixed table of paths, collections with one name below each, and nothing else (S16)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from millrace.broker.watching.http import Guarded, HttpResponse, HttpServer
from millrace.broker.watching.http_guard import BearerGuard

TOKEN = "a-token-of-the-port"


async def _exchange(target: str, method: str, headers: str, *, is_guarded: bool) -> tuple[int, bytes, bytes]:
    async def ping() -> HttpResponse:
        return HttpResponse(200, b"pong")

    async def things(name: str | None, query: Mapping[str, str]) -> HttpResponse:
        return HttpResponse(200, repr((name, dict(query))).encode())

    async def brief() -> HttpResponse:
        return HttpResponse(200, b"brief")

    paths = {"/ping": ping, "/open": ping}
    guarded = Guarded(BearerGuard(TOKEN), {"/open": brief}) if is_guarded else None
    server = HttpServer(paths, {"/v1/things": things}, guarded=guarded)
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: test\r\n{headers}\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    server.stop()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


def exchange(target: str, method: str = "GET") -> tuple[int, bytes]:
    status, _, body = asyncio.run(_exchange(target, method, "", is_guarded=False))
    return status, body


def guarded_exchange(target: str, headers: str = "", method: str = "GET") -> tuple[int, bytes, bytes]:
    return asyncio.run(_exchange(target, method, headers, is_guarded=True))


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/ping", b"pong"),
        ("/ping?x=1", b"pong"),
        ("/v1/things", b"(None, {})"),
        ("/v1/things?after=a%20b", b"(None, {'after': 'a b'})"),
        ("/v1/things/one", b"('one', {})"),
        ("/v1/things/a%2Fb%3F", b"('a/b?', {})"),
        ("/v1/things/..", b"('..', {})"),
    ],
)
def test_paths_that_are_served(target: str, expected: bytes) -> None:
    assert exchange(target) == (200, expected)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/pong",
        "/ping/",
        "/ping/x",
        "//ping",
        "/PING",
        "/ping;x",
        "/%70ing",
        "/v1",
        "/v1/things/",
        "/v1/things/a/b",
        "/v1//things/a",
        "/v1/things%2Fa",
    ],
)
def test_everything_else_is_not_found(target: str) -> None:
    assert exchange(target)[0] == 404


def test_only_reading_is_served() -> None:
    assert exchange("/ping", "POST")[0] == 405


# A port with a token.


@pytest.mark.parametrize("headers", [
    "",
    "Authorization:\r\n",
    "Authorization: Bearer\r\n",
    "Authorization: Bearer \r\n",
    f"Authorization: Basic {TOKEN}\r\n",
    f"Authorization: {TOKEN}\r\n",
    f"Authorization: Bearer {TOKEN[:-1]}\r\n",
    f"Authorization: Bearer {TOKEN}x\r\n",
    f"Authorization: Bearer {TOKEN} x\r\n",
    f"Authorization: Bearer {TOKEN.upper()}\r\n",
    f"Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n",
    f"Authorization: Bearer wrong\r\nAuthorization: Bearer {TOKEN}\r\n",
    f"X-Authorization: Bearer {TOKEN}\r\n",
])  # fmt: skip
@pytest.mark.parametrize("target", ["/ping", "/v1/things/a"])
def test_without_the_token_nothing_is_shown(target: str, headers: str) -> None:
    """S15."""
    status, head, body = guarded_exchange(target, headers)
    assert status == 401
    assert b'www-authenticate: bearer realm="millrace"' in head.lower()
    assert b"pong" not in body
    assert TOKEN.encode() not in body


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_with_the_token_everything_is_as_without_a_guard(scheme: str) -> None:
    shown = f"Authorization: {scheme} {TOKEN}\r\n"
    assert guarded_exchange("/ping", shown)[0::2] == (200, b"pong")
    assert guarded_exchange("/open", shown)[0::2] == (200, b"pong")
    assert guarded_exchange("/v1/things/a%2Fb", shown)[0::2] == (200, b"('a/b', {})")
    assert guarded_exchange("/pong", shown)[0] == 404
    assert guarded_exchange("/ping", shown, "POST")[0] == 405


@pytest.mark.parametrize("target", [
    "/pong", "//open", "/OPEN", "/open;x", "/open/", "/%6fpen", "/open/../ping", "/./open",
    "/open%2f..%2fping", "/ping;/open", "/ping%3f/open", "/open#", "*", "http://test/open",
])  # fmt: skip
def test_odd_paths_are_decided_as_the_router_decides(target: str) -> None:
    """S16: only the very path that the router knows is open; whether another one exists is not told."""
    assert guarded_exchange(target)[0] == 401


def test_open_paths_say_less_to_those_without_the_token() -> None:
    assert guarded_exchange("/open")[0::2] == (200, b"brief")
    assert guarded_exchange("/open?x=/ping")[0::2] == (200, b"brief")
    assert guarded_exchange("/open", method="POST")[0] == 405
    assert guarded_exchange("/ping", method="POST")[0] == 401
