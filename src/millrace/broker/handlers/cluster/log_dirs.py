"""DescribeLogDirs, AlterReplicaLogDirs and DescribeProducers: what is on this broker's disks, where, and who
wrote it."""

from __future__ import annotations

from typing import Final

from millrace.broker.network.checks import on_cluster, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.directories.moving import LogCopy
from millrace.log.partition.partition_log import PartitionLog
from millrace.metadata.topic_names import check_topic_name
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
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
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return DescribeLogDirsResponse(
        results=[_describe(ctx, directory, request.topics) for directory in ctx.services.log_directories.all]
    )


def _describe(
    ctx: RequestContext, directory: LogDirectory, wanted: list[DescribableLogDirTopic] | None
) -> DescribeLogDirsResult:
    if directory.offline_reason is not None:
        return DescribeLogDirsResult(log_dir=directory.path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    result = DescribeLogDirsResult(log_dir=directory.path, topics=_sizes(ctx, directory, wanted))
    try:
        result.total_bytes = directory.total_bytes()
        result.usable_bytes = directory.free_bytes()
    except MillraceError:
        # The sizes of the logs are known all the same.
        result.total_bytes = result.usable_bytes = UNKNOWN_SIZE
    return result


def _sizes(
    ctx: RequestContext, directory: LogDirectory, wanted: list[DescribableLogDirTopic] | None
) -> list[DescribeLogDirsTopic]:
    """The logs asked for, as far as they are here or on their way; null asks for all."""
    moves = ctx.services.log_directories.mover.moves
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    if wanted is None:
        chosen = [*directory.logs, *(name for name in directory.arriving if name not in directory.logs)]
    else:
        named = (TopicPartition(topic.topic, index) for topic in wanted for index in topic.partitions)
        chosen = list(dict.fromkeys(named))
    for name in chosen:
        found = []
        log = directory.logs.get(name)
        if log is not None:
            found.append(_size(name.partition, log))
        move = moves.get(name)
        if move is not None and move.copy.target is directory:
            found.append(_arriving(name.partition, move.copy))
        if found:
            topics.setdefault(name.topic, []).extend(found)
    return [DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()]


def _size(index: int, log: PartitionLog) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=index,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.high_watermark - log.log_end_offset),
    )


def _arriving(index: int, copy: LogCopy) -> DescribeLogDirsPartition:
    """A log that is being copied from another directory."""
    return DescribeLogDirsPartition(
        partition_index=index,
        partition_size=copy.copied_bytes,
        offset_lag=max(0, copy.log.log_end_offset - copy.end_offset),
        is_future_key=True,
    )


def alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin moves between directories. They go on in the background; DescribeLogDirs tells how far."""
    is_allowed = ctx.decisions.allows_on_cluster(Operation.ALTER)
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = _alter(ctx, wanted.path, TopicPartition(topic.name, index))
                topics.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=results)
            for name, results in topics.items()
        ]
    )


def _alter(ctx: RequestContext, path: str, name: TopicPartition) -> ErrorCode:
    directories = ctx.services.log_directories
    try:
        target = directories.at(path)
        if target.offline_reason is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if directories.get(name) is not None:
            directories.move(name, target)
            return ErrorCode.NONE
    except MillraceError as error:
        return error_code(error)
    code = ctx.services.absent_partition_error(*name)
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        # If the partition ever comes to this broker, its log will be made in that directory.
        directories.prefer(name, target)
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return code


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
        is_allowed = ctx.decisions.allows_on_topic(Operation.READ, topic)
        partition = ctx.services.partitions.find(topic, index)
        if not is_allowed or partition is None or not partition.is_leader:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if is_allowed:
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


# v2 is the flexible encoding.
ALTER_REPLICA_LOG_DIRS: Final = Api(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    handle=alter_replica_log_dirs,
    checks=(on_cluster(Operation.ALTER),),
)
# v2 is the flexible encoding; v3 adds an error for the whole request, v4 the size of the disk, v5 whether it
# is cordoned.
DESCRIBE_LOG_DIRS: Final = Api(
    ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    handle=describe_log_dirs,
    checks=(on_cluster(Operation.DESCRIBE),),
)
DESCRIBE_PRODUCERS: Final = Api(
    ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), handle=describe_producers, checks=(on_topic(Operation.READ),)
)
