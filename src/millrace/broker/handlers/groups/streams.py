"""StreamsGroupHeartbeat: members of streams groups (KIP-1071), and the internal topics that they need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.broker.handlers.topics.mutations import NO_VERSION, Mutations
from millrace.broker.network.checks import on_cluster, on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.errors import MillraceError
from millrace.groups.errors import InvalidTopology
from millrace.groups.streams.commands import (
    JOINING,
    Endpoint,
    NewInternalTopic,
    Status,
    StatusCode,
    StreamsBeat,
    StreamsHeartbeat,
    TaskIds,
)
from millrace.groups.streams.tasks import Role, of_role
from millrace.groups.streams.topology import named_topics
from millrace.metadata.adoption import KAFKA_METADATA_TOPIC
from millrace.metadata.errors import InvalidTopicName, MetadataError, TopicExists
from millrace.metadata.service import NewTopic
from millrace.metadata.topic_names import AUDIT_TOPIC, check_topic_name, is_internal
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import streams_group_heartbeat as wire
from millrace.wire.messages import streams_group_records as stored

FAILURES_SHOWN_MAX: Final = 3
"""How many topics that could not be created a member is told of."""


def streams_group_heartbeat(
    ctx: RequestContext, request: wire.StreamsGroupHeartbeatRequest
) -> wire.StreamsGroupHeartbeatResponse | Awaitable[wire.StreamsGroupHeartbeatResponse]:
    if not ctx.decisions.allows_on_group(Operation.READ, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    command = _command(ctx, request)
    if command.topology is not None:
        names = named_topics(command.topology)
        improper = _improper_topics(names)
        if improper is not None:
            return _beaten(improper)
        if not all(ctx.decisions.allows_on_topic(Operation.DESCRIBE, name) for name in names):
            return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    outcome = ctx.services.groups.submit(command.group_id, command)
    if isinstance(outcome, asyncio.Future) or _missing_topics(outcome):
        return _heartbeat_with_topics(ctx, command, outcome)
    return _beaten(outcome)


def _missing_topics(outcome: Outcome) -> tuple[NewInternalTopic, ...]:
    return outcome.missing_topics if isinstance(outcome, StreamsBeat) else ()


async def _heartbeat_with_topics(
    ctx: RequestContext, command: StreamsHeartbeat, answer: Outcome | Answer
) -> wire.StreamsGroupHeartbeatResponse:
    """Wait for the outcome, and create the topics that it says are missing."""
    outcome: Outcome = await answer if isinstance(answer, asyncio.Future) else answer
    missing = _missing_topics(outcome)
    if not missing:
        return _beaten(outcome)
    assert isinstance(outcome, StreamsBeat), outcome
    mutations = Mutations(ctx, refused_from=NO_VERSION)
    failures = await _create(ctx, missing, mutations)
    if failures:
        outcome = outcome._replace(statuses=tuple(_with_detail(each, failures) for each in outcome.statuses))
    elif command.member_epoch == JOINING:
        # Who joins may say so twice: now that its topics are there, it need not wait for its next heartbeat.
        again = ctx.services.groups.submit(command.group_id, command)
        outcome = await again if isinstance(again, asyncio.Future) else again
    response = _beaten(outcome)
    response.throttle_time_ms = mutations.throttle_ms
    return response


def _with_detail(status: Status, detail: str) -> Status:
    is_about_topics = status.code is StatusCode.MISSING_INTERNAL_TOPICS
    return status._replace(detail=f"{status.detail}; {detail}") if is_about_topics else status


# Internal topics.


def _improper_topics(names: Sequence[str]) -> InvalidTopology | None:
    """Why a topology may not name these topics, or None."""
    reserved = [name for name in names if is_internal(name) or name in (AUDIT_TOPIC, KAFKA_METADATA_TOPIC)]
    if reserved:
        listed = ",".join(reserved)
        return InvalidTopology(f"Use of internal topics {listed} in a Kafka Streams topology is prohibited.")
    invalid = [name for name in names if not _is_proper(name)]
    return InvalidTopology(f"Topic names {','.join(invalid)} are not valid topic names.") if invalid else None


def _is_proper(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return False
    return True


async def _create(ctx: RequestContext, topics: Sequence[NewInternalTopic], mutations: Mutations) -> str:
    """Create the internal topics of a group; returns what kept some of them from being created, or ""."""
    decisions = ctx.decisions
    if not decisions.shows_on_cluster(Operation.CREATE):
        refused = [each.name for each in topics if not decisions.allows_on_topic(Operation.CREATE, each.name)]
        if refused:
            return f"Unauthorized to CREATE on topics {', '.join(refused)}."
    # Members of streams groups know no refusal by a quota: they wait afterwards.
    _ = mutations.allow(sum(each.partition_count for each in topics))
    created = ctx.services.metadata.create_topics(
        [
            NewTopic(
                name=each.name,
                partition_count=each.partition_count,
                replication_factor=each.replication_factor,
                configs=each.configs,
            )
            for each in topics
        ]
    )
    failures = [
        f"{topic.name} ({outcome})"
        for topic, outcome in zip(topics, await outcomes_of(created, len(topics)), strict=True)
        # Another member may have been faster, which serves as well.
        if isinstance(outcome, MetadataError) and not isinstance(outcome, TopicExists)
    ]
    if not failures:
        return ""
    more = len(failures) - FAILURES_SHOWN_MAX
    shown = ", ".join(failures[:FAILURES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"Creation failed: {shown}."


# Requests and responses.


def _command(ctx: RequestContext, request: wire.StreamsGroupHeartbeatRequest) -> StreamsHeartbeat:
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.endpoint_information_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if request.topology is None else _topology(request.topology),
        _task_ids(request.active_tasks),
        _task_ids(request.standby_tasks),
        _task_ids(request.warmup_tasks),
        request.process_id,
        None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        None if tags is None else {tag.key: tag.value for tag in tags},
        request.task_offsets is not None or request.task_end_offsets is not None,
        request.shutdown_application,
        ctx.client_id or "",
        "/" + ctx.endpoint.peer_host,
    )


def _task_ids(tasks: Sequence[wire.StreamsGroupHeartbeatRequestTaskIds] | None) -> TaskIds | None:
    return None if tasks is None else [(each.subtopology_id, each.partitions) for each in tasks]


def _topology(topology: wire.Topology) -> stored.StreamsGroupTopologyValue:
    """The topology as it is stored."""
    return stored.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            stored.Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                source_topic_regex=each.source_topic_regex,
                state_changelog_topics=_topics(each.state_changelog_topics),
                repartition_sink_topics=each.repartition_sink_topics,
                repartition_source_topics=_topics(each.repartition_source_topics),
                copartition_groups=[
                    stored.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _topics(topics: Sequence[wire.TopicInfo]) -> list[stored.TopicInfo]:
    return [
        stored.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[
                stored.TopicConfig(key=config.key, value=config.value) for config in topic.topic_configs
            ],
        )
        for topic in topics
    ]


def _refused(code: ErrorCode) -> wire.StreamsGroupHeartbeatResponse:
    return wire.StreamsGroupHeartbeatResponse(error_code=code, error_message=code.message)


def _beaten(outcome: Outcome) -> wire.StreamsGroupHeartbeatResponse:
    if isinstance(outcome, MillraceError):
        return wire.StreamsGroupHeartbeatResponse(
            error_code=error_code(outcome), error_message=error_message(outcome)
        )
    assert isinstance(outcome, StreamsBeat), outcome
    active, standby, warmup = (_assigned(outcome, role) for role in Role)
    return wire.StreamsGroupHeartbeatResponse(
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        status=[_status(status) for status in outcome.statuses],
        active_tasks=active,
        standby_tasks=standby,
        warmup_tasks=warmup,
        endpoint_information_epoch=outcome.endpoint_epoch,
        partitions_by_user_endpoint=_endpoints(outcome),
    )


def _status(status: Status) -> wire.Status:
    return wire.Status(status_code=status.code, status_detail=status.detail)


def _assigned(outcome: StreamsBeat, role: Role) -> list[wire.StreamsGroupHeartbeatResponseTaskIds] | None:
    if outcome.tasks is None:
        return None
    return [
        wire.StreamsGroupHeartbeatResponseTaskIds(subtopology_id=subtopology, partitions=numbers)
        for subtopology, numbers in of_role(outcome.tasks, role)
    ]


def _endpoints(outcome: StreamsBeat) -> list[wire.EndpointToPartitions] | None:
    if outcome.endpoints is None:
        return None
    return [
        wire.EndpointToPartitions(
            user_endpoint=wire.StreamsGroupHeartbeatResponseEndpoint(
                host=each.endpoint.host, port=each.endpoint.port
            ),
            active_partitions=_partitions(each.active),
            standby_partitions=_partitions(each.standby),
        )
        for each in outcome.endpoints
    ]


def _partitions(partitions: Sequence[tuple[str, Sequence[int]]]) -> list[wire.TopicPartition]:
    return [wire.TopicPartition(topic=topic, partitions=list(numbers)) for topic, numbers in partitions]


STREAMS_GROUP_HEARTBEAT: Final = Api(
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    versions=(0, 0),
    handle=streams_group_heartbeat,
    checks=(
        on_group(Operation.READ),
        on_topic(Operation.DESCRIBE, "of those in its topology"),
        on_cluster(Operation.CREATE, "for all missing internal topics"),
        on_topic(Operation.CREATE, "else for each"),
    ),
)
