"""Asks another broker's coordinator for the state of share partitions.

Writes of one group to one broker leave together, those that come while a request is under way with the next:
a connection answers one request after the other, and each waits until its writes are committed.
Nothing is tried again here: whoever asked does, and finds the coordinator that there is by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from millrace.broker.replication.peers import Lane, Peers, PeerUnreachable
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.background import StartTask
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.queues.share_partition.model import ShareKey, StateBatch, StoredState, state_of
from millrace.queues.state.batches import done_count
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
from millrace.queues.state.records import coordinator_key
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

log = logging.getLogger(__name__)

WRITES_PER_REQUEST: Final = 500
BATCHES_PER_REQUEST: Final = 20_000


class _Letter(NamedTuple):
    """A write for another broker."""

    command: WriteState
    answer: Answer


class _Question(NamedTuple):
    """How a command is put to another broker."""

    api_key: ApiKey
    version: int
    request: Any


class RemoteState:
    """What this broker asks of others for the sake of share partitions."""

    def __init__(self, peers: Peers, start_task: StartTask) -> None:
        self._peers = peers
        self._start_task = start_task
        self._letters: dict[tuple[NodeId, str], list[_Letter]] = {}
        """The writes to be sent, by the broker that they are for and their group."""
        self._under_way: dict[tuple[NodeId, str], None] = {}

    async def ask(self, leader: NodeId, command: object) -> Outcome:
        """What a coordinator elsewhere answers to a command. Its refusals are values."""
        if isinstance(command, WriteState):
            return await self._write(leader, command)
        key, question = _question(command)
        try:
            response = await self._peers.call(leader, *question, lane=Lane.SHARE_STATE)
        except PeerUnreachable as error:
            return error
        results = _results(response)
        return _no_answer(key) if len(results) != 1 else _outcome(key, command, results[0])

    def _write(self, leader: NodeId, command: WriteState) -> Answer:
        place = (leader, command.key.group_id)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._letters.setdefault(place, []).append(_Letter(command, answer))
        if place not in self._under_way:
            self._under_way[place] = None
            self._start_task(self._deliver_all(place))
        return answer

    async def _deliver_all(self, place: tuple[NodeId, str]) -> None:
        try:
            while letters := self._letters.pop(place, None):
                some = _as_many_as_fit(letters)
                if len(some) < len(letters):
                    self._letters[place] = letters[len(some) :]
                await self._deliver(place, some)
        finally:
            del self._under_way[place]
            for letter in self._letters.pop(place, ()):
                _tell(letter, _no_answer(letter.command.key))

    async def _deliver(self, place: tuple[NodeId, str], letters: Sequence[_Letter]) -> None:
        results: Sequence[Any] = ()
        error: MillraceError | None = None
        try:
            response = await self._peers.call(
                place[0],
                ApiKey.WRITE_SHARE_GROUP_STATE,
                1,
                _write_request(place[1], [letter.command for letter in letters]),
                lane=Lane.SHARE_STATE,
            )
            results = _results(response)
        except PeerUnreachable as unreachable:
            error = unreachable
        finally:
            # One result for each, in the order of the request, or nothing that could be trusted.
            for at, letter in enumerate(letters):
                key = letter.command.key
                if error is not None or len(results) != len(letters):
                    _tell(letter, error or _no_answer(key))
                else:
                    _tell(letter, _outcome(key, letter.command, results[at]))


def _as_many_as_fit(letters: Sequence[_Letter]) -> Sequence[_Letter]:
    batches_count = 0
    for at, letter in enumerate(letters[:WRITES_PER_REQUEST]):
        batches_count += len(letter.command.delta.batches)
        if batches_count > BATCHES_PER_REQUEST and at > 0:
            return letters[:at]
    return letters[:WRITES_PER_REQUEST]


def _tell(letter: _Letter, outcome: Outcome) -> None:
    if not letter.answer.done():
        letter.answer.set_result(outcome)


def _results(response: Any) -> list[Any]:
    return [partition for topic in response.results for partition in topic.partitions]


def _no_answer(key: ShareKey) -> MillraceError:
    return CoordinatorNotAvailable(f"the coordinator of {coordinator_key(key)} did not answer")


def _question(command: object) -> tuple[ShareKey, _Question]:
    match command:
        case InitializeState(key, state_epoch, start_offset):
            init = initialize_share_group_state
            part = init.PartitionData(
                partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
            )
            topics = [init.InitializeStateData(topic_id=key.topic_id, partitions=[part])]
            request = init.InitializeShareGroupStateRequest(group_id=key.group_id, topics=topics)
            return key, _Question(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, request)
        case ReadState(key, leader_epoch):
            read = read_share_group_state
            asked = read.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
            data = [read.ReadStateData(topic_id=key.topic_id, partitions=[asked])]
            question = read.ReadShareGroupStateRequest(group_id=key.group_id, topics=data)
            return key, _Question(ApiKey.READ_SHARE_GROUP_STATE, 0, question)
        case DeleteState(key):
            delete = delete_share_group_state
            gone = [delete.PartitionData(partition=key.partition)]
            deleted = [delete.DeleteStateData(topic_id=key.topic_id, partitions=gone)]
            deletion = delete.DeleteShareGroupStateRequest(group_id=key.group_id, topics=deleted)
            return key, _Question(ApiKey.DELETE_SHARE_GROUP_STATE, 0, deletion)
        case ReadSummary(key):
            short = read_share_group_state_summary
            summed = [short.PartitionData(partition=key.partition, leader_epoch=-1)]
            summaries = [short.ReadStateSummaryData(topic_id=key.topic_id, partitions=summed)]
            inquiry = short.ReadShareGroupStateSummaryRequest(group_id=key.group_id, topics=summaries)
            return key, _Question(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, inquiry)
        case _:
            raise AssertionError(f"{command} is not asked of other brokers")


def _write_request(
    group_id: str, commands: Sequence[WriteState]
) -> write_share_group_state.WriteShareGroupStateRequest:
    """A topic for each write, so that results come in the order of the writes."""
    write = write_share_group_state
    return write.WriteShareGroupStateRequest(
        group_id=group_id,
        topics=[
            write.WriteStateData(
                topic_id=key.topic_id,
                partitions=[
                    write.PartitionData(
                        partition=key.partition,
                        state_epoch=state_epoch,
                        leader_epoch=leader_epoch,
                        start_offset=delta.start_offset,
                        delivery_complete_count=delta.delivery_complete_count,
                        state_batches=[
                            write.StateBatch(
                                first_offset=first,
                                last_offset=last,
                                delivery_state=state,
                                delivery_count=count,
                                not_before_ms=not_before_ms,
                            )
                            for first, last, state, count, not_before_ms in delta.batches
                        ],
                    )
                ],
            )
            for key, state_epoch, leader_epoch, delta in commands
        ],
    )


def _outcome(key: ShareKey, command: object, result: Any) -> Outcome:
    if result.error_code != ErrorCode.NONE:
        return _refusal(key, command, result)
    match command:
        case ReadState():
            batches = tuple(
                StateBatch(
                    batch.first_offset,
                    batch.last_offset,
                    state_of(batch.delivery_state),
                    batch.delivery_count,
                    batch.not_before_ms,
                )
                for batch in result.state_batches
            )
            return StoredState(result.state_epoch, result.start_offset, done_count(batches), batches)
        case ReadSummary():
            return StateSummary(
                result.state_epoch,
                result.leader_epoch,
                result.start_offset,
                result.delivery_complete_count,
            )
        case _:
            return DONE


def _refusal(key: ShareKey, command: object, result: Any) -> MillraceError:
    name = coordinator_key(key)
    match result.error_code:
        case ErrorCode.NOT_COORDINATOR:
            return NotCoordinator(name)
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return CoordinatorLoading(name)
        case ErrorCode.FENCED_LEADER_EPOCH:
            epoch = command.leader_epoch if isinstance(command, ReadState | WriteState) else -1
            return LeaderEpochFenced(name, epoch, current=-1)
        case ErrorCode.FENCED_STATE_EPOCH:
            epoch = command.state_epoch if isinstance(command, InitializeState | WriteState) else -1
            return StateEpochFenced(name, epoch, current=-1)
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return UnknownSharePartition(name)
        case ErrorCode.INVALID_REQUEST if isinstance(command, ReadState | WriteState):
            # Brokers send no others that would be refused so.
            return StateNotInitialized(name, "a read" if isinstance(command, ReadState) else "a write")
        case ErrorCode.INVALID_REQUEST:
            return InvalidShareState(result.error_message or f"{name}: the coordinator refuses the request")
        case code:
            return CoordinatorNotAvailable(f"the coordinator of {name} answers error {code}")
