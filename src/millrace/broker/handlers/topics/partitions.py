"""DescribeTopicPartitions: topics in the order of their names, page by page, with a cursor in between."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.cluster.metadata import reachable_brokers, reachable_leader
from millrace.broker.network.checks import on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.ids import NodeId
from millrace.metadata.errors import InvalidTopicName
from millrace.metadata.image import NO_LEADER, Image, PartitionState, TopicState
from millrace.metadata.topic_names import check_topic_name, is_internal
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = ctx.services.metadata.image
    found = _wanted(image, request)
    if found is None:
        return _refused(request)
    # Who asks for all topics asks for none by its name.
    allows = ctx.decisions.allows if request.topics else ctx.decisions.shows
    names = [name for name in found if allows(Operation.DESCRIBE, ResourceType.TOPIC, name)]
    limit = ctx.services.settings.described_partitions_max
    left = max(1, min(limit, request.response_partition_limit))
    reachable = reachable_brokers(ctx, image)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_absent(ctx, name))
            continue
        first = (
            0
            if request.cursor is None or request.cursor.topic_name != name
            else request.cursor.partition_index
        )
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=first
            )
            break
        stop = min(first + left, len(topic.partitions))
        response.topics.append(_topic(ctx, image, topic, range(first, stop), reachable))
        left -= max(0, stop - first)
        if stop < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=stop
            )
            break
    if request.topics:
        # Whether they exist is nobody's business who may not describe them.
        shown = set(names)
        response.topics += [_hidden(name) for name in found if name not in shown]
    return response


def _wanted(image: Image, request: DescribeTopicPartitionsRequest) -> list[str] | None:
    """The names of this page and all later ones in order, or None if the cursor does not fit the question."""
    names = sorted({topic.name for topic in request.topics} or image.topics)
    cursor = request.cursor
    if cursor is None:
        return names
    if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
        return None
    return [name for name in names if name >= cursor.topic_name]


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ]
    )


def _hidden(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_authorized_operations=NOT_ASKED
    )


def _absent(ctx: RequestContext, name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        code = error_code(error)
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=ctx.decisions.authorized_operations(ResourceType.TOPIC, name),
    )


def _topic(
    ctx: RequestContext,
    image: Image,
    topic: TopicState,
    indexes: range,
    reachable: dict[NodeId, tuple[str, int]],
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(index, topic.partitions[index], reachable, image.offline_at(topic.topic_id, index))
            for index in indexes
        ],
        topic_authorized_operations=ctx.decisions.authorized_operations(ResourceType.TOPIC, topic.name),
    )


def _partition(
    index: int,
    partition: PartitionState,
    reachable: dict[NodeId, tuple[str, int]],
    offline: frozenset[NodeId],
) -> DescribeTopicPartitionsResponsePartition:
    code, leader_id = reachable_leader(partition, reachable)
    return DescribeTopicPartitionsResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.eligible),
        last_known_elr=[] if partition.last_leader == NO_LEADER else [partition.last_leader],
        offline_replicas=[
            node_id for node_id in partition.replicas if node_id not in reachable or node_id in offline
        ],
    )


DESCRIBE_TOPIC_PARTITIONS: Final = Api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    handle=describe_topic_partitions,
    checks=(on_topic(Operation.DESCRIBE),),
)
