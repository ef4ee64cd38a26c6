"""A produce with acks=all is answered when its batch is committed, and says so if that does not happen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.handlers.produce.answers import ProduceAnswer
from millrace.broker.network.connection import Connection
from millrace.broker.network.context import Endpoint
from millrace.broker.network.deadlines import Deadlines
from millrace.broker.network.dispatch import ApiStats, Route
from millrace.broker.network.requests import Request
from millrace.core.ids import TopicId
from millrace.log.partition.appending import Appended
from millrace.replica.partition import Partition
from millrace.replica.waiting import OffsetWaiters
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import NodeEndpoint
from tests.unit.broker.timers import FakeLoop

TOPIC_ID = TopicId(bytes(range(16)))
NAMED, BY_ID = 10, 13
APPENDED = Appended(base_offset=40, last_offset=49, log_append_time_ms=-1, duplicate=False)
TIMEOUT_MS = 30_000


class FakeConnection:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.ticks = float
        self.services = SimpleNamespace(
            deadlines=Deadlines(),
            leader_elsewhere=lambda _partition: (2, 8),
            endpoints_of=lambda nodes, _listener: [NodeEndpoint(node, "other", 9092, None) for node in nodes],
        )
        self.endpoint = Endpoint("", 0, "", 0, "PLAINTEXT")
        self.slots: list[Request] = []
        self.completed = 0

    def take_place(self, request: Request) -> None:
        request.has_place = True
        self.slots.append(request)

    def complete(self, request: Request, response: bytes) -> None:
        if not request.is_over:
            request.is_over = True
            request.response = response
            self.completed += 1


class Wait:
    """One produce that waits for what was appended at offsets 40 to 49."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.connection = FakeConnection()
        self.route = SimpleNamespace(version=version, flexible_response=True, stats=ApiStats())
        self.partition = SimpleNamespace(
            topic="orders",
            index=3,
            is_leader=True,
            has_enough_replicas=True,
            waiting_produces=OffsetWaiters(),
            log=SimpleNamespace(log_start_offset=5),
        )
        self.answer = ProduceAnswer(cast("Connection", self.connection), cast("Route", self.route))
        self.answer.correlation_id = 7
        self.answer.started = 0.0
        self.answer.acks, self.answer.timeout_ms = -1, TIMEOUT_MS
        self.answer.topic_id = TOPIC_ID if version >= BY_ID else None
        self.answer.partition = cast("Partition", self.partition)
        self.answer.await_commit(APPENDED)

    def response(self) -> Any:
        """What the client is told for its one partition."""
        assert self.connection.completed == 1
        frame = self.answer.response
        assert isinstance(frame, bytes)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert int.from_bytes(frame[4:8], "big") == 7
        decoded = schema.response_decoder(ApiKey.PRODUCE, self.version)(frame, 9)
        (topic,) = decoded.responses
        assert topic.topic_id == TOPIC_ID if self.version >= BY_ID else topic.name == "orders"
        (result,) = topic.partition_responses
        assert result.index == 3
        return result


@pytest.mark.parametrize("version", [NAMED, BY_ID])
def test_it_is_answered_when_all_of_its_offsets_are_committed(version: int) -> None:
    wait = Wait(version)
    assert wait.connection.slots == [wait.answer]
    wait.partition.waiting_produces.reached(49)
    assert wait.answer.response is None

    wait.partition.waiting_produces.reached(50)
    result = wait.response()
    assert (result.error_code, result.base_offset, result.log_start_offset) == (0, 40, 5)
    assert wait.route.stats.count == 1
    assert wait.answer.is_over


@pytest.mark.parametrize("version", [NAMED, BY_ID])
def test_it_is_told_when_another_broker_leads_by_now(version: int) -> None:
    wait = Wait(version)
    wait.partition.waiting_produces.fail()
    result = wait.response()
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, 8)
    assert wait.route.stats.errors == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 1}


@pytest.mark.parametrize(
    "has_enough, code",
    [(True, ErrorCode.REQUEST_TIMED_OUT), (False, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
)
def test_it_waits_no_longer_than_it_was_allowed_to(has_enough: bool, code: ErrorCode) -> None:
    wait = Wait(NAMED)
    wait.partition.has_enough_replicas = has_enough
    wait.connection.loop.advance(TIMEOUT_MS / 1000 - 1)
    assert wait.answer.response is None
    wait.connection.loop.advance(1)
    assert wait.response().error_code == code

    wait.partition.waiting_produces.reached(50)
    assert wait.connection.completed == 1


def test_nobody_is_answered_whose_connection_has_ended() -> None:
    wait = Wait(NAMED)
    wait.answer.discard()
    wait.partition.waiting_produces.reached(50)
    wait.connection.loop.advance(TIMEOUT_MS / 1000)
    assert wait.connection.completed == 0
    assert wait.route.stats.count == 0
