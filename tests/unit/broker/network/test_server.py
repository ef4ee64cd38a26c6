"""The listener: who is let in, who is cut off and when, and how all of them go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.handlers.services import Services
from millrace.broker.network.admission import ConnectionLimits
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.server import CALM_SWEEP_INTERVAL_S, SWEEP_INTERVAL_S, Server, ServerLimits
from millrace.broker.network.throttling import Throttling
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.api_versions import ApiVersionsRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.network.client import frame
from tests.unit.broker.timers import FakeLoop

CONNECTIONS = ConnectionLimits(connections_max=100, per_ip_max=100)
LIMITS = ServerLimits(
    frame_bytes_max=1 << 20,
    request_memory_bytes=1 << 24,
    connections=CONNECTIONS,
    idle_timeout_s=60.0,
    frame_timeout_s=10.0,
)


def server_with(
    limits: ServerLimits = LIMITS,
    ticks: Callable[[], float] = float,
    services: Services | None = None,
) -> Server:
    """Only connections look at most of the services."""
    known: Any = services or SimpleNamespace(throttling=Throttling())
    return Server(dispatcher=Dispatcher(APIS), services=known, limits=limits, ticks=ticks)


# Connections that only the server sees, and time that passes when a test says so.


@dataclass(eq=False)
class FakeConnection:
    """What the server looks at."""

    host: str = "10.0.0.1"
    client_id: str | None = None
    fetched_at: float | None = None
    was_active: bool = False
    is_waiting: bool = False
    has_unfinished_frame: bool = False
    idle_since: float = 0.0
    frames_count: int = 0
    frame_since: float | None = None
    frame_seen: int = 0
    congested_since: float | None = None
    congested_sent: int = 0
    aborted: str | None = None
    server: Server | None = None
    has_buffer: bool = True
    login: Any = None
    holds: int = 0
    loop: Any = None
    out: Any = field(default_factory=lambda: SimpleNamespace(is_congested=False, sent_bytes=0))

    @property
    def endpoint(self) -> Any:
        return SimpleNamespace(peer_host=self.host, listener="PLAINTEXT")

    def hold(self) -> None:
        self.holds += 1

    def let_go(self) -> None:
        self.holds -= 1

    def stay_paused(self) -> None:
        """Whether it is held is all that is looked at."""

    def release_idle_buffer(self) -> None:
        self.has_buffer = False

    def abort(self, reason: str) -> None:
        self.aborted = reason
        assert self.server is not None
        self.server.forget(cast("Any", self))


class Swept:
    """A server that sweeps its connections on a fake loop."""

    def __init__(self, *connections: FakeConnection, limits: ServerLimits = LIMITS) -> None:
        self.server = server_with(limits)
        self.loop = FakeLoop()
        self.server.loop = cast("Any", self.loop)
        self.connections = connections
        for connection in connections:
            connection.server = self.server
            assert self.server.admit(cast("Any", connection))
        self.server._sweep_connections()

    def advance(self, seconds: float) -> list[str | None]:
        """Why each connection was cut off, after so long; None for those that were not."""
        self.loop.advance(seconds)
        return [connection.aborted for connection in self.connections]


def test_a_silent_connection_is_cut_off_and_one_that_speaks_or_waits_is_not() -> None:
    silent, active, waiting = FakeConnection(), FakeConnection(), FakeConnection(is_waiting=True)
    swept = Swept(silent, active, waiting)
    for _ in range(13):
        active.was_active = True
        swept.advance(CALM_SWEEP_INTERVAL_S)
    assert [connection.aborted for connection in swept.connections] == ["idle for 60 s", None, None]
    assert swept.server.refused == {"idle": 1}


def test_the_buffer_of_a_quiet_connection_is_given_back() -> None:
    quiet, waiting = FakeConnection(), FakeConnection(is_waiting=True)
    Swept(quiet, waiting)
    assert (quiet.has_buffer, waiting.has_buffer) == (False, True)


def test_a_frame_that_does_not_become_complete_ends_its_connection() -> None:
    slow, steady = FakeConnection(has_unfinished_frame=True), FakeConnection(has_unfinished_frame=True)
    swept = Swept(slow, steady)
    for _ in range(4):
        # Each time the sweep looks, it is another frame that has begun.
        steady.frames_count += 1
        assert swept.advance(2.0) == [None, None]
        slow.was_active = steady.was_active = True
    steady.frames_count += 1
    assert swept.advance(4.0) == ["a request was not complete after 10 s", None]
    assert swept.server.refused == {"frame_deadline": 1}


def test_who_does_not_log_in_is_cut_off_and_who_has_may_stay() -> None:
    slow, done = FakeConnection(), FakeConnection()
    slow.login = SimpleNamespace(is_complete=False, is_overdue=lambda now, limit_s: now > limit_s)
    done.login = SimpleNamespace(is_complete=True, is_overdue=lambda _now, _limit_s: False)
    swept = Swept(slow, done)
    for _ in range(4):
        slow.was_active = done.was_active = True
        assert swept.advance(2.0) == [None, None]
    assert swept.advance(4.0) == ["not logged in after 10 s", None]
    assert swept.server.refused == {"login_deadline": 1}


def test_a_client_that_does_not_read_its_answers_is_cut_off_and_a_slow_one_is_not() -> None:
    deaf, slow = FakeConnection(is_waiting=True), FakeConnection(is_waiting=True)
    deaf.out.is_congested = slow.out.is_congested = True
    swept = Swept(deaf, slow)
    for _ in range(12):
        slow.out.sent_bytes += 1
        swept.advance(1.0)
    assert [connection.aborted for connection in swept.connections] == [
        "responses were not read for 10 s",
        None,
    ]
    assert swept.server.refused == {"output_deadline": 1}


@pytest.mark.parametrize(
    "limits, is_busy, interval_s",
    [
        (LIMITS, True, SWEEP_INTERVAL_S),
        (replace(LIMITS, frame_timeout_s=60.0), False, CALM_SWEEP_INTERVAL_S),
        (LIMITS, False, 2.0),
        (replace(LIMITS, idle_timeout_s=0.5), False, SWEEP_INTERVAL_S),
    ],
)
def test_the_server_looks_less_often_while_all_is_calm(
    limits: ServerLimits, is_busy: bool, interval_s: float
) -> None:
    swept = Swept(FakeConnection(has_unfinished_frame=is_busy), limits=limits)
    (timer,) = swept.loop.timers
    assert timer.due == interval_s


def test_new_limits_hold_from_then_on() -> None:
    swept = Swept(FakeConnection())
    swept.server.reconfigure(
        replace(LIMITS, idle_timeout_s=20.0, connections=replace(CONNECTIONS, connections_max=1))
    )
    late = FakeConnection(is_waiting=True)
    late.loop = swept.loop
    assert swept.server.admit(cast("Any", late))
    assert late.holds == 1, "it has to wait"
    assert swept.advance(30.0) == ["idle for 20 s"]
    assert late.holds == 0, "there is room"


def test_one_address_may_hold_its_share_only() -> None:
    limits = replace(LIMITS, connections=replace(CONNECTIONS, per_ip_max=1, per_ip_overrides={"10.0.0.9": 2}))
    server = server_with(limits)
    server.loop = cast("Any", FakeLoop())
    first = FakeConnection()
    hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.0.9", "10.0.0.9"]
    assert server.admit(cast("Any", first))
    admitted = [server.admit(cast("Any", FakeConnection(host))) for host in hosts]
    assert admitted == [False, True, True, True, False]
    assert server.refused == {"connection_limit": 2}
    assert server.accepted_count == server.connection_count == 4
    for _ in range(2):
        server.forget(cast("Any", first))
    assert server.connection_count == 3
    assert server.admit(cast("Any", FakeConnection())), "its place is free again"


def test_the_youngest_fetch_of_a_client_counts() -> None:
    server = server_with(ticks=lambda: 100.0)
    server.loop = cast("Any", FakeLoop())
    for client_id, fetched_at in (("a", 40.0), ("a", 90.0), ("b", None), (None, 99.0)):
        server.admit(cast("Any", FakeConnection(client_id=client_id, fetched_at=fetched_at)))
    assert server.fetch_ages_s() == {("a", "10.0.0.1"): 10.0, ("", "10.0.0.1"): 1.0}


# Requests without a route.


def test_an_unknown_version_of_api_versions_is_answered_and_of_others_not() -> None:
    server = server_with()
    assert server.is_servable(ApiKey.API_VERSIONS, 99)
    assert server.is_servable(ApiKey.FETCH, 17)
    assert not server.is_servable(ApiKey.FETCH, 99)
    assert server.answer_unserved(ApiKey.FETCH, 99, 7) is None
    answer = server.answer_unserved(ApiKey.API_VERSIONS, 99, 7)
    assert answer is not None
    decoded = schema.response_decoder(ApiKey.API_VERSIONS, 0)(answer[8:])
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {api.api_key for api in decoded.api_keys} >= {int(ApiKey.FETCH), int(ApiKey.PRODUCE)}


# Real sockets.


async def connect(server: Server, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that the server has seen."""
    seen = server.accepted_count + sum(server.refused.values())
    streams = await asyncio.open_connection("127.0.0.1", port)
    while server.accepted_count + sum(server.refused.values()) == seen:
        await asyncio.sleep(0)
    return streams


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def run(work: Awaitable[None]) -> None:
    async def finish() -> None:
        async with asyncio.timeout(10):
            await work

    asyncio.run(finish())


@pytest.fixture
def services(tmp_path: Path) -> Services:
    """What connections need of a broker, which does not run."""
    return Broker(tmp_path).services


def test_a_connection_over_the_limit_is_served_when_another_has_gone(services: Services) -> None:
    async def listen() -> None:
        one = replace(CONNECTIONS, connections_max=1)
        server = server_with(replace(LIMITS, connections=one), services=services)
        _, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        _, first = await connect(server, port)
        reader, second = await connect(server, port)
        second.write(frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))
        await second.drain()
        answer = asyncio.get_running_loop().create_task(reader.readexactly(4))
        await asyncio.sleep(0.05)
        assert (server.connection_count, server.admission.waiting_count) == (2, 1)
        assert not answer.done(), "nothing is read from it"
        first.close()
        await reader.readexactly(int.from_bytes(await answer, "big"))
        assert server.admission.waiting_count == 0
        assert server.admission.throttled == {"waited": 1}
        second.close()
        await server.stop(0.0)

    run(listen())


def test_a_server_that_stops_closes_those_who_wait(services: Services) -> None:
    async def listen() -> None:
        one = replace(CONNECTIONS, connections_max=1)
        server = server_with(replace(LIMITS, connections=one), services=services)
        _, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        streams = [await connect(server, port) for _ in range(3)]
        await server.stop(0.0)
        for reader, writer in streams:
            assert await _is_closed(reader)
            writer.close()
        assert server.connection_count == server.admission.waiting_count == 0

    run(listen())


def test_stopping_lets_requests_finish_and_then_closes_all(services: Services) -> None:
    async def listen() -> None:
        server = server_with(services=services)
        _, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await connect(server, port)
        done: list[str] = []
        may_end = asyncio.Event()

        async def request() -> None:
            await may_end.wait()
            done.append("finished")

        server.start_task(request())
        asyncio.get_running_loop().call_soon(may_end.set)
        await server.stop(5.0)
        assert done == ["finished"]
        assert await reader.read() == b""
        assert server.connection_count == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    run(listen())


def test_a_request_that_does_not_finish_in_time_is_cancelled() -> None:
    async def listen() -> None:
        server = server_with()
        await server.listen("PLAINTEXT", "127.0.0.1", 0)
        cancelled: list[bool] = []

        async def request() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        server.start_task(request())
        await server.stop(0.0)
        assert cancelled == [True]

    run(listen())
