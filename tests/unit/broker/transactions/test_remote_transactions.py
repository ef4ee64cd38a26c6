"""Markers for other brokers: together where they come together, one request at a time, and none forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.replication.peers import Lane, Peers, PeerUnreachable
from millrace.broker.transactions.remote_transactions import (
    MARKERS_PER_REQUEST,
    MarkerRefused,
    PartitionGone,
    RemoteTransactions,
)
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.log.state.transactions import EndMarker
from millrace.metadata.service import Metadata
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ME, PEER, OTHER = NodeId(1), NodeId(2), NodeId(3)


class SlowPeers:
    """Answers when the test says so, with a code for every marker."""

    def __init__(self) -> None:
        self.asked: list[tuple[NodeId, int, asyncio.Future[int | Exception]]] = []

    async def call(
        self, node_id: NodeId, _key: int, _version: int, request: WriteTxnMarkersRequest, *, lane: Lane
    ) -> WriteTxnMarkersResponse:
        assert lane is Lane.MARKERS
        answer: asyncio.Future[int | Exception] = asyncio.get_running_loop().create_future()
        self.asked.append((node_id, len(request.markers), answer))
        outcome = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return WriteTxnMarkersResponse(markers=[_result(marker, outcome) for marker in request.markers])

    async def answer(self, place: int, outcome: int | Exception = ErrorCode.NONE) -> None:
        self.asked[place][2].set_result(outcome)
        await turns()


def _result(marker: Any, code: int) -> WritableTxnMarkerResult:
    (topic,) = marker.topics
    partitions = [
        WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        for index in topic.partition_indexes
    ]
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)],
    )


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class World:
    def __init__(self) -> None:
        self.peers = SlowPeers()
        self.reports: list[MillraceError | None] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.transactions = RemoteTransactions(
            cast("Metadata", SimpleNamespace(image=None)),
            cast("Peers", self.peers),
            node_id=ME,
            start_task=self._start,
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def write(self, count: int, leader_id: NodeId = PEER) -> None:
        for index in range(count):
            marker = EndMarker(7, 0, True, 1, 2)
            place = TopicPartition("orders", index)
            self.transactions.write_marker(leader_id, place, marker, self.reports.append)
        await turns()

    @property
    def sizes(self) -> list[tuple[NodeId, int]]:
        return [(node_id, count) for node_id, count, _ in self.peers.asked]


def test_what_comes_while_a_request_is_under_way_leaves_together_after_it() -> None:
    """Each of them waits for replicas, and is handled after the one before: in a row they would outlast the
    time that an answer may take, and all be sent again."""

    async def scenario() -> None:
        world = World()
        await world.write(2)
        await world.write(3)
        await world.write(1)
        await world.write(1, OTHER)
        assert world.sizes == [(PEER, 2), (OTHER, 1)]
        await world.peers.answer(0)
        assert world.reports == [None, None]
        assert world.sizes[2:] == [(PEER, 4)]
        await world.peers.answer(2)
        assert len(world.reports) == 6
        await world.write(1)
        assert world.sizes[3:] == [(PEER, 1)]

    asyncio.run(scenario())


def test_many_are_sent_in_pieces() -> None:
    async def scenario() -> None:
        world = World()
        await world.write(MARKERS_PER_REQUEST + 1)
        await world.peers.answer(0)
        await world.peers.answer(1)
        assert world.sizes == [(PEER, MARKERS_PER_REQUEST), (PEER, 1)]
        assert len(world.reports) == MARKERS_PER_REQUEST + 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "outcome, expected",
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, PartitionGone),
        (ErrorCode.NOT_ENOUGH_REPLICAS, MarkerRefused),
        (PeerUnreachable(PEER, "gone"), PeerUnreachable),
        (ValueError("a bug"), MarkerRefused),
    ],
)
def test_whatever_happens_to_a_request_its_markers_are_reported_and_the_next_one_leaves(
    outcome: int | Exception, expected: type[MillraceError]
) -> None:
    async def scenario() -> None:
        world = World()
        await world.write(2)
        await world.write(1)
        await world.peers.answer(0, outcome)
        assert [type(error) for error in world.reports] == [expected, expected]
        assert world.sizes[1:] == [(PEER, 1)]

    asyncio.run(scenario())


def test_one_who_cannot_be_told_keeps_nobody_else_waiting() -> None:
    async def scenario() -> None:
        world = World()

        def fail(_error: MillraceError | None) -> None:
            raise AssertionError("a bug")

        world.transactions.write_marker(PEER, TopicPartition("t", 0), EndMarker(7, 0, True, 1, 2), fail)
        await world.write(1)
        await world.write(1)
        await world.peers.answer(0)
        assert world.reports == [None]
        await world.peers.answer(1)
        assert world.reports == [None, None]

    asyncio.run(scenario())
