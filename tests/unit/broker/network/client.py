"""A client of a broker without sockets: real requests as bytes over a real connection, and what it writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Final, cast

from millrace.broker.handlers import APIS
from millrace.broker.handlers.services import Services
from millrace.broker.network.connection import Connection
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.login import ListenerLogins
from millrace.broker.network.memory import MemoryBudget
from millrace.broker.network.server import Server
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey

BUFFER_BYTES: Final = 1 << 18
CLIENT_ID: Final = b"tester"


class FakeTransport:
    """Without a socket of its own, so that all bytes come here."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_reading = True
        self.is_aborted = False
        self.is_closed = False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_extra_info(self, _name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True


class Client:
    """One connection; to be made on the broker's loop."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher | None = None,
        logins: ListenerLogins | None = None,
        **server: Any,
    ) -> None:
        self.transport = FakeTransport()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: list[str] = []
        known: dict[str, Any] = {
            "dispatcher": Dispatcher(APIS) if dispatcher is None else dispatcher,
            "services": services,
            "loop": asyncio.get_running_loop(),
            "ticks": float,
            "before_requests": None,
            "start_task": self._start,
            "receive_buffer": memoryview(bytearray(BUFFER_BYTES)),
            "frame_bytes_max": BUFFER_BYTES,
            "admit": lambda _connection: True,
            "forget": lambda _connection: None,
            "is_servable": lambda _key, _version: True,
            "count_refused": self.refused.append,
            "request_memory": MemoryBudget(64 << 20),
        }
        self.server = cast("Server", SimpleNamespace(**{**known, **server}))
        self.connection = Connection(self.server, "PLAINTEXT", logins)
        self.connection.connection_made(cast("Any", self.transport))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def receive(self, data: bytes) -> None:
        """Have the connection read these bytes, as much at a time as it has room for."""
        while data:
            buffer = self.connection.get_buffer(-1)
            piece, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))

    def written(self) -> bytes:
        """What the connection has sent since the last call."""
        written = b"".join(self.transport.writes)
        self.transport.writes.clear()
        return written

    async def answers(self) -> bytes:
        """The same, when all tasks and the present turns of the loop have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.written()

    async def ask(self, key: ApiKey, version: int, request: object) -> Any:
        """The response to one request, decoded."""
        self.receive(frame(key, version, request))
        (response,) = responses(key, version, await self.answers())
        return response


def frame(key: ApiKey, version: int, request: object, correlation_id: int = 7) -> bytes:
    """A request as it is sent."""
    flexible = schema.request_header_version(key, version) >= 2
    head = struct.pack(">hhih", key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    body = head + (b"\0" if flexible else b"") + schema.request_encoder(key, version)(request)
    return struct.pack(">i", len(body)) + body


def responses(key: ApiKey, version: int, data: bytes) -> list[Any]:
    """All responses in what was written, which must be whole."""
    found = []
    header_bytes = 9 if schema.response_header_version(key, version) >= 1 else 8
    while data:
        (size,) = struct.unpack_from(">i", data)
        assert len(data) >= size + 4, "a response is cut off"
        found.append(schema.response_decoder(key, version)(data[: size + 4], header_bytes))
        data = data[size + 4 :]
    return found


def correlation_ids(data: bytes) -> list[int]:
    """Those of the responses in what was written, in their order."""
    found = []
    while data:
        size, correlation_id = struct.unpack_from(">ii", data)
        found.append(correlation_id)
        data = data[size + 4 :]
    return found
