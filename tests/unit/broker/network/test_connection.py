"""A connection takes requests however their bytes arrive, and answers in the order of the requests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.broker.network.checks import NONE
from millrace.broker.network.dispatch import Api, Dispatcher
from millrace.broker.network.memory import OWN_BUFFER_KEEP_BYTES, MemoryBudget
from millrace.broker.network.requests import NO_BYTES, Request
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.network.client import (
    BUFFER_BYTES,
    CLIENT_ID,
    Client,
    correlation_ids,
    frame,
    responses,
)

VERSIONS = ApiKey.API_VERSIONS
BEAT = ApiKey.HEARTBEAT


def versions_frame(correlation_id: int = 7) -> bytes:
    request = ApiVersionsRequest(client_software_name="tester", client_software_version="1")
    return frame(VERSIONS, 3, request, correlation_id)


def run(broker: Broker, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    broker.run(work())


def test_a_request_in_one_piece_is_answered_at_once(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        client.receive(versions_frame())
        written = client.written()
        assert correlation_ids(written) == [7]
        (answer,) = responses(VERSIONS, 3, written)
        assert answer.error_code == 0
        assert client.connection.client_id == CLIENT_ID.decode()
        assert client.connection.frames_count == 1

    run(broker, work)


@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_requests_are_put_together_from_pieces(broker: Broker, size: int) -> None:
    async def work() -> None:
        client = Client(broker.services)
        data = b"".join(versions_frame(number) for number in range(5))
        for start in range(0, len(data), size):
            client.receive(data[start : start + size])
        assert correlation_ids(client.written()) == list(range(5))
        assert not client.connection.has_unfinished_frame

    run(broker, work)


def test_a_large_request_takes_memory_as_it_arrives_and_gives_it_back(broker: Broker) -> None:
    async def work() -> None:
        budget = MemoryBudget(64 << 20)
        client = Client(broker.services, request_memory=budget)
        size = 3 * OWN_BUFFER_KEEP_BYTES
        head = struct.pack(">ihhih", size, BEAT, 4, 7, 0)
        client.receive(head)
        assert client.connection.has_unfinished_frame
        assert 0 < budget.used_bytes < OWN_BUFFER_KEEP_BYTES, "it has to prove that it is large"
        client.receive(bytes(size - len(head)))
        assert budget.used_bytes >= size - OWN_BUFFER_KEEP_BYTES
        client.connection.connection_lost(None)
        assert budget.used_bytes == 0

    run(broker, work)


@pytest.mark.parametrize("size", [-1, 0, 9, BUFFER_BYTES + 1])
def test_a_frame_of_a_size_that_cannot_be_ends_the_connection(broker: Broker, size: int) -> None:
    async def work() -> None:
        client = Client(broker.services)
        client.receive(versions_frame() + struct.pack(">i", size) + bytes(20))
        assert client.transport.is_aborted
        assert client.refused == ["frame_size"]

    run(broker, work)


def test_an_api_that_is_not_served_ends_the_connection_before_its_body_has_arrived(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services, is_servable=lambda _key, _version: False)
        client.receive(struct.pack(">ihhih", 1_000, 99, 0, 7, -1))
        assert client.transport.is_aborted
        assert client.refused == ["api"]

    run(broker, work)


def test_a_request_that_cannot_be_read_ends_the_connection(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        whole = frame(BEAT, 4, HeartbeatRequest(group_id="group", member_id="member"))
        client.receive(struct.pack(">i", len(whole) - 8) + whole[4:-4])
        assert client.transport.is_aborted
        assert client.refused == ["malformed"]

    run(broker, work)


def test_a_handler_that_fails_ends_its_connection_only(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_context: object, _request: object) -> None:
        raise RuntimeError("a bug")

    async def work() -> None:
        dispatcher = Dispatcher([Api(VERSIONS, versions=(0, 4), handle=fail, checks=NONE)])
        broken, other = Client(broker.services, dispatcher), Client(broker.services)
        broken.receive(versions_frame())
        assert broken.transport.is_aborted
        assert broken.refused == ["failed"]
        other.receive(versions_frame())
        assert correlation_ids(other.written()) == [7]

    run(broker, work)
    assert "could not be handled" in caplog.text


def test_a_coroutine_holds_up_the_requests_behind_it(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        finding = frame(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["g"]), 1)
        client.receive(finding + versions_frame(2))
        assert not client.transport.is_reading
        assert client.written() == b""
        assert correlation_ids(await client.answers()) == [1, 2]
        assert client.transport.is_reading

    run(broker, work)


class Later:
    """A direct handler that answers when it is told to, or at once."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers_at_once = False

    def __call__(self, request: Request) -> None:
        self.requests.append(request)
        if self.answers_at_once:
            request.complete(answer_to(request.correlation_id))
        else:
            request.connection.take_place(request)

    def dispatcher(self) -> Dispatcher:
        return Dispatcher([Api(VERSIONS, versions=(0, 4), handle=self, checks=NONE, direct=True)])


def answer_to(correlation_id: int) -> bytes:
    return struct.pack(">ii", 4, correlation_id)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_answers_leave_in_the_order_of_the_requests(broker: Broker, order: tuple[int, ...]) -> None:
    async def work() -> None:
        later = Later()
        client = Client(broker.services, later.dispatcher())
        client.receive(b"".join(versions_frame(number) for number in range(3)))
        assert client.connection.is_waiting
        assert len(set(map(id, later.requests))) == 3
        for number in order:
            later.requests[number].complete(answer_to(number))
        assert correlation_ids(client.written()) == [0, 1, 2]
        assert not client.connection.is_waiting

    run(broker, work)


def test_an_answer_that_is_made_at_once_waits_for_those_before_it(broker: Broker) -> None:
    async def work() -> None:
        later = Later()
        client = Client(broker.services, later.dispatcher())
        client.receive(versions_frame(0))
        later.answers_at_once = True
        client.receive(versions_frame(1))
        assert client.written() == b""
        later.requests[0].complete(answer_to(0))
        assert correlation_ids(client.written()) == [0, 1]

    run(broker, work)


def test_one_object_serves_requests_that_are_answered_at_once(broker: Broker) -> None:
    async def work() -> None:
        later = Later()
        later.answers_at_once = True
        client = Client(broker.services, later.dispatcher())
        client.receive(versions_frame(1) + versions_frame(2))
        first, second = later.requests
        assert first is second
        later.answers_at_once = False
        client.receive(versions_frame(3))
        kept = later.requests[-1]
        assert kept is first, "until somebody keeps it"
        assert kept.buffer is NO_BYTES, "the buffer is read into again"
        client.receive(versions_frame(4))
        assert later.requests[-1] is not kept
        assert (kept.correlation_id, later.requests[-1].correlation_id) == (3, 4)

    run(broker, work)


def test_a_request_is_answered_once_and_not_after_its_connection_has_ended(broker: Broker) -> None:
    async def work() -> None:
        later = Later()
        client = Client(broker.services, later.dispatcher())
        client.receive(versions_frame(0) + versions_frame(1))
        first, second = later.requests
        first.complete(answer_to(0))
        first.complete(answer_to(0))
        assert correlation_ids(client.written()) == [0]
        client.connection.connection_lost(None)
        assert second.is_over
        second.complete(answer_to(1))
        assert client.written() == b""

    run(broker, work)


def test_whoever_waits_for_a_connection_hears_of_its_end(broker: Broker) -> None:
    async def work() -> None:
        client = Client(broker.services)
        told: list[str] = []
        client.connection.on_close[lambda: told.append("ended")] = None
        client.connection.recognised.remember(
            Dispatcher([Api(VERSIONS, versions=(0, 4), handle=ApiVersionsResponse, checks=NONE)]).find(
                VERSIONS, 3
            )
            or pytest.fail("no route"),
            client.connection,
            "something",
        )
        client.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert told == ["ended"]
        assert broker.services.recognition.entries_count == 0

    run(broker, work)
