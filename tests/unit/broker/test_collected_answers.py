"""A follower's fetch may commit many produces at once: their answers leave together, not one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.connection import SLOTS_MAX, SLOTS_RESUME, Connection, Slot
from millrace.broker.server import Server
from millrace.broker.wakeups import Wakeups

Handler = Callable[[Connection], None]
# Api 1, version 0, correlation id 7, no client id.
FRAME = struct.pack(">ihhih", 10, 1, 0, 7, -1)


class FakeTransport:
    """Without a socket of its own, so that all bytes come here."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_reading = True

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


class Peer:
    def __init__(self, server: Any) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(cast("Server", server), "PLAINTEXT")
        self.connection.connection_made(cast("Any", self.transport))

    def receive(self, frame: bytes) -> None:
        buffer = self.connection.get_buffer(-1)
        buffer[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))


def test_answers_of_another_connection_leave_in_one_piece_after_its_consumer_was_answered() -> None:
    order: list[str] = []
    slots: list[Slot] = []
    wakeups = Wakeups()
    handlers: list[Handler] = [lambda connection: slots.append(connection.reserve())]
    server = _server(wakeups, handlers)
    producer, follower = Peer(server), Peer(server)

    for _ in range(3):
        producer.receive(FRAME)
    assert producer.transport.writes == []

    def commit(connection: Connection) -> None:
        for number, slot in enumerate(slots):
            slot.complete(b"answer %d;" % number)
        wakeups.pending.append(lambda: order.append(f"consumer after {len(producer.transport.writes)}"))
        connection.send(b"to the follower")

    handlers[0] = commit
    follower.receive(FRAME)
    assert producer.transport.writes == [b"answer 0;answer 1;answer 2;"]
    assert follower.transport.writes == [b"to the follower"]
    assert order == ["consumer after 0"]
    assert not wakeups.is_collecting


def test_an_answer_that_nobody_collects_leaves_at_once() -> None:
    slots: list[Slot] = []
    server = _server(Wakeups(), [lambda connection: slots.append(connection.reserve())])
    producer = Peer(server)
    producer.receive(FRAME)
    slots[0].complete(b"answer")
    assert producer.transport.writes == [b"answer"]


def test_a_connection_with_too_many_waiting_requests_is_read_again_when_half_of_them_are_answered() -> None:
    slots: list[Slot] = []
    server = _server(Wakeups(), [lambda connection: slots.append(connection.reserve())])
    producer = Peer(server)
    for _ in range(SLOTS_MAX):
        assert producer.transport.is_reading
        producer.receive(FRAME)
    assert not producer.transport.is_reading

    for slot in slots[: SLOTS_MAX - SLOTS_RESUME - 1]:
        slot.complete(b"answer")
    assert not producer.transport.is_reading
    slots[SLOTS_MAX - SLOTS_RESUME - 1].complete(b"answer")
    assert producer.transport.is_reading


def _server(wakeups: Wakeups, handlers: list[Handler]) -> Any:
    """Hands every request to the handler that is in the list at that moment."""

    def direct(connection: Connection, *_: object) -> None:
        handlers[0](connection)

    route = SimpleNamespace(direct=True, flexible_request=False, handle=direct)
    return SimpleNamespace(
        dispatcher=SimpleNamespace(routes={1 << 16: route}),
        services=SimpleNamespace(wakeups=wakeups),
        loop=None,
        ticks=float,
        before_requests=None,
        start_task=None,
        receive_buffer=memoryview(bytearray(1024)),
        frame_bytes_max=1024,
        admit=lambda _connection: True,
    )
