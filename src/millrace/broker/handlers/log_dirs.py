"""DescribeLogDirs and DescribeProducers: what is on this broker's disks, and who wrote it."""

from __future__ import annotations

from typing import Final

from millrace.broker.context import RequestContext
from millrace.broker.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.log.partition_log import PartitionLog
from millrace.metadata.topic_names import check_topic_name
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millrace.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

UNKNOWN_SIZE: Final = -1


def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    directory = ctx.services.log_directory
    if directory.offline_reason is not None:
        offline = DescribeLogDirsResult(log_dir=directory.path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        return DescribeLogDirsResponse(results=[offline])
    result = DescribeLogDirsResult(log_dir=directory.path, topics=_sizes(ctx, request.topics))
    try:
        result.total_bytes = directory.total_bytes()
        result.usable_bytes = directory.free_bytes()
    except MillraceError:
        # The sizes of the logs are known all the same.
        result.total_bytes = result.usable_bytes = UNKNOWN_SIZE
    return DescribeLogDirsResponse(results=[result])


def _sizes(ctx: RequestContext, wanted: list[DescribableLogDirTopic] | None) -> list[DescribeLogDirsTopic]:
    """The logs asked for, as far as they are here; null asks for all."""
    held = ctx.services.partitions.by_name
    chosen = (
        {name: tuple(by_index) for name, by_index in held.items()}
        if wanted is None
        else {topic.topic: tuple(dict.fromkeys(topic.partitions)) for topic in wanted}
    )
    topics = []
    for name, indexes in chosen.items():
        by_index = held.get(name, {})
        partitions = [_size(index, by_index[index].log) for index in indexes if index in by_index]
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    return topics


def _size(index: int, log: PartitionLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=index,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.high_watermark - log.log_end_offset),
    )


def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_producers(ctx, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _producers(ctx: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        check_topic_name(topic)
        partition = ctx.services.partitions.find(topic, index)
        if partition is None or not partition.is_leader:
            code = ctx.services.absent_partition_error(topic, index)
            return PartitionResponse(partition_index=index, error_code=code, error_message=code.message)
        active = partition.log.producers.entries
    except MillraceError as error:
        return PartitionResponse(
            partition_index=index, error_code=error_code(error), error_message=error_message(error)
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for producer_id, entry in active.items()
        ],
    )


# v2 is the flexible encoding, v3 has an error for all, v4 the size of the disk, v5 whether it is cordoned.
DESCRIBE_LOG_DIRS: Final = Api(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5), handle=describe_log_dirs)
DESCRIBE_PRODUCERS: Final = Api(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), handle=describe_producers)
