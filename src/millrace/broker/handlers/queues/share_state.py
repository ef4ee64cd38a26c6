"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: what the leaders of share partitions ask of the coordinator of their state.

Answers name topics and partitions in the order of the request, one for each that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.queues.persister import StateWriteTimedOut
from millrace.broker.wire_errors import error_code
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.errors import MillraceError
from millrace.queues.share_partition.model import Delta, RecordState, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateSummary,
    WriteState,
)
from millrace.queues.state.errors import InvalidShareState
from millrace.queues.state.service import ShareState
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

_STORED: Final = {
    int(state): state for state in RecordState if state not in (RecordState.ACQUIRED, RecordState.TX_PENDING)
}
"""Acquired records are stored as nothing at all."""


class _Shape(NamedTuple):
    """What the answer of an API is made of; all five are built alike."""

    response: Callable[..., Any]
    topic: Callable[..., Any]
    partition: Callable[..., Any]


Ask = Callable[[ShareState, ShareKey, Any], Outcome | Answer]
"""Puts what a request says of one partition to the coordinator."""
Fill = Callable[[Any, Outcome], None]
"""Writes an outcome into the result of a partition."""


def _serve(
    ctx: RequestContext, request: Any, shape: _Shape, ask: Ask, fill: Fill | None = None
) -> Any | Awaitable[Any]:
    if not ctx.decisions.allows_on_cluster(Operation.CLUSTER_ACTION):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _shaped(
            request,
            shape,
            lambda part, _: shape.partition(
                partition=part.partition, error_code=code, error_message=code.message
            ),
        )
    if not request.group_id or not request.topics or not all(topic.partitions for topic in request.topics):
        # Kafka answers nothing at all to a request that lacks something.
        return shape.response()
    states = ctx.services.share_state
    keys = [
        (ShareKey(request.group_id, topic.topic_id, part.partition), part)
        for topic in request.topics
        for part in topic.partitions
    ]
    outcomes = [ask(states, key, part) for key, part in keys]
    if any(isinstance(outcome, asyncio.Future) for outcome in outcomes):
        return _answer_later(request, shape, fill, outcomes, [key for key, _ in keys], states)
    return _answer(request, shape, fill, outcomes)


async def _answer_later(
    request: Any,
    shape: _Shape,
    fill: Fill | None,
    outcomes: Sequence[Outcome | Answer],
    keys: Sequence[ShareKey],
    states: ShareState,
) -> Any:
    timeout_ms = states.settings.write_timeout_ms
    known: list[Outcome] = []
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            for outcome in outcomes:
                if isinstance(outcome, asyncio.Future):
                    # Shielded, since the coordinator sets the result also when nobody waits any more.
                    known.append(await asyncio.shield(outcome))
                else:
                    known.append(outcome)
    except TimeoutError:
        for at in range(len(known), len(outcomes)):
            late = outcomes[at]
            if isinstance(late, asyncio.Future):
                late = late.result() if late.done() else StateWriteTimedOut(keys[at], timeout_ms)
            known.append(late)
    return _answer(request, shape, fill, known)


def _answer(request: Any, shape: _Shape, fill: Fill | None, outcomes: Sequence[Outcome]) -> Any:
    def result_of(part: Any, at: int) -> Any:
        outcome = outcomes[at]
        if isinstance(outcome, MillraceError):
            return shape.partition(
                partition=part.partition, error_code=error_code(outcome), error_message=str(outcome)
            )
        result = shape.partition(partition=part.partition)
        if fill is not None:
            fill(result, outcome)
        return result

    return _shaped(request, shape, result_of)


def _shaped(request: Any, shape: _Shape, result_of: Callable[[Any, int], Any]) -> Any:
    results, at = [], 0
    for topic in request.topics:
        partitions = []
        for part in topic.partitions:
            partitions.append(result_of(part, at))
            at += 1
        results.append(shape.topic(topic_id=topic.topic_id, partitions=partitions))
    return shape.response(results=results)


# Initializing.


def _initialize(states: ShareState, key: ShareKey, part: Any) -> Outcome | Answer:
    return states.submit(key, InitializeState(key, part.state_epoch, part.start_offset))


def initialize_state(
    ctx: RequestContext, request: initialize_share_group_state.InitializeShareGroupStateRequest
) -> Any | Awaitable[Any]:
    return _serve(ctx, request, _INITIALIZED, _initialize)


# Reading.


def _read(states: ShareState, key: ShareKey, part: Any) -> Outcome | Answer:
    return states.submit(key, ReadState(key, part.leader_epoch))


def _fill_state(result: Any, outcome: Outcome) -> None:
    assert isinstance(outcome, StoredState), outcome
    result.state_epoch, result.start_offset = outcome.state_epoch, outcome.start_offset
    result.state_batches = [
        read_share_group_state.StateBatch(
            first_offset=first,
            last_offset=last,
            delivery_state=state,
            delivery_count=count,
            not_before_ms=not_before_ms,
        )
        for first, last, state, count, not_before_ms in outcome.batches
    ]


def read_state(
    ctx: RequestContext, request: read_share_group_state.ReadShareGroupStateRequest
) -> Any | Awaitable[Any]:
    return _serve(ctx, request, _READ, _read, _fill_state)


# Writing.


def _write(states: ShareState, key: ShareKey, part: Any) -> Outcome | Answer:
    batches = []
    for batch in part.state_batches:
        state = _STORED.get(batch.delivery_state)
        if state is None:
            allowed = sorted(_STORED)
            return InvalidShareState(
                f"state {batch.delivery_state} of a record cannot be stored; allowed are {allowed}"
            )
        if not 0 <= batch.first_offset <= batch.last_offset:
            return InvalidShareState(f"offsets {batch.first_offset} to {batch.last_offset} are no range")
        batches.append(
            StateBatch(
                batch.first_offset, batch.last_offset, state, batch.delivery_count, batch.not_before_ms
            )
        )
    if key.partition < 0:
        return InvalidShareState(f"{key.partition} is no number of a partition")
    delta = Delta(part.start_offset, part.delivery_complete_count, tuple(batches))
    return states.write(WriteState(key, part.state_epoch, part.leader_epoch, delta))


def write_state(
    ctx: RequestContext, request: write_share_group_state.WriteShareGroupStateRequest
) -> Any | Awaitable[Any]:
    return _serve(ctx, request, _WRITTEN, _write)


# Deleting.


def _delete(states: ShareState, key: ShareKey, _part: Any) -> Outcome | Answer:
    return states.submit(key, DeleteState(key))


def delete_state(
    ctx: RequestContext, request: delete_share_group_state.DeleteShareGroupStateRequest
) -> Any | Awaitable[Any]:
    return _serve(ctx, request, _DELETED, _delete)


# Summing up.


def _sum_up(states: ShareState, key: ShareKey, _part: Any) -> Outcome | Answer:
    return states.submit(key, ReadSummary(key))


def _fill_summary(result: Any, outcome: Outcome) -> None:
    assert isinstance(outcome, StateSummary), outcome
    result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count = outcome


def read_summary(
    ctx: RequestContext, request: read_share_group_state_summary.ReadShareGroupStateSummaryRequest
) -> Any | Awaitable[Any]:
    return _serve(ctx, request, _SUMMED_UP, _sum_up, _fill_summary)


_INITIALIZED: Final = _Shape(
    initialize_share_group_state.InitializeShareGroupStateResponse,
    initialize_share_group_state.InitializeStateResult,
    initialize_share_group_state.PartitionResult,
)
_READ: Final = _Shape(
    read_share_group_state.ReadShareGroupStateResponse,
    read_share_group_state.ReadStateResult,
    read_share_group_state.PartitionResult,
)
_WRITTEN: Final = _Shape(
    write_share_group_state.WriteShareGroupStateResponse,
    write_share_group_state.WriteStateResult,
    write_share_group_state.PartitionResult,
)
_DELETED: Final = _Shape(
    delete_share_group_state.DeleteShareGroupStateResponse,
    delete_share_group_state.DeleteStateResult,
    delete_share_group_state.PartitionResult,
)
_SUMMED_UP: Final = _Shape(
    read_share_group_state_summary.ReadShareGroupStateSummaryResponse,
    read_share_group_state_summary.ReadStateSummaryResult,
    read_share_group_state_summary.PartitionResult,
)
_BROKERS_ONLY: Final = (on_cluster(Operation.CLUSTER_ACTION),)

# v1 of writing and of the summary adds the count of records that are done.
SHARE_STATE_APIS: Final[tuple[Api, ...]] = (
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), handle=initialize_state, checks=_BROKERS_ONLY),
    Api(ApiKey.READ_SHARE_GROUP_STATE, versions=(0, 0), handle=read_state, checks=_BROKERS_ONLY),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, versions=(0, 1), handle=write_state, checks=_BROKERS_ONLY),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, versions=(0, 0), handle=delete_state, checks=_BROKERS_ONLY),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), handle=read_summary, checks=_BROKERS_ONLY),
)
