"""TCP proxies between processes. Each connection belongs to a link that can be cut, one way or both.

What is sent over a cut link waits, as in TCP, and arrives when the link is whole again. Where a proxy serves
all brokers, a connection's source is the client id of its first request. A proxy listens only while its
target does: a process that is gone refuses connections, and brokers rely on that.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Final

from tests.harness.etcd import lasting_port

_PIECE_BYTES: Final = 64 * 1024
_TRY_AGAIN_S: Final = 0.02
_START_S: Final = 60.0
# Length, API key, version, correlation id, length of the client id.
_HEAD: Final = struct.Struct(">ihhih")
_RESET: Final = struct.pack("ii", 1, 0)

Address = tuple[str, int]


class Proxies:
    """All proxies of a test, in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._links = _Links()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, upstream: Address, *, source: str | None, target: str) -> int:
        """A proxy in front of `upstream`; its port. Without a source, connections tell theirs."""
        port = lasting_port()
        proxy = _Proxy(self._links, port, upstream, source, target)

        async def start() -> None:
            self._tasks.append(self._loop.create_task(proxy.run()))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(_START_S)
        return port

    def cut(self, source: str, target: str) -> None:
        self._loop.call_soon_threadsafe(self._links.cut, source, target)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._links.heal)

    def close(self) -> None:
        async def stop() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()


class _Links:
    """Which links are whole; whoever has something to send waits here."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, str], asyncio.Event] = {}

    def cut(self, source: str, target: str) -> None:
        self._cut.setdefault((source, target), asyncio.Event())

    def heal(self) -> None:
        cuts, self._cut = self._cut, {}
        for healed in cuts.values():
            healed.set()

    async def until_whole(self, source: str, target: str) -> None:
        while (healed := self._cut.get((source, target))) is not None:
            await healed.wait()


class _Proxy:
    def __init__(self, links: _Links, port: int, upstream: Address, source: str | None, target: str) -> None:
        self._links = links
        self._port = port
        self._upstream = upstream
        self._source = source
        self._target = target
        self._is_gone = asyncio.Event()

    async def run(self) -> None:
        while True:
            while not await self._is_upstream_there():
                await asyncio.sleep(_TRY_AGAIN_S)
            self._is_gone.clear()
            server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            try:
                await self._is_gone.wait()
            finally:
                server.close()

    async def _is_upstream_there(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            return False
        writer.transport.abort()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            beyond_reader, beyond_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            self._is_gone.set()
            _reset(writer)
            return
        try:
            first = b""
            source = self._source
            if source is None:
                source, first = await _name_of(reader)
            forth = self._pump(reader, beyond_writer, source, self._target, first)
            back = self._pump(beyond_reader, writer, self._target, source)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(forth)
                pumps.create_task(back)
        except* (OSError, asyncio.IncompleteReadError, _Ended):
            pass
        finally:
            _reset(writer)
            _reset(beyond_writer)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: str,
        target: str,
        first: bytes = b"",
    ) -> None:
        piece = first or await reader.read(_PIECE_BYTES)
        while piece:
            await self._links.until_whole(source, target)
            writer.write(piece)
            await writer.drain()
            piece = await reader.read(_PIECE_BYTES)
        await self._links.until_whole(source, target)
        # A connection that one side has ended is over for both: nobody here sends and then only listens.
        raise _Ended


class _Ended(Exception):
    """The connection was closed by one of its sides."""


async def _name_of(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Who sends, by the client id of the first request, and what was read to know it."""
    head = await reader.readexactly(_HEAD.size)
    size = max(_HEAD.unpack(head)[4], 0)
    client_id = await reader.readexactly(size)
    return client_id.decode(), head + client_id


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        ending: socket.socket = writer.get_extra_info("socket")
        ending.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
