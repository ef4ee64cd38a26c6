"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker: shaping only, the
rules are the metadata's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.ids import NodeId
from millrace.metadata.commands import ElectionKind, Reassign
from millrace.metadata.errors import ElectionNotNeeded, MetadataError
from millrace.metadata.image import NO_LEADER, Image, PartitionState
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from millrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from millrace.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from millrace.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def elect_leaders(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if not ctx.decisions.allows_on_cluster(Operation.ALTER):
        return _no_election(request)
    metadata = ctx.services.metadata
    if request.election_type not in list(ElectionKind):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    kind = ElectionKind(request.election_type)
    if request.topic_partitions is None:
        partitions = _in_need(metadata.image, kind)
    else:
        named = {
            (topic.topic, partition): None
            for topic in request.topic_partitions
            for partition in topic.partitions
        }
        partitions = list(named)
    outcomes = await outcomes_of(metadata.elect(partitions, kind), len(partitions))
    results: dict[str, list[PartitionResult]] = {}
    for (topic, partition), outcome in zip(partitions, outcomes, strict=True):
        if request.topic_partitions is None and isinstance(outcome, ElectionNotNeeded):
            # A client that asks for all partitions hears of those where something happened.
            continue
        results.setdefault(topic, []).append(_elected(partition, outcome))
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=found) for topic, found in results.items()
        ]
    )


def _no_election(request: ElectLeadersRequest) -> ElectLeadersResponse:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=partition, error_code=code, error_message=code.message)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _in_need(image: Image, kind: ElectionKind) -> list[tuple[str, int]]:
    def needs(state: PartitionState) -> bool:
        if kind is ElectionKind.PREFERRED:
            return state.leader != state.replicas[0]
        return state.leader == NO_LEADER or state.leader not in image.brokers

    return [
        (topic.name, number)
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if needs(state)
    ]


def _elected(partition: int, outcome: MetadataError | None) -> PartitionResult:
    if outcome is None:
        return PartitionResult(partition_id=partition, error_message=None)
    return PartitionResult(
        partition_id=partition, error_code=error_code(outcome), error_message=error_message(outcome)
    )


async def alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not ctx.decisions.allows_on_cluster(Operation.ALTER):
        return _no_reassignment(request)
    commands = [
        Reassign(
            topic=topic.name,
            partition=partition.partition_index,
            replicas=partition.replicas,
            is_factor_change_allowed=request.allow_replication_factor_change,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    outcomes = await outcomes_of(ctx.services.metadata.reassign(commands), len(commands))
    topics: dict[str, list[ReassignablePartitionResponse]] = {topic.name: [] for topic in request.topics}
    for command, outcome in zip(commands, outcomes, strict=True):
        topics[command.topic].append(_reassigned(command.partition, outcome))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(name=name, partitions=results) for name, results in topics.items()
        ],
    )


def _no_reassignment(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=code.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=code.message,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _reassigned(partition: int, outcome: MetadataError | None) -> ReassignablePartitionResponse:
    if outcome is None:
        return ReassignablePartitionResponse(partition_index=partition, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=partition, error_code=error_code(outcome), error_message=error_message(outcome)
    )


def list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE):
        return _nothing_listed(request)
    image = ctx.services.metadata.image
    wanted: Iterable[tuple[str, Sequence[int] | None]]
    if request.topics is None:
        wanted = ((name, None) for name in image.topics)
    else:
        wanted = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = []
    for name, numbers in wanted:
        moving = _moving(image, name, numbers)
        if moving:
            topics.append(OngoingTopicReassignment(name=name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _nothing_listed(request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ListPartitionReassignmentsResponse(
        error_code=code,
        error_message=code.message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def _moving(image: Image, name: str, numbers: Sequence[int] | None) -> list[OngoingPartitionReassignment]:
    topic = image.topics.get(name)
    if topic is None:
        return []
    return [
        OngoingPartitionReassignment(
            partition_index=number,
            replicas=list(state.replicas),
            adding_replicas=list(state.adding),
            removing_replicas=list(state.removing),
        )
        for number, state in enumerate(topic.partitions)
        if (state.adding or state.removing) and (numbers is None or number in numbers)
    ]


async def unregister_broker(
    ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    if not ctx.decisions.allows_on_cluster(Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UnregisterBrokerResponse(error_code=code, error_message=code.message)
    try:
        await ctx.services.metadata.remove_member(NodeId(request.broker_id))
    except MetadataError as error:
        return UnregisterBrokerResponse(error_code=error_code(error), error_message=error_message(error))
    return UnregisterBrokerResponse(error_message=None)


# v1 can also elect replicas that are not in sync, and has an error for the whole request.
ELECT_LEADERS = Api(
    ApiKey.ELECT_LEADERS, versions=(0, 2), handle=elect_leaders, checks=(on_cluster(Operation.ALTER),)
)
# v1 can forbid a change of the replication factor.
ALTER_PARTITION_REASSIGNMENTS = Api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    handle=alter_partition_reassignments,
    checks=(on_cluster(Operation.ALTER),),
)
LIST_PARTITION_REASSIGNMENTS = Api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    handle=list_partition_reassignments,
    checks=(on_cluster(Operation.DESCRIBE),),
)
UNREGISTER_BROKER = Api(
    ApiKey.UNREGISTER_BROKER, versions=(0, 0), handle=unregister_broker, checks=(on_cluster(Operation.ALTER),)
)
