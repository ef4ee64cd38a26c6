"""Heartbeats that repeat themselves are answered as those that do not, and the group decides each time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millrace.broker.handlers import APIS
from millrace.broker.handlers.groups.heartbeats import BODY_BYTES_MAX
from millrace.broker.network.connection import Connection
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.requests import Request
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.heartbeat import HeartbeatRequest
from tests.unit.broker.handlers.broker import DIALLED, Broker, anybody
from tests.unit.broker.handlers.groups.members import member

DISPATCHER = Dispatcher(APIS)
GUARD = b"what the buffer held before"


class Wire:
    """A connection as the quick way sees it; `beat` gives the answer, or None if it was left to others."""

    def __init__(self, broker: Broker) -> None:
        self.services = broker.services
        self.client_id = "test"
        self.endpoint = DIALLED
        self.recognised = broker.services.recognition.of(None)
        self.decisions = anybody(broker.services)
        self.answers: list[Any] = []
        self._broker = broker

    def answer(self, request: Request, response: Any) -> None:
        self.answers.append(response if isinstance(response, bytes) else request.route.encode(response))

    def beat(self, request: object, api: ApiKey, version: int) -> Any:
        route = DISPATCHER.find(api, version)
        assert route is not None
        assert route.quick is not None
        quick = route.quick
        body = schema.request_encoder(api, version)(request)

        async def handle() -> bool:
            asked = Request(cast("Connection", self), route)
            asked.buffer = memoryview(bytearray(GUARD + body + GUARD))
            asked.body, asked.stop = len(GUARD), len(GUARD) + len(body)
            return quick(asked)

        if not self._broker.run(handle()):
            return None
        return schema.response_decoder(api, version)(self.answers.pop())


@pytest.fixture
def groups(broker: Broker) -> Broker:
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    return broker


@pytest.mark.parametrize("version", range(5))
def test_a_classic_member_repeats_itself(groups: Broker, version: int) -> None:
    wire, member_id = Wire(groups), member(groups)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert wire.beat(request, ApiKey.HEARTBEAT, version) is None
    for _ in range(3):
        answer = wire.beat(request, ApiKey.HEARTBEAT, version)
        assert answer == groups.ask(request, version)
        assert answer.error_code == ErrorCode.NONE


def test_what_a_member_is_told_changes_with_the_group(groups: Broker) -> None:
    wire, member_id = Wire(groups), member(groups)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    codes = [getattr(wire.beat(request, ApiKey.HEARTBEAT, 4), "error_code", None) for _ in range(3)]
    assert codes == [None, ErrorCode.NONE, ErrorCode.NONE]
    wrong = HeartbeatRequest(group_id="g", generation_id=2, member_id=member_id)
    assert wire.beat(wrong, ApiKey.HEARTBEAT, 4) is None
    for _ in range(2):
        assert wire.beat(wrong, ApiKey.HEARTBEAT, 4).error_code == ErrorCode.ILLEGAL_GENERATION
    stranger = HeartbeatRequest(group_id="g", generation_id=1, member_id="stranger")
    assert wire.beat(stranger, ApiKey.HEARTBEAT, 4) is None
    assert wire.beat(stranger, ApiKey.HEARTBEAT, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_for_no_group_is_left_to_the_general_way(groups: Broker) -> None:
    wire = Wire(groups)
    for _ in range(3):
        assert wire.beat(HeartbeatRequest(generation_id=1, member_id="m"), ApiKey.HEARTBEAT, 4) is None


@pytest.mark.parametrize("version", range(2))
def test_a_consumer_repeats_itself_until_its_group_changes(groups: Broker, version: int) -> None:
    api = ApiKey.CONSUMER_GROUP_HEARTBEAT
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    wire = Wire(groups)
    # What tells something new is never repeated without being read.
    for _ in range(3):
        assert wire.beat(joining, api, version) is None
    joined = groups.ask(joining, version)
    staying = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=joined.member_id, member_epoch=joined.member_epoch
    )
    assert wire.beat(staying, api, version) is None
    for _ in range(3):
        answer = wire.beat(staying, api, version)
        assert answer == groups.ask(staying, version)
        assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, joined.member_epoch, None)
    groups.ask(
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="other",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        version,
    )
    revoking = wire.beat(staying, api, version)
    # There is another member now: this one shall give up a part.
    assert revoking.assignment is not None
    assert sum(len(each.partitions) for each in revoking.assignment.topic_partitions) < 3


@pytest.mark.parametrize("size, is_kept", [(100, True), (BODY_BYTES_MAX, False)])
def test_a_heartbeat_of_a_whole_frame_is_not_kept(groups: Broker, size: int, is_kept: bool) -> None:
    """Or every connection could have as much memory for good, also of those who are refused."""
    wire = Wire(groups)
    request = HeartbeatRequest(group_id="g" * size, generation_id=1, member_id="m")
    assert wire.beat(request, ApiKey.HEARTBEAT, 4) is None
    assert bool(wire.recognised.entries_count) is is_kept
