"""DeleteRecords: moving the start of logs. Retention's doing on demand."""

from __future__ import annotations

from typing import Final

from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.log.errors import OffsetOutOfRange
from millrace.metadata.topic_names import is_internal
from millrace.replica.partition import Partition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

UP_TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1


async def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        results = [
            await _delete(ctx, topic.name, wanted.partition_index, wanted.offset)
            for wanted in topic.partitions
        ]
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return response


async def _delete(ctx: RequestContext, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    partition = ctx.services.partitions.find(topic, index)
    if partition is None or not partition.is_leader:
        return _failed(index, ctx.services.absent_partition_error(topic, index))
    if is_internal(topic):
        # What a coordinator has stored is not the user's to delete.
        return _failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    config = partition.log.config
    if config.cleanup_compact and not config.cleanup_delete:
        return _failed(index, ErrorCode.POLICY_VIOLATION)
    try:
        low_watermark = await _move_start(partition, offset)
    except MillraceError as error:
        return _failed(index, error_code(error))
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)


async def _move_start(partition: Partition, offset: int) -> int:
    log = partition.log
    if offset == UP_TO_HIGH_WATERMARK:
        offset = log.high_watermark
    if offset < 0:
        raise OffsetOutOfRange(
            offset, log_start_offset=log.log_start_offset, log_end_offset=log.high_watermark
        )
    before = log.log_start_offset
    after = await log.delete_records_before(offset)
    if after != before:
        # Those who wait to read what is gone must hear of it.
        partition.changed()
    return after


def _failed(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=code
    )


# v2 is the flexible encoding.
DELETE_RECORDS: Final = Api(ApiKey.DELETE_RECORDS, versions=(0, 2), handle=delete_records)
