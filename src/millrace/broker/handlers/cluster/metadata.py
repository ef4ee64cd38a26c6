"""Metadata and DescribeCluster: who is there, what is there, and where to dial.

Answers about all topics can be large, so their bytes are kept until the cluster changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.broker.handlers.topics.mutations import NO_VERSION, Mutations
from millrace.broker.network.checks import NONE, on_cluster, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.ids import NO_TOPIC_ID, NodeId, TopicId
from millrace.metadata.adoption import KAFKA_METADATA_TOPIC
from millrace.metadata.errors import InvalidTopicName, MetadataError, TopicExists
from millrace.metadata.image import NO_LEADER, Image, PartitionState, TopicState
from millrace.metadata.service import NewTopic
from millrace.metadata.topic_names import check_topic_name, is_internal
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services

LISTENER_ERRORS_FROM: Final = 6
TOPIC_IDS_FROM: Final = 12
BROKER_ENDPOINTS: Final = 1
CONTROLLER_ENDPOINTS: Final = 2


def metadata(
    ctx: RequestContext, request: MetadataRequest
) -> MetadataResponse | bytes | Awaitable[MetadataResponse | bytes]:
    """On a single broker only requests that create topics have to wait; in a cluster all those wait that come
    while leaders are replaced."""
    if ctx.services.failovers is not None:
        return _describe_after_failover(ctx, request)
    return _describe(ctx, request)


async def _describe_after_failover(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse | bytes:
    assert ctx.services.failovers is not None
    await ctx.services.failovers.wait()
    answer = _describe(ctx, request)
    return answer if isinstance(answer, MetadataResponse | bytes) else await answer


def _describe(
    ctx: RequestContext, request: MetadataRequest
) -> MetadataResponse | bytes | Awaitable[MetadataResponse]:
    if request.topics is None:
        return _all_topics(ctx, request)
    if not _is_well_formed(request.topics, ctx.api_version):
        return _malformed(request.topics)
    missing = _creatable(ctx, request.topics) if request.allow_auto_topic_creation else ()
    if missing:
        return _create_and_describe(ctx, request, request.topics, missing)
    return _some_topics(ctx, request, request.topics, {})


def describe_cluster(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is the endpoint of a broker, not of a controller",
        )
    if request.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"there is no endpoint type {request.endpoint_type}",
        )
    image = ctx.services.metadata.image
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=controller_of(ctx.services, image),
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=image.brokers[node_id].rack)
            for node_id, (host, port) in reachable_brokers(ctx, image).items()
        ],
        cluster_authorized_operations=ctx.decisions.told_cluster_operations()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def reachable_brokers(ctx: RequestContext, image: Image) -> dict[NodeId, tuple[str, int]]:
    """Where this client can dial each broker: the listener's advertised address, or the one it dialled."""
    services = ctx.services
    listener = ctx.endpoint.listener
    addresses: dict[NodeId, tuple[str, int]] = {}
    for node_id, broker in image.brokers.items():
        if node_id == services.config.node_id:
            dialled = (ctx.endpoint.local_host, ctx.endpoint.local_port)
            addresses[node_id] = services.config.advertised_listeners.get(listener, dialled)
            continue
        for endpoint in broker.endpoints:
            if endpoint.listener == listener:
                addresses[node_id] = (endpoint.host, endpoint.port)
    return addresses


def reachable_leader(
    partition: PartitionState, brokers: Mapping[NodeId, tuple[str, int]]
) -> tuple[ErrorCode, NodeId]:
    """The leader that a client is told, and why it is told none."""
    leader_id = partition.leader
    if leader_id < 0:
        return ErrorCode.LEADER_NOT_AVAILABLE, leader_id
    if leader_id not in brokers:
        return ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
    return ErrorCode.NONE, leader_id


def controller_of(services: Services, image: Image) -> int:
    # While there is no controller a broker names itself: every broker takes what is meant for the controller,
    # and clients that hear of none would wait for one.
    return services.config.node_id if image.controller_id is None else image.controller_id


def _all_topics(ctx: RequestContext, request: MetadataRequest) -> bytes:
    image = ctx.services.metadata.image
    answers = ctx.services.metadata_answers
    key = (
        ctx.api_version,
        ctx.endpoint.listener,
        ctx.endpoint.local_host,
        ctx.endpoint.local_port,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
        # Where there are permissions, an answer is for those who may see the same.
        ctx.decisions.asker,
    )
    body = answers.find(key, image.topology_revision)
    if body is None:
        brokers = reachable_brokers(ctx, image)
        shows = ctx.decisions.shows
        topics = [
            _topic(image, topic, brokers, ctx.api_version)
            for topic in image.topics.values()
            if shows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
        response = _response(ctx, request, image, brokers, topics)
        body = schema.response_encoder(ApiKey.METADATA, ctx.api_version)(response)
        answers.keep(key, image.topology_revision, body)
    return body


def _is_well_formed(topics: Iterable[MetadataRequestTopic], version: int) -> bool:
    if version < TOPIC_IDS_FROM:
        return all(topic.name is not None and topic.topic_id == NO_TOPIC_ID for topic in topics)
    return all(topic.name is not None or topic.topic_id != NO_TOPIC_ID for topic in topics)


def _malformed(topics: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    code = ErrorCode.INVALID_REQUEST
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in topics
        ]
    )


def _creatable(ctx: RequestContext, topics: Iterable[MetadataRequestTopic]) -> list[str]:
    """The topics that come into being because this request asks for them by a proper name, if its sender
    may see and create them."""
    known = ctx.services.metadata.image.topics
    missing = [
        name
        for name in dict.fromkeys(topic.name for topic in topics if topic.topic_id == NO_TOPIC_ID)
        if name is not None
        and name not in known
        and _is_creatable(name)
        and ctx.decisions.allows_on_topic(Operation.DESCRIBE, name)
        and _may_create(ctx, name)
    ]
    return missing if missing and ctx.services.settings.creates_topics else []


def _may_create(ctx: RequestContext, name: str) -> bool:
    decisions = ctx.decisions
    return decisions.shows_on_cluster(Operation.CREATE) or decisions.allows_on_topic(Operation.CREATE, name)


def _is_creatable(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    # Coordinators create internal topics themselves, with settings of their own.
    return not is_internal(name) and name != KAFKA_METADATA_TOPIC


async def _create_and_describe(
    ctx: RequestContext, request: MetadataRequest, topics: list[MetadataRequestTopic], missing: Sequence[str]
) -> MetadataResponse:
    # Nobody who asks for metadata knows that a quota can be used up: it waits afterwards.
    mutations = Mutations(ctx, refused_from=NO_VERSION)
    _ = mutations.allow(len(missing) * ctx.services.config.policy().num_partitions)
    created = ctx.services.metadata.create_topics([NewTopic(name=name, configs={}) for name in missing])
    failures = {
        name: error_code(outcome)
        for name, outcome in zip(missing, await outcomes_of(created, len(missing)), strict=True)
        # Somebody else may have been faster, which serves as well.
        if isinstance(outcome, MetadataError) and not isinstance(outcome, TopicExists)
    }
    response = _some_topics(ctx, request, topics, failures)
    response.throttle_time_ms = mutations.throttle_ms
    return response


def _some_topics(
    ctx: RequestContext,
    request: MetadataRequest,
    wanted: list[MetadataRequestTopic],
    failures: Mapping[str, ErrorCode],
) -> MetadataResponse:
    image = ctx.services.metadata.image
    brokers = reachable_brokers(ctx, image)
    topics: list[MetadataResponseTopic] = []
    hidden: list[MetadataResponseTopic] = []
    creates = request.allow_auto_topic_creation and ctx.services.settings.creates_topics
    allows = ctx.decisions.allows_on_topic
    for name, topic_id in dict.fromkeys((topic.name, TopicId(topic.topic_id)) for topic in wanted):
        is_by_id = name is None or topic_id != NO_TOPIC_ID
        known = image.topics_by_id.get(topic_id) if is_by_id else image.topics.get(name or "")
        asked = known.name if known is not None else name or ""
        if is_by_id and known is None:
            # Ids are no secret: one that nobody knows is said to be unknown.
            hidden.append(
                MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            )
        elif not allows(Operation.DESCRIBE, asked):
            hidden.append(_hidden_topic(None, topic_id) if is_by_id else _hidden_topic(asked))
        elif known is not None:
            topics.append(_topic(image, known, brokers, ctx.api_version))
        elif creates and _is_creatable(asked) and not _may_create(ctx, asked):
            hidden.append(_hidden_topic(asked))
        else:
            topics.append(_absent_topic(asked, failures))
    response = _response(ctx, request, image, brokers, topics)
    # Behind the others, and without a word on what their sender may do.
    response.topics += hidden
    return response


def _hidden_topic(name: str | None, topic_id: bytes = NO_TOPIC_ID) -> MetadataResponseTopic:
    """What those are told who may not describe a topic. It does not say whether the topic exists."""
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic_id
    )


def _absent_topic(name: str, failures: Mapping[str, ErrorCode]) -> MetadataResponseTopic:
    code = failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        code = error_code(error)
    return MetadataResponseTopic(error_code=code, name=name, is_internal=is_internal(name))


def _topic(
    image: Image, topic: TopicState, brokers: Mapping[NodeId, tuple[str, int]], version: int
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(index, partition, brokers, image.offline_at(topic.topic_id, index), version)
            for index, partition in enumerate(topic.partitions)
        ],
    )


def _partition(
    index: int,
    partition: PartitionState,
    brokers: Mapping[NodeId, tuple[str, int]],
    offline: frozenset[NodeId],
    version: int,
) -> MetadataResponsePartition:
    code, leader_id = reachable_leader(partition, brokers)
    if code is ErrorCode.LISTENER_NOT_FOUND and version < LISTENER_ERRORS_FROM:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[
            node_id for node_id in partition.replicas if node_id not in brokers or node_id in offline
        ],
    )


def _response(
    ctx: RequestContext,
    request: MetadataRequest,
    image: Image,
    brokers: Mapping[NodeId, tuple[str, int]],
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = ctx.decisions.authorized_operations(
                ResourceType.TOPIC, topic.name or ""
            )
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=image.brokers[node_id].rack)
            for node_id, (host, port) in brokers.items()
        ],
        cluster_id=image.cluster_id,
        controller_id=controller_of(ctx.services, image),
        topics=topics,
        cluster_authorized_operations=ctx.decisions.told_cluster_operations()
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


# v1 tells apart "all topics" (null) and "none"; v4 lets clients refuse auto-creation; v5 adds offline
# replicas, v7 leader epochs, v8 permitted operations; v9 is the flexible encoding; v10 adds topic ids to
# answers, v12 to requests; v13 has an error for the whole request.
METADATA: Final = Api(
    ApiKey.METADATA,
    versions=(0, 13),
    handle=metadata,
    checks=(
        on_topic(Operation.DESCRIBE),
        on_cluster(Operation.CREATE, "to create what is missing"),
        on_topic(Operation.CREATE, "or this one"),
    ),
)
# v1 tells brokers from controllers; v2 can include fenced brokers, of which there are none.
DESCRIBE_CLUSTER: Final = Api(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2), handle=describe_cluster, checks=NONE)
