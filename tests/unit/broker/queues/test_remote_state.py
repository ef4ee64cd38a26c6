"""Commands for coordinators elsewhere: put into Kafka's messages, and answered as one here would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from millrace.broker.queues.remote_state import BATCHES_PER_REQUEST, WRITES_PER_REQUEST, RemoteState
from millrace.broker.replication.peers import Lane, PeerUnreachable
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.runtime import Outcome
from millrace.core.background import Tasks
from millrace.core.ids import NodeId
from millrace.queues.share_partition.model import Delta, RecordState, ShareKey, StoredState
from millrace.queues.state.commands import (
    DONE,
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateSummary,
    WriteState,
)
from millrace.queues.state.errors import (
    InvalidShareState,
    LeaderEpochFenced,
    StateEpochFenced,
    StateNotInitialized,
    UnknownSharePartition,
)
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from tests.unit.queues.state.lab import KEY, run

LEADER: Final = NodeId(7)
Serve = Callable[[ApiKey, Any], Awaitable[Any]]


class FakePeers:
    def __init__(self, serve: Serve) -> None:
        self.asked: list[tuple[ApiKey, int, Any]] = []
        self._serve = serve

    async def call(self, node_id: NodeId, api_key: ApiKey, version: int, request: Any, *, lane: Lane) -> Any:
        assert (node_id, lane) == (LEADER, Lane.SHARE_STATE)
        self.asked.append((api_key, version, request))
        return await self._serve(api_key, request)


def remote(serve: Serve) -> tuple[RemoteState, FakePeers]:
    peers = FakePeers(serve)
    return RemoteState(peers, Tasks().starter("ask")), peers  # type: ignore[arg-type] # stands for Peers


def ask(serve: Serve, command: object) -> tuple[Outcome, tuple[ApiKey, int, Any]]:
    async def outcome() -> tuple[Outcome, tuple[ApiKey, int, Any]]:
        state, peers = remote(serve)
        found = await state.ask(LEADER, command)
        return found, peers.asked[0]

    return asyncio.run(outcome())


def answering(response: Any) -> Serve:
    async def serve(_api_key: ApiKey, _request: Any) -> Any:
        return response

    return serve


def write_answer(request: Any, code: int = 0) -> Any:
    write = write_share_group_state
    results = [
        write.WriteStateResult(
            topic_id=topic.topic_id,
            partitions=[
                write.PartitionResult(partition=part.partition, error_code=code) for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return write.WriteShareGroupStateResponse(results=results)


def test_state_is_initialized_elsewhere() -> None:
    init = initialize_share_group_state
    result = init.InitializeStateResult(topic_id=KEY.topic_id, partitions=[init.PartitionResult()])
    response = init.InitializeShareGroupStateResponse(results=[result])
    outcome, (api_key, version, request) = ask(answering(response), InitializeState(KEY, 3, 17))
    assert outcome is DONE
    assert (api_key, version, request.group_id) == (ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, "workers")
    (topic,) = request.topics
    assert topic.topic_id == KEY.topic_id
    assert topic.partitions == [init.PartitionData(partition=0, state_epoch=3, start_offset=17)]


def test_state_is_read_elsewhere() -> None:
    read = read_share_group_state
    runs = [
        read.StateBatch(first_offset=5, last_offset=9, delivery_state=2, delivery_count=1),
        read.StateBatch(first_offset=12, last_offset=12, delivery_state=0, delivery_count=3),
    ]
    part = read.PartitionResult(state_epoch=4, start_offset=5, state_batches=runs)
    result = read.ReadStateResult(topic_id=KEY.topic_id, partitions=[part])
    response = read.ReadShareGroupStateResponse(results=[result])
    outcome, (api_key, version, request) = ask(answering(response), ReadState(KEY, 8))
    assert outcome == StoredState(4, 5, 5, (run(5, 9), run(12, 12, RecordState.AVAILABLE, 3)))
    assert (api_key, version) == (ApiKey.READ_SHARE_GROUP_STATE, 0)
    assert request.topics[0].partitions == [read.PartitionData(partition=0, leader_epoch=8)]


def test_what_is_refused_elsewhere_says_why() -> None:
    init = initialize_share_group_state
    part = init.PartitionResult(error_code=ErrorCode.INVALID_REQUEST, error_message="no")
    result = init.InitializeStateResult(topic_id=KEY.topic_id, partitions=[part])
    response = init.InitializeShareGroupStateResponse(results=[result])
    outcome, _ = ask(answering(response), InitializeState(KEY, 3, 17))
    assert isinstance(outcome, InvalidShareState)
    assert str(outcome) == "no"


def test_a_summary_is_read_elsewhere() -> None:
    short = read_share_group_state_summary
    part = short.PartitionResult(state_epoch=4, leader_epoch=2, start_offset=5, delivery_complete_count=9)
    result = short.ReadStateSummaryResult(topic_id=KEY.topic_id, partitions=[part])
    response = short.ReadShareGroupStateSummaryResponse(results=[result])
    outcome, (api_key, version, _) = ask(answering(response), ReadSummary(KEY))
    assert outcome == StateSummary(4, 2, 5, 9)
    assert (api_key, version) == (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1)


def test_state_is_deleted_elsewhere() -> None:
    delete = delete_share_group_state
    result = delete.DeleteStateResult(topic_id=KEY.topic_id, partitions=[delete.PartitionResult()])
    response = delete.DeleteShareGroupStateResponse(results=[result])
    outcome, (api_key, version, _) = ask(answering(response), DeleteState(KEY))
    assert outcome is DONE
    assert (api_key, version) == (ApiKey.DELETE_SHARE_GROUP_STATE, 0)


def test_state_is_written_elsewhere() -> None:
    async def serve(_api_key: ApiKey, request: Any) -> Any:
        return write_answer(request)

    command = WriteState(KEY, 3, 4, Delta(11, 2, (run(12, 13),)))
    outcome, (api_key, version, request) = ask(serve, command)
    assert outcome is DONE
    assert (api_key, version) == (ApiKey.WRITE_SHARE_GROUP_STATE, 1)
    write = write_share_group_state
    batch = write.StateBatch(first_offset=12, last_offset=13, delivery_state=2, delivery_count=1)
    assert request.topics[0].partitions == [
        write.PartitionData(
            partition=0,
            state_epoch=3,
            leader_epoch=4,
            start_offset=11,
            delivery_complete_count=2,
            state_batches=[batch],
        )
    ]


@pytest.mark.parametrize(
    "code, expected",
    [
        (ErrorCode.NOT_COORDINATOR, NotCoordinator),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, CoordinatorLoading),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, CoordinatorNotAvailable),
        (ErrorCode.UNKNOWN_SERVER_ERROR, CoordinatorNotAvailable),
        (ErrorCode.FENCED_LEADER_EPOCH, LeaderEpochFenced),
        (ErrorCode.FENCED_STATE_EPOCH, StateEpochFenced),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UnknownSharePartition),
        (ErrorCode.INVALID_REQUEST, StateNotInitialized),
    ],
)
def test_refusals_come_back_as_they_were(code: ErrorCode, expected: type) -> None:
    async def serve(_api_key: ApiKey, request: Any) -> Any:
        return write_answer(request, code)

    outcome, _ = ask(serve, WriteState(KEY, 3, 4, Delta(-1, 0, ())))
    assert isinstance(outcome, expected)


@pytest.mark.parametrize("command", [ReadState(KEY, 0), WriteState(KEY, 1, 0, Delta(-1, 0, ()))])
def test_a_broker_that_is_gone_and_one_that_says_nothing_are_both_errors(command: object) -> None:
    async def gone(_api_key: ApiKey, _request: Any) -> Any:
        raise PeerUnreachable(7, "gone")

    assert isinstance(ask(gone, command)[0], PeerUnreachable)
    nothing = answering(write_share_group_state.WriteShareGroupStateResponse())
    assert isinstance(ask(nothing, command)[0], CoordinatorNotAvailable)


def test_writes_that_come_meanwhile_leave_together() -> None:
    async def use() -> None:
        gate = asyncio.Event()

        async def serve(_api_key: ApiKey, request: Any) -> Any:
            await gate.wait()
            return write_answer(request)

        state, peers = remote(serve)
        loop = asyncio.get_running_loop()

        def ask_for(key: ShareKey) -> asyncio.Task[Outcome]:
            return loop.create_task(state.ask(LEADER, WriteState(key, 1, 0, Delta(-1, 0, ()))))

        first = ask_for(KEY)
        while not peers.asked:
            await asyncio.sleep(0)
        later = [ask_for(KEY._replace(partition=number)) for number in range(WRITES_PER_REQUEST + 1)]
        other = ask_for(KEY._replace(group_id="others"))
        while len(peers.asked) < 2:
            await asyncio.sleep(0)
        assert peers.asked[1][2].group_id == "others", "another group does not wait"
        gate.set()
        assert await asyncio.gather(first, *later, other) == [DONE] * (len(later) + 2)
        assert [len(request.topics) for *_, request in peers.asked] == [1, 1, WRITES_PER_REQUEST, 1]

    asyncio.run(use())


def test_a_request_has_a_bounded_size() -> None:
    async def use() -> None:
        async def serve(_api_key: ApiKey, request: Any) -> Any:
            return write_answer(request)

        state, peers = remote(serve)
        runs = tuple(run(2 * number, 2 * number) for number in range(BATCHES_PER_REQUEST // 2 + 1))
        commands = [WriteState(KEY._replace(partition=at), 1, 0, Delta(-1, 0, runs)) for at in range(3)]
        assert await asyncio.gather(*(state.ask(LEADER, each) for each in commands)) == [DONE] * 3
        assert [len(request.topics) for *_, request in peers.asked] == [1, 1, 1]

    asyncio.run(use())
