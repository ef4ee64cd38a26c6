"""The simulated loop, processes and network behave as their real counterparts: order, time, pauses, crashes,
back pressure, lost links."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.core.override import override
from millrace.sim.loop import SimLoop, Stuck
from millrace.sim.network import WINDOW_BYTES, Network
from millrace.sim.process import Process, State

PORT = 9000


class World:
    def __init__(self, seed: int = 1) -> None:
        self.network = Network(random.Random(seed))
        self.loop = SimLoop(self.network)
        self.server = Process("server", "10.0.0.1", random.Random(seed))
        self.client = Process("client", "10.0.0.2", random.Random(seed))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.loop.run(work)
        finally:
            self.server.die()
            self.client.die()
            self.loop.close()


class Echo(asyncio.Protocol):
    """Sends back what it gets, or keeps it."""

    def __init__(self, *, echoes: bool = True) -> None:
        self.echoes = echoes
        self.received = bytearray()
        self.ended: list[Exception | None] = []
        self.writing_paused = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.echoes:
            self.transport.write(data)

    @override
    def pause_writing(self) -> None:
        self.writing_paused += 1

    @override
    def resume_writing(self) -> None:
        self.writing_paused -= 1

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)


async def connected(world: World, *, echoes: bool = True) -> tuple[Echo, Echo]:
    """The client's and the server's end of a fresh connection."""
    accepted: list[Echo] = []

    def accept() -> Echo:
        accepted.append(Echo(echoes=echoes))
        return accepted[-1]

    async def listen() -> None:
        await world.loop.create_server(accept, "10.0.0.1", PORT)

    async def connect() -> Echo:
        _, protocol = await world.loop.create_connection(lambda: Echo(echoes=False), "10.0.0.1", PORT)
        assert isinstance(protocol, Echo)
        return protocol

    await world.loop.start_in(world.server, listen())
    client = await world.loop.start_in(world.client, connect())
    await asyncio.sleep(0.1)
    return client, accepted[0]


def test_time_jumps_and_keeps_its_order() -> None:
    world = World()
    order: list[str] = []

    async def work() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(3_600, order.append, "an hour")
        loop.call_later(1, order.append, "a second")
        loop.call_later(1, order.append, "the same second, asked for later")
        loop.call_soon(order.append, "now")
        await asyncio.sleep(7_200)
        return loop.time()

    assert world.run(work()) == 7_200
    assert order == ["now", "a second", "the same second, asked for later", "an hour"]


def test_a_wait_without_end_is_reported() -> None:
    world = World()
    with pytest.raises(Stuck):
        world.run(_wait_for_ever())


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_paused_process_stands_still_and_catches_up() -> None:
    world = World()
    seen: list[int] = []

    async def count() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(round(world.loop.time()))

    async def work() -> None:
        _ = world.loop.start_in(world.client, count())
        await asyncio.sleep(2.5)
        world.client.state = State.PAUSED
        await asyncio.sleep(10)
        assert seen == [1, 2]
        world.loop.resume(world.client)
        await asyncio.sleep(2)

    world.run(work())
    assert seen[:3] == [1, 2, 12], seen
    assert len(seen) >= 4, seen


def test_a_dead_process_does_nothing_more() -> None:
    world = World()
    done: list[str] = []

    async def work_on() -> None:
        try:
            await asyncio.sleep(5)
            done.append("work")
        finally:
            done.append("finally")

    async def work() -> None:
        _ = world.loop.start_in(world.client, work_on())
        await asyncio.sleep(1)
        world.client.die()
        done.clear()
        await asyncio.sleep(10)

    world.run(work())
    assert done == []


def test_work_in_the_executor_takes_time_and_dies_with_its_process() -> None:
    world = World()
    done: list[str] = []

    async def use_disk(name: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, done.append, name)

    async def work() -> None:
        world.client.disk_speed.seconds_min = world.client.disk_speed.seconds_max = 1.0
        first = world.loop.start_in(world.client, use_disk("first"))
        await asyncio.sleep(0.9)
        assert done == []
        await first
        assert world.loop.time() >= 1.0
        _ = world.loop.start_in(world.client, use_disk("second"))
        await asyncio.sleep(0.5)
        world.client.die()
        await asyncio.sleep(5)

    world.run(work())
    assert done == ["first"]


def test_bytes_arrive_in_order_and_in_other_pieces() -> None:
    world = World()
    data = random.Random(3).randbytes(100_000)

    async def work() -> tuple[bytes, bytes]:
        client, server = await connected(world)
        for start in range(0, len(data), 999):
            client.transport.write(data[start : start + 999])
        await asyncio.sleep(10)
        return bytes(server.received), bytes(client.received)

    assert world.run(work()) == (data, data)


def test_a_reader_that_stops_holds_the_writer_up() -> None:
    world = World()

    async def work() -> None:
        client, server = await connected(world, echoes=False)
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=0)
        client.transport.write(bytes(WINDOW_BYTES))
        assert client.writing_paused == 0
        client.transport.write(b"more")
        assert client.writing_paused == 1
        await asyncio.sleep(5)
        assert not server.received
        server.transport.resume_reading()
        await asyncio.sleep(5)
        assert len(server.received) == WINDOW_BYTES + 4
        assert client.writing_paused == 0

    world.run(work())


def test_a_killed_process_resets_its_connections() -> None:
    world = World()

    async def work() -> Exception | None:
        client, server = await connected(world)
        server.transport.vanish(with_reset=True)  # type: ignore[attr-defined]
        world.server.die()
        await asyncio.sleep(1)
        return client.ended[0]

    assert isinstance(world.run(work()), ConnectionResetError)


def test_a_cut_link_delays_and_a_long_cut_breaks() -> None:
    world = World()

    async def work() -> None:
        client, server = await connected(world)
        world.network.cut("10.0.0.2", "10.0.0.1", both_ways=False)
        client.transport.write(b"late")
        await asyncio.sleep(2)
        assert not server.received
        server.transport.write(b"the other way is open")
        await asyncio.sleep(1)
        assert client.received == b"the other way is open"
        world.network.heal("10.0.0.2", "10.0.0.1")
        await asyncio.sleep(2)
        assert server.received == b"late"
        world.network.cut("10.0.0.2", "10.0.0.1")
        client.transport.write(b"never")
        await asyncio.sleep(60)
        assert isinstance(client.ended[0], TimeoutError)
        # The other end has sent nothing, and so knows nothing.
        assert server.ended == []
        assert server.received == b"late"

    world.run(work())


def test_nobody_listens() -> None:
    world = World()

    async def connect() -> None:
        await world.loop.create_connection(Echo, "10.0.0.1", PORT)

    async def work() -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.loop.start_in(world.client, connect())
        world.network.take_down("10.0.0.1")
        with pytest.raises(TimeoutError):
            await world.loop.start_in(world.client, connect())

    world.run(work())
