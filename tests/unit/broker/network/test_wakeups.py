"""A follower's fetch may commit many produces at once: their answers leave together, not one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from millrace.broker.network.connection import Connection
from millrace.broker.network.memory import HELD_PART, HELD_SHARE_BYTES, MemoryBudget
from millrace.broker.network.recognition import Recognition
from millrace.broker.network.requests import SLOTS_MAX, SLOTS_RESUME, Request, Slot
from millrace.broker.network.server import Server
from millrace.broker.network.throttling import Throttling
from millrace.broker.network.wakeups import Wakeups
from millrace.core.world import World
from millrace.security.acls.decisions import Access
from tests.unit.broker.network.client import FakeTransport

Handler = Callable[[Connection], None]
# Api 1, version 0, correlation id 7, no client id.
FRAME = struct.pack(">ihhih", 10, 1, 0, 7, -1)


class Peer:
    def __init__(self, server: Any) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(cast("Server", server), "PLAINTEXT")
        self.connection.connection_made(cast("Any", self.transport))

    def receive(self, frame: bytes) -> None:
        buffer = self.connection.get_buffer(-1)
        buffer[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))


def _waiting(connection: Connection) -> Slot:
    """The place of a request that is answered later."""
    slot = Slot(connection)
    connection.take_place(slot)
    return slot


def test_answers_of_another_connection_leave_in_one_piece_after_its_consumer_was_answered() -> None:
    order: list[str] = []
    slots: list[Slot] = []
    wakeups = Wakeups()
    handlers: list[Handler] = [lambda connection: slots.append(_waiting(connection))]
    server = _server(wakeups, handlers)
    producer, follower = Peer(server), Peer(server)

    for _ in range(3):
        producer.receive(FRAME)
    assert producer.transport.writes == []

    def commit(connection: Connection) -> None:
        for number, slot in enumerate(slots):
            slot.complete(b"answer %d;" % number)
        wakeups.add(lambda: order.append(f"consumer after {len(producer.transport.writes)}"))
        connection.complete(Slot(connection), b"to the follower")

    handlers[0] = commit
    follower.receive(FRAME)
    assert producer.transport.writes == [b"answer 0;answer 1;answer 2;"]
    assert follower.transport.writes == [b"to the follower"]
    assert order == ["consumer after 0"]
    assert not wakeups._is_handling


def test_an_answer_that_nobody_collects_leaves_at_once() -> None:
    slots: list[Slot] = []
    server = _server(Wakeups(), [lambda connection: slots.append(_waiting(connection))])
    producer = Peer(server)
    producer.receive(FRAME)
    slots[0].complete(b"answer")
    assert producer.transport.writes == [b"answer"]


def test_a_connection_with_too_many_waiting_requests_is_read_again_when_half_of_them_are_answered() -> None:
    slots: list[Slot] = []
    server = _server(Wakeups(), [lambda connection: slots.append(_waiting(connection))])
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


LARGE = bytes(128 * 1024)
"""An answer as Metadata gives it for some thousand partitions."""


def _waiting_fetch_with_answers_behind_it(server: Any, handlers: list[Handler]) -> tuple[Peer, Slot]:
    slots: list[Slot] = []
    peer = Peer(server)
    handlers[0] = lambda connection: slots.append(_waiting(connection))
    peer.receive(FRAME)
    handlers[0] = lambda connection: connection.complete(Slot(connection), LARGE)
    return peer, slots[0]


def test_a_connection_with_its_share_of_held_answers_is_not_read_until_they_have_left() -> None:
    handlers: list[Handler] = []
    handlers.append(lambda _connection: None)
    server = _server(Wakeups(), handlers)
    peer, fetch = _waiting_fetch_with_answers_behind_it(server, handlers)
    sent = 0
    while peer.transport.is_reading:
        peer.receive(FRAME)
        sent += 1
        assert sent * len(LARGE) <= HELD_SHARE_BYTES
    budget = server.request_memory
    assert budget.used_bytes == budget.held_bytes == HELD_SHARE_BYTES

    fetch.complete(b"records")
    assert b"".join(peer.transport.writes) == b"records" + sent * LARGE
    peer.receive(FRAME)
    assert peer.transport.writes[-1] == LARGE
    assert budget.used_bytes == budget.held_bytes == 0


def test_requests_that_were_received_by_then_are_handled_when_the_held_answers_have_left() -> None:
    handlers: list[Handler] = [lambda _connection: None]
    server = _server(Wakeups(), handlers)
    peer, fetch = _waiting_fetch_with_answers_behind_it(server, handlers)
    peer.receive(50 * FRAME)
    assert server.request_memory.held_bytes == HELD_SHARE_BYTES
    fetch.complete(b"records")
    assert b"".join(peer.transport.writes) == b"records" + 50 * LARGE
    assert peer.transport.is_reading


def test_small_answers_behind_a_waiting_one_are_bounded_by_their_number_alone() -> None:
    handlers: list[Handler] = [lambda _connection: None]
    server = _server(Wakeups(), handlers)
    peer, fetch = _waiting_fetch_with_answers_behind_it(server, handlers)
    handlers[0] = lambda connection: connection.complete(Slot(connection), b"small")
    for _ in range(20):
        peer.receive(FRAME)
    assert server.request_memory.held_bytes == 0
    fetch.complete(b"records")
    assert b"".join(peer.transport.writes) == b"records" + 20 * b"small"


def test_answers_to_versions_that_are_not_served_are_bounded_by_their_number_too() -> None:
    """They take another way out than those of a handler, and queue behind the same waiting request."""
    handlers: list[Handler] = [lambda _connection: None]
    server = _server(Wakeups(), handlers)
    server.receive_buffer = memoryview(bytearray(1 << 16))
    server.dispatcher.find = lambda _key, _version: None
    server.answer_unserved = lambda _key, _version, _correlation_id: b"small"
    peer, fetch = _waiting_fetch_with_answers_behind_it(server, handlers)
    unserved = struct.pack(">ihhih", 10, 1, 9, 7, -1)
    peer.receive(3 * SLOTS_MAX * unserved)
    assert not peer.transport.is_reading
    assert len(peer.connection._slots) == SLOTS_MAX
    fetch.complete(b"records")
    assert b"".join(peer.transport.writes).startswith(b"records" + SLOTS_MAX // 2 * b"small")


def test_many_connections_together_hold_answers_in_a_part_of_the_budget_only() -> None:
    handlers: list[Handler] = [lambda _connection: None]
    server = _server(Wakeups(), handlers)
    limit_bytes = 8 * HELD_SHARE_BYTES
    budget = server.request_memory = MemoryBudget(limit_bytes)
    peers = [_waiting_fetch_with_answers_behind_it(server, handlers)[0] for _ in range(20)]
    for peer in peers:
        while peer.transport.is_reading:
            peer.receive(FRAME)
    # Each may have one that it did not know of before it was made.
    assert budget.held_bytes <= limit_bytes // HELD_PART + len(peers) * len(LARGE)
    assert budget.take(limit_bytes // 8)

    budget.give_back(limit_bytes // 8)
    for peer in peers:
        peer.connection.connection_lost(None)
    assert budget.used_bytes == budget.held_bytes == 0


def test_large_answers_to_requests_that_came_together_leave_one_by_one() -> None:
    """Some thousand requests fit into one read: joined, their answers would take gigabytes."""
    server = _server(Wakeups(), [])
    server.dispatcher.routes[1 << 16] = SimpleNamespace(
        name="Fetch",
        version=0,
        direct=False,
        quick=None,
        request_type=Request,
        flexible_request=False,
        flexible_response=False,
        decode=lambda _buffer, _start: None,
        handle=lambda _context, _request: LARGE,
        stats=SimpleNamespace(record=lambda _seconds: None),
    )
    peer = Peer(server)
    peer.receive(50 * FRAME)
    assert [len(data) for data in peer.transport.writes] == 50 * [len(LARGE) + 8]


def _server(wakeups: Wakeups, handlers: list[Handler]) -> Any:
    """Hands every request to the handler that is in the list at that moment."""

    def direct(request: Request) -> None:
        handlers[0](request.connection)

    route = SimpleNamespace(
        name="Fetch", direct=True, flexible_request=False, handle=direct, request_type=Request
    )
    return SimpleNamespace(
        dispatcher=SimpleNamespace(routes={1 << 16: route}),
        services=SimpleNamespace(
            access=Access(), wakeups=wakeups, recognition=Recognition(World()), throttling=Throttling()
        ),
        loop=None,
        ticks=float,
        before_requests=None,
        start_task=None,
        receive_buffer=memoryview(bytearray(1024)),
        frame_bytes_max=1024,
        admit=lambda _connection: True,
        forget=lambda _connection: None,
        request_memory=MemoryBudget(64 * 1024 * 1024),
    )
