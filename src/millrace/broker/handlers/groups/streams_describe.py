"""StreamsGroupDescribe: topology, members and tasks of streams groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.groups.errors import GroupNotFound, InvalidTopology
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.plan import plan
from millrace.groups.streams.tasks import Role, TaskPlace, of_role
from millrace.groups.streams.topology import Topology, named_topics
from millrace.metadata.image import Image
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import streams_group_describe as described
from millrace.wire.messages import streams_group_records as stored


def streams_group_describe(
    ctx: RequestContext, request: described.StreamsGroupDescribeRequest
) -> described.StreamsGroupDescribeResponse:
    response = described.StreamsGroupDescribeResponse()
    for group_id in request.group_ids:
        group = _described(ctx, group_id)
        group.authorized_operations = NOT_ASKED
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = ctx.decisions.authorized_operations(ResourceType.GROUP, group_id)
        response.groups.append(group)
    return response


def _described(ctx: RequestContext, group_id: str) -> described.DescribedGroup:
    if not ctx.decisions.allows_on_group(Operation.DESCRIBE, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return described.DescribedGroup(group_id=group_id, error_code=code, error_message=code.message)
    machine = ctx.services.groups.machine_of(group_id)
    if isinstance(machine, MillraceError):
        return _failed(group_id, machine)
    group = machine.groups.get(group_id)
    if not isinstance(group, StreamsGroup):
        reason = "not found" if group is None else "is not a streams group"
        return _failed(group_id, GroupNotFound(group_id, reason))
    topology = group.topology
    if topology is not None and not all(
        ctx.decisions.allows_on_topic(Operation.DESCRIBE, name) for name in named_topics(topology.value)
    ):
        return described.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="the group uses topics that the client may not describe",
        )
    return described.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=None if topology is None else _topology(topology, ctx.services.metadata.image),
        members=[_member(group, member) for member in group.members.values()],
    )


def _failed(group_id: str, error: MillraceError) -> described.DescribedGroup:
    return described.DescribedGroup(
        group_id=group_id, error_code=error_code(error), error_message=error_message(error)
    )


def _topology(topology: Topology, image: Image) -> described.Topology:
    """The topology, with the numbers of partitions of its internal topics once all of them are there."""

    def partitions_of(name: str) -> int | None:
        topic = image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    counts: Mapping[str, int] = {}
    # A topology that cannot be planned comes from elsewhere: members here are refused with it.
    with suppress(InvalidTopology):
        found = plan(topology, partitions_of)
        counts = found.partition_counts if found.is_ready else {}
    return described.Topology(
        epoch=topology.epoch,
        subtopologies=[
            described.Subtopology(
                subtopology_id=name,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sink_topics),
                state_changelog_topics=_topics(each.state_changelog_topics, counts),
                repartition_source_topics=_topics(each.repartition_source_topics, counts),
            )
            for name, each in topology.subtopologies.items()
        ],
    )


def _topics(topics: Iterable[stored.TopicInfo], counts: Mapping[str, int]) -> list[described.TopicInfo]:
    return [
        described.TopicInfo(
            name=topic.name,
            partitions=topic.partitions or counts.get(topic.name, 0),
            replication_factor=topic.replication_factor,
            topic_configs=[
                described.KeyValue(key=config.key, value=config.value) for config in topic.topic_configs
            ],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(group: StreamsGroup, member: StreamsMember) -> described.Member:
    endpoint = member.endpoint
    return described.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else described.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            described.KeyValue(key=key, value=member.client_tags[key]) for key in sorted(member.client_tags)
        ],
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(group.target_of(member.member_id)),
    )


def _assignment(tasks: Mapping[TaskPlace, Iterable[int]]) -> described.Assignment:
    active, standby, warmup = (
        [
            described.TaskIds(subtopology_id=subtopology, partitions=numbers)
            for subtopology, numbers in of_role(tasks, role)
        ]
        for role in Role
    )
    return described.Assignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


STREAMS_GROUP_DESCRIBE: Final = Api(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 0),
    handle=streams_group_describe,
    checks=(on_group(Operation.DESCRIBE), on_topic(Operation.DESCRIBE, "of those in its topology")),
)
