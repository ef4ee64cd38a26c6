"""The small HTTP port for machines that watch the broker: metrics, health and readiness. It serves GET alone
and keeps no state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

import h11

from millrace.broker.watching.http_guard import BearerGuard
from millrace.core.background import Failures, Tasks

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 10.0
CONNECTIONS_MAX: Final = 64
READ_BYTES: Final = 16 * 1024
HEADERS_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a handler answers."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


_NOT_ADMITTED: Final = HttpResponse(
    401, b'{"error":"a bearer token is needed"}\n', headers=(("WWW-Authenticate", 'Bearer realm="millrace"'),)
)

HttpHandler = Callable[[], Awaitable[HttpResponse]]
CollectionHandler = Callable[[str | None, Mapping[str, str]], Awaitable[HttpResponse]]
"""Takes the name of the one thing that is asked for, or None for all of them, and the query."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A port that is not for everybody."""

    guard: BearerGuard
    public: Mapping[str, HttpHandler]
    """What those are answered who show no token, by path. All else is 401 to them, whether it is there or
    not: the router's own table decides, so no other spelling of a path is decided otherwise."""


class HttpServer:
    """Serves a fixed table of paths, and of collections with one name below each; all else is 404."""

    def __init__(
        self,
        paths: Mapping[str, HttpHandler],
        collections: Mapping[str, CollectionHandler] | None = None,
        *,
        guarded: Guarded | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._paths = paths
        self._guarded = guarded
        self._collections = collections or {}
        self._server: asyncio.Server | None = None
        self._requests = Tasks(failures)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        limits: dict[str, Any] = {}
        if tls is not None:
            limits = {"ssl_handshake_timeout": REQUEST_TIMEOUT_S, "ssl_shutdown_timeout": REQUEST_TIMEOUT_S}
        self._server = await asyncio.start_server(  # noqa: TID251 - a plain callback starts no task
            self._accept, host or None, port, limit=READ_BYTES, ssl=tls, **limits
        )
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._requests.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._requests) >= CONNECTIONS_MAX:
            writer.close()
            return
        _ = self._requests.start("http-request", self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._converse(reader, writer)
        except (TimeoutError, ConnectionError, h11.RemoteProtocolError):
            # A slow, broken or impolite client costs only its own connection.
            pass
        except Exception:
            log.exception("an HTTP request failed")
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS_BYTES_MAX)
        request = await _next_request(connection, reader)
        if request is None:
            return
        response = await self._respond(request)
        head = h11.Response(
            status_code=response.status,
            headers=[
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Connection", "close"),
                *response.headers,
            ],
        )
        writer.write(connection.send(head) or b"")
        if request.method != b"HEAD":
            writer.write(connection.send(h11.Data(data=response.body)) or b"")
        await writer.drain()

    async def _respond(self, request: h11.Request) -> HttpResponse:
        path, _, query = request.target.decode("latin-1").partition("?")
        paths = self._paths
        if self._guarded is not None and not self._guarded.guard.admits(request.headers):
            if path not in self._guarded.public:
                return _NOT_ADMITTED
            paths = self._guarded.public
        if request.method not in (b"GET", b"HEAD"):
            return HttpResponse(405, b'{"error":"only GET is served here"}\n')
        handler = paths.get(path)
        if handler is not None:
            return await handler()
        # A name may hold any character, so the path is taken apart before it is decoded, and never after.
        collection, _, name = (path, "", None) if path in self._collections else path.rpartition("/")
        serve = self._collections.get(collection)
        if serve is None or name == "":
            known = ", ".join([*self._paths, *self._collections])
            return HttpResponse(404, f'{{"error":"no such path; there are {known}"}}\n'.encode())
        return await serve(None if name is None else unquote(name), dict(parse_qsl(query)))


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None
