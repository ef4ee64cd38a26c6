"""DeleteRecords moves the start of logs: what retention does, on demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.broker.network.checks import on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.log.errors import OffsetOutOfRange
from millrace.metadata.topic_names import is_internal
from millrace.replica.partition import Partition
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services

UP_TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


@dataclass(slots=True)
class _Deletion:
    """One partition of a request: what the answer will say of it, and up to where replicas have to delete."""

    topic: str
    result: DeleteRecordsPartitionResult
    partition: Partition
    offset: int


async def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete here, then wait until all replicas have deleted too: after the answer a client may rely on the
    records being gone, whoever leads next."""
    response = DeleteRecordsResponse()
    deletions: list[_Deletion] = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            outcome = await _delete(ctx, topic.name, wanted.partition_index, wanted.offset)
            if isinstance(outcome, _Deletion):
                deletions.append(outcome)
                outcome = outcome.result
            results.append(outcome)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    await _wait_for_replicas(ctx.services, deletions, request.timeout_ms)
    return response


async def _delete(
    ctx: RequestContext, topic: str, index: int, offset: int
) -> _Deletion | DeleteRecordsPartitionResult:
    if not ctx.decisions.allows_on_topic(Operation.DELETE, topic):
        return _failed(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = ctx.services.partitions.find(topic, index)
    if partition is None or not partition.is_leader:
        return _failed(index, ctx.services.absent_partition_error(topic, index))
    if is_internal(topic):
        # What a coordinator has stored is not the user's to delete.
        return _failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    config = partition.log.config
    if config.cleanup_compact and not config.cleanup_delete:
        return _failed(index, ErrorCode.POLICY_VIOLATION)
    if offset == UP_TO_HIGH_WATERMARK:
        offset = partition.log.high_watermark
    try:
        await _move_start(partition, offset)
    except MillraceError as error:
        return _failed(index, error_code(error))
    return _Deletion(topic, DeleteRecordsPartitionResult(partition_index=index), partition, offset)


async def _wait_for_replicas(services: Services, deletions: list[_Deletion], timeout_ms: int) -> None:
    if all(_is_over(services, each) for each in deletions):
        return
    # Fetches of followers, changes of leaders, and brokers that come or go set it.
    news = asyncio.Event()
    unsubscribe = services.metadata.subscribe(lambda _old, _new: news.set())
    for each in deletions:
        each.partition.watch_start(news.set)
    left = deletions
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            while left := [each for each in left if not _is_over(services, each)]:
                news.clear()
                await news.wait()
    except TimeoutError:
        for each in left:
            each.result.error_code = ErrorCode.REQUEST_TIMED_OUT
    finally:
        unsubscribe()
        for each in deletions:
            each.partition.stop_watching_start(news.set)


def _is_over(services: Services, deletion: _Deletion) -> bool:
    """Whether nothing is left to wait for. Replicas whose brokers are gone delete when they come back."""
    partition, result = deletion.partition, deletion.result
    if not partition.is_leader:
        result.error_code = services.absent_partition_error(deletion.topic, partition.index)
        result.low_watermark = NO_LOW_WATERMARK
        return True
    brokers = services.metadata.image.brokers
    result.low_watermark = partition.low_watermark(lambda node_id: NodeId(node_id) in brokers)
    return result.low_watermark >= deletion.offset


async def _move_start(partition: Partition, offset: int) -> None:
    log = partition.log
    if offset < 0:
        raise OffsetOutOfRange(
            offset, log_start_offset=log.log_start_offset, log_end_offset=log.high_watermark
        )
    before = log.log_start_offset
    after = await log.delete_records_before(offset)
    if after != before:
        # Those who wait to read what is gone must hear of it.
        partition.changed()


def _failed(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=code
    )


# v2 is the flexible encoding.
DELETE_RECORDS: Final = Api(
    ApiKey.DELETE_RECORDS, versions=(0, 2), handle=delete_records, checks=(on_topic(Operation.DELETE),)
)
