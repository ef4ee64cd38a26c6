"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final

from millrace.broker.handlers.groups.answers import answered
from millrace.broker.handlers.groups.heartbeats import quick_heartbeat
from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.coordinator.runtime import Outcome
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.patterns import InvalidPattern
from millrace.groups.consumer.commands import JOINING, Beat, ConsumerHeartbeat
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.consumer.member import ConsumerMember
from millrace.groups.errors import GroupNotFound
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import consumer_group_describe as described
from millrace.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

OWN_MEMBER_IDS_FROM: Final = 1
"""From this version on members choose their ids themselves."""
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    decisions = ctx.decisions
    if not decisions.allows_on_group(Operation.READ, request.group_id):
        return _refused_beat(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not all(
        decisions.allows_on_topic(Operation.DESCRIBE, topic) for topic in request.subscribed_topic_names or ()
    ):
        return _refused_beat(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if request.subscribed_topic_regex:
        return _heartbeat_with_pattern(ctx, request, request.subscribed_topic_regex)
    return answered(ctx.services.groups.submit(request.group_id, _command(ctx, request, None)), _beaten)


def _refused_beat(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=code.message)


async def _heartbeat_with_pattern(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest, pattern: str
) -> ConsumerGroupHeartbeatResponse:
    """Find out first what the pattern matches, so that the first answer can assign partitions."""
    try:
        matched = await _consumers(ctx).resolve_for(request.group_id, pattern, ctx.decisions)
    except InvalidPattern as error:
        return _beaten(error)
    resolved = {pattern: matched}
    outcome = ctx.services.groups.submit(request.group_id, _command(ctx, request, resolved))
    return _beaten(await outcome if isinstance(outcome, asyncio.Future) else outcome)


def _command(
    ctx: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
    resolved: Mapping[str, frozenset[str]] | None,
) -> ConsumerHeartbeat:
    owned = request.topic_partitions
    needs_id = (
        not request.member_id and request.member_epoch == JOINING and ctx.api_version < OWN_MEMBER_IDS_FROM
    )
    return ConsumerHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.server_assignor,
        None if owned is None else [(TopicId(each.topic_id), each.partitions) for each in owned],
        ctx.client_id or "",
        "/" + ctx.endpoint.peer_host,
        ctx.services.groups.new_member_id(ctx.client_id or "") if needs_id else "",
        resolved,
    )


def _repeated(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat | None:
    """The command of a member that stays and tells nothing new, which is what members repeat."""
    stays = request.group_id and request.member_epoch > JOINING
    tells_nothing = ctx.decisions.allows_on_group(Operation.READ, request.group_id) and (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.topic_partitions is None
    )
    return _command(ctx, request, None) if stays and tells_nothing else None


def _beaten(outcome: Outcome) -> ConsumerGroupHeartbeatResponse:
    if isinstance(outcome, MillraceError):
        return ConsumerGroupHeartbeatResponse(
            error_code=error_code(outcome), error_message=error_message(outcome)
        )
    assert isinstance(outcome, Beat), outcome
    assignment = outcome.assignment
    return ConsumerGroupHeartbeatResponse(
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in assignment.items()
            ]
        ),
    )


def consumer_group_describe(
    ctx: RequestContext, request: described.ConsumerGroupDescribeRequest
) -> described.ConsumerGroupDescribeResponse:
    response = described.ConsumerGroupDescribeResponse()
    for group_id in request.group_ids:
        try:
            group = _describe(ctx, group_id)
            group.authorized_operations = NOT_ASKED
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = ctx.decisions.authorized_operations(
                    ResourceType.GROUP, group_id
                )
        except MillraceError as error:
            group = described.DescribedGroup(
                group_id=group_id, error_code=error_code(error), error_message=error_message(error)
            )
        response.groups.append(group)
    return response


def _describe(ctx: RequestContext, group_id: str) -> described.DescribedGroup:
    if not ctx.decisions.allows_on_group(Operation.DESCRIBE, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return described.DescribedGroup(group_id=group_id, error_code=code, error_message=code.message)
    machine = ctx.services.groups.machine_of(group_id)
    if isinstance(machine, MillraceError):
        raise machine
    group = machine.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        raise GroupNotFound(group_id, "not found" if group is None else "is not a consumer group")
    consumers = _consumers(ctx)
    members = [_described_member(group, member, consumers) for member in group.members.values()]
    if not all(
        ctx.decisions.allows_on_topic(Operation.DESCRIBE, topic.topic_name)
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    ):
        return described.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="the group reads topics that the client may not describe",
        )
    return described.DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=consumers.preferred_assignor(group.members.values()),
        members=members,
    )


def _described_member(group: ConsumerGroup, member: ConsumerMember, consumers: Consumers) -> described.Member:
    return described.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_pattern or None,
        assignment=_partitions(member.assigned, consumers),
        target_assignment=_partitions(group.target_of(member.member_id), consumers),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _partitions(
    partitions: Mapping[TopicId, frozenset[int] | Mapping[int, int]], consumers: Consumers
) -> described.Assignment:
    """Topics that are gone are left out: they have no name any more."""
    named = [(consumers.topics.name_of(topic), topic, numbers) for topic, numbers in partitions.items()]
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(topic_id=topic, topic_name=name, partitions=sorted(numbers))
            for name, topic, numbers in named
            if name is not None
        ]
    )


def _consumers(ctx: RequestContext) -> Consumers:
    consumers = ctx.services.groups.consumers
    assert consumers is not None, "the broker's assembly sets it"
    return consumers


# v1 adds regular expressions, and members that choose their ids.
CONSUMER_GROUP_HEARTBEAT: Final = Api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    handle=consumer_group_heartbeat,
    checks=(on_group(Operation.READ), on_topic(Operation.DESCRIBE, "of those it subscribes to")),
    quick=quick_heartbeat(_repeated, _beaten),
)
# v1 tells which protocol each member speaks.
CONSUMER_GROUP_DESCRIBE: Final = Api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    handle=consumer_group_describe,
    checks=(on_group(Operation.DESCRIBE), on_topic(Operation.DESCRIBE, "of those it reads")),
)
