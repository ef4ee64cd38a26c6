"""The HTTP port: a fixed table of paths, collections with one name below each, and nothing else (S16)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from millrace.broker.watching.http import HttpResponse, HttpServer


async def _exchange(target: str, method: str = "GET") -> tuple[int, bytes]:
    async def ping() -> HttpResponse:
        return HttpResponse(200, b"pong")

    async def things(name: str | None, query: Mapping[str, str]) -> HttpResponse:
        return HttpResponse(200, repr((name, dict(query))).encode())

    server = HttpServer({"/ping": ping}, {"/v1/things": things})
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    server.stop()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def exchange(target: str, method: str = "GET") -> tuple[int, bytes]:
    return asyncio.run(_exchange(target, method))


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
