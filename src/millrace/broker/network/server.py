"""The listener: admits connections within the limits, sweeps out those past their deadlines, ends them at
shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.broker.network.admission import Admission, ConnectionLimits
from millrace.broker.network.connection import Connection
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.login import ListenerLogins
from millrace.broker.network.memory import MemoryBudget
from millrace.broker.network.tls_door import TlsDoor
from millrace.broker.network.tls_listener import TlsListener
from millrace.core.background import Failures, Tasks
from millrace.wire.framing import response_frame

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services

log = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
SWEEP_INTERVAL_S: Final = 1.0
CALM_SWEEP_INTERVAL_S: Final = 5.0
"""While no connection has anything unfinished: only idle ones are looked for then."""
BACKLOG: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How much one client, and all of them together, may ask of the broker."""

    frame_bytes_max: int
    request_memory_bytes: int
    connections: ConnectionLimits
    idle_timeout_s: float
    frame_timeout_s: float
    """For a request that has begun to arrive, and for a response that the client does not take."""


class Server:
    """All listeners and their connections."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        services: Services,
        limits: ServerLimits,
        ticks: Callable[[], float],
        failures: Failures | None = None,
        before_requests: Callable[[], None] | None = None,
    ) -> None:
        """`before_requests` is called when something was received, before it is handled: a broker of a
        cluster looks whether its lease still counts."""
        self.dispatcher = dispatcher
        self.services = services
        self.ticks = ticks
        self.before_requests: Final = before_requests
        self.frame_bytes_max = limits.frame_bytes_max
        self.request_memory = MemoryBudget(limits.request_memory_bytes)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.limits = limits
        self.refused: dict[str, int] = {}
        self.accepted_count = 0
        self.admission = Admission(
            limits.connections,
            ticks=ticks,
            rate_of_address=services.throttling.connection_rate,
            count_refused=self.count_refused,
        )
        self._connections: dict[Connection, None] = {}
        self._tasks = Tasks(failures)
        self.start_task: Final = self._tasks.starter("request")
        """Runs a handler's coroutine until it ends or the server stops."""
        self._handshakes = Tasks(failures)
        self.start_handshake: Final = self._handshakes.starter("tls-handshake")
        self.logins: dict[str, ListenerLogins] = {}
        """Of listeners that ask for them, by name."""
        self.tls: dict[str, TlsListener] = {}
        self._listening: list[asyncio.Server] = []
        self._doors: list[TlsDoor] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._is_stopping = False

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def fetch_ages_s(self) -> dict[tuple[str, str], float]:
        """For each client id and host, how long ago one of its connections asked for records."""
        now = self.ticks()
        ages: dict[tuple[str, str], float] = {}
        for connection in self._connections:
            if connection.fetched_at is not None:
                key = (connection.client_id or "", connection.endpoint.peer_host)
                ages[key] = min(ages.get(key, float("inf")), now - connection.fetched_at)
        return ages

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        logins: ListenerLogins | None = None,
        tls: TlsListener | None = None,
    ) -> tuple[str, int]:
        """Open one listener; returns the address really bound, since port 0 asks for any free one."""
        self.loop = asyncio.get_running_loop()
        if logins is not None:
            self.logins[name] = logins
        if tls is not None:
            self.tls[name] = tls

        if self._sweep is None:
            self._sweep = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep_connections)
        if tls is not None:
            door = TlsDoor(self, name, tls, logins)
            self._doors.append(door)
            return door.open(host, port, BACKLOG)
        server = await self.loop.create_server(
            lambda: Connection(self, name, logins), host or None, port, backlog=BACKLOG, reuse_address=True
        )
        self._listening.append(server)
        bound = server.sockets[0].getsockname()
        return bound[0], bound[1]

    def reconfigure(self, limits: ServerLimits) -> None:
        """Take new limits for what comes from now on."""
        self.limits = limits
        self.admission.reconfigure(limits.connections)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, let requests under way finish for up to `grace_s`, then close every connection."""
        self._is_stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._listening:
            server.close()
        self._handshakes.cancel()
        for door in self._doors:
            door.close()
        await self._tasks.wait(grace_s)
        for connection in list(self._connections):
            connection.close()
        await self._tasks.end()
        # Connections report their end in the next rounds of the loop. A peer that reads nothing is cut off.
        for _ in range(100):
            if not self._connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort("the broker stops")

    # What connections ask for.

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may come in, now or later; if so it is known from now on."""
        if self._is_stopping or not self.admission.enter(connection):
            return False
        self._connections[connection] = None
        self.accepted_count += 1
        connection.idle_since = self.loop.time()
        return True

    def forget(self, connection: Connection) -> None:
        """The connection has ended."""
        if self._connections.pop(connection, self) is None:
            self.admission.leave(connection)

    def is_servable(self, key: int, version: int) -> bool:
        """Whether a request is worth waiting for; unknown versions of some APIs get an answer too."""
        return self.dispatcher.serves(key, version) or self.dispatcher.answers_any_version(key)

    def answer_unserved(self, key: int, version: int, correlation_id: int) -> bytes | None:
        """The answer to an (API, version) without a route; None means that the connection must end."""
        body = self.dispatcher.answer_unserved(key)
        return None if body is None else response_frame(correlation_id, body, flexible=False)

    def count_refused(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _sweep_connections(self) -> None:
        """Cut off clients that were silent too long, send a frame too slowly or do not read their answers.
        The server looks less often while all is calm, so that a broker that does nothing stays asleep."""
        now = self.loop.time()
        is_calm = True
        for connection in list(self._connections):
            self._check_deadlines(connection, now)
            if (
                connection.frame_since is not None
                or connection.out.is_congested
                or (connection.login is not None and not connection.login.is_complete)
            ):
                is_calm = False
        interval_s = self._calm_interval_s() if is_calm else SWEEP_INTERVAL_S
        self._sweep = self.loop.call_later(interval_s, self._sweep_connections)

    def _calm_interval_s(self) -> float:
        """Short beside the time that a connection has, which counts from the sweep that first sees it."""
        shortest_s = min(self.limits.frame_timeout_s, self.limits.idle_timeout_s)
        return min(max(shortest_s / 5, SWEEP_INTERVAL_S), CALM_SWEEP_INTERVAL_S)

    def _check_deadlines(self, connection: Connection, now: float) -> None:
        login = connection.login
        if login is not None and login.is_overdue(now, self.limits.frame_timeout_s):
            self.count_refused("login_deadline")
            connection.abort(f"not logged in after {self.limits.frame_timeout_s:g} s")
            return
        if connection.has_unfinished_frame:
            if connection.frame_since is None or connection.frame_seen != connection.frames_count:
                connection.frame_since = now
                connection.frame_seen = connection.frames_count
            elif now - connection.frame_since > self.limits.frame_timeout_s:
                self.count_refused("frame_deadline")
                connection.abort(f"a request was not complete after {self.limits.frame_timeout_s:g} s")
                return
        else:
            connection.frame_since = None
        if connection.out.is_congested:
            sent = connection.out.sent_bytes
            if connection.congested_since is None or connection.congested_sent != sent:
                connection.congested_since = now
                connection.congested_sent = sent
            elif now - connection.congested_since > self.limits.frame_timeout_s:
                self.count_refused("output_deadline")
                connection.abort(f"responses were not read for {self.limits.frame_timeout_s:g} s")
                return
        if connection.was_active or connection.is_waiting:
            connection.was_active = False
            connection.idle_since = now
        else:
            connection.release_idle_buffer()
            if now - connection.idle_since > self.limits.idle_timeout_s:
                self.count_refused("idle")
                connection.abort(f"idle for {self.limits.idle_timeout_s:g} s")
