"""ListOffsets and OffsetForLeaderEpoch: where a log begins and ends, by time and by leader epoch."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.network.checks import on_cluster, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH
from millrace.log.errors import CorruptLog, FileMissing
from millrace.log.partition.isolation import isolate_in, may_go_on
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.time_lookup import TimestampedOffset
from millrace.replica.partition import Partition
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import READ_COMMITTED
from millrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_KNOWN_FROM_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
OFFSET_NOT_AVAILABLE_FROM: Final = 5
_NOTHING: Final = TimestampedOffset(-1, -1, NO_EPOCH)


async def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    seen: dict[tuple[str, int], None] = {}
    twice: dict[tuple[str, int], None] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            place = (topic.name, wanted.partition_index)
            (twice if place in seen else seen)[place] = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.timeout_ms / 1000 if request.timeout_ms > 0 else None
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers: dict[int, ListOffsetsPartitionResponse] = {}
        is_allowed = ctx.decisions.allows_on_topic(Operation.DESCRIBE, topic.name)
        for wanted in topic.partitions:
            index = wanted.partition_index
            if not is_allowed:
                answers[index] = _failed(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif (topic.name, index) in twice:
                answers[index] = _failed(index, ErrorCode.INVALID_REQUEST)
            else:
                committed_only = request.isolation_level == READ_COMMITTED
                answers[index] = await _offset(ctx, topic.name, wanted, committed_only, deadline)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=list(answers.values())))
    return response


async def _offset(
    ctx: RequestContext,
    topic: str,
    wanted: ListOffsetsPartition,
    committed_only: bool,
    deadline: float | None,
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    if wanted.timestamp < 0 and ctx.api_version < _KNOWN_FROM_VERSION.get(wanted.timestamp, 2**15):
        return _failed(index, ErrorCode.UNSUPPORTED_VERSION)
    partition = ctx.services.partitions.find(topic, index)
    if partition is None:
        return _failed(index, ctx.services.absent_partition_error(topic, index))
    try:
        partition.check_epoch(wanted.current_leader_epoch)
        partition.refuse_unless_leader()
        if wanted.timestamp == LATEST and not partition.knows_its_end:
            # An earlier leader may have acknowledged records above what this one knows to be committed.
            is_known = ctx.api_version >= OFFSET_NOT_AVAILABLE_FROM
            return _failed(
                index, ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
            )
        async with asyncio.timeout_at(deadline):
            found = await _look_up(partition, wanted.timestamp, committed_only)
    except TimeoutError:
        return _failed(index, ErrorCode.REQUEST_TIMED_OUT)
    except MillraceError as error:
        return _failed(index, error_code(error))
    return ListOffsetsPartitionResponse(
        partition_index=index, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


async def _look_up(partition: Partition, timestamp: int, committed_only: bool) -> TimestampedOffset:
    """The record asked for, where there is one; the ends of a log have no timestamp."""
    log = partition.log
    end = log.last_stable_offset if committed_only else log.high_watermark
    if timestamp == LATEST:
        return TimestampedOffset(-1, end, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        # The next record at the end of the log will be of the present leader's epoch.
        epoch = partition.leader_epoch if start == log.log_end_offset else log.epochs.epoch_at(start)
        return TimestampedOffset(-1, start, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # Nothing is tiered, so no record is the last or first of its kind.
        return _NOTHING
    found = await _search(log, timestamp)
    if found is None or found.offset >= end:
        return _NOTHING
    return found


async def _search(log: PartitionLog, timestamp: int) -> TimestampedOffset | None:
    """Look a timestamp up. Threads do that and change nothing: the damage that they find is isolated here,
    and the search goes past it."""
    met: list[tuple[str, int]] = []
    while True:
        try:
            if timestamp == MAX_TIMESTAMP:
                return await log.find_max_timestamp()
            return await log.find_offset_by_timestamp(timestamp)
        except (CorruptLog, FileMissing) as error:
            if not may_go_on(met, error) or not isolate_in(log, error):
                raise


def _failed(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)


def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    is_broker = ctx.decisions.shows_on_cluster(Operation.CLUSTER_ACTION)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _epoch_end(ctx, topic.topic, wanted)
                    if is_broker or ctx.decisions.allows_on_topic(Operation.DESCRIBE, topic.topic)
                    else EpochEndOffset(
                        partition=wanted.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    index = wanted.partition
    partition = ctx.services.partitions.find(topic, index)
    if partition is None:
        return EpochEndOffset(partition=index, error_code=ctx.services.absent_partition_error(topic, index))
    try:
        partition.check_epoch(wanted.current_leader_epoch)
        partition.refuse_unless_leader()
        epoch, end_offset = partition.epoch_end_offset(wanted.leader_epoch)
    except MillraceError as error:
        return EpochEndOffset(partition=index, error_code=error_code(error))
    return EpochEndOffset(partition=index, leader_epoch=epoch, end_offset=end_offset)


# v2 adds the isolation level, v4 leader epochs; v6 is the flexible encoding; v7, v8, v9 and v11 add one
# special timestamp each, v10 a time-out.
LIST_OFFSETS: Final = Api(
    ApiKey.LIST_OFFSETS, versions=(1, 11), handle=list_offsets, checks=(on_topic(Operation.DESCRIBE),)
)
# v3 adds the asking replica, v4 is the flexible encoding.
OFFSET_FOR_LEADER_EPOCH: Final = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    handle=offset_for_leader_epoch,
    checks=(on_cluster(Operation.CLUSTER_ACTION), on_topic(Operation.DESCRIBE, "or this one")),
)
