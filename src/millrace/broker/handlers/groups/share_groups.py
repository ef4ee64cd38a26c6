"""ShareGroupHeartbeat and ShareGroupDescribe: who is a member of a share group, and what each may fetch."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from millrace.broker.handlers.groups.answers import answered
from millrace.broker.handlers.groups.heartbeats import quick_heartbeat
from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.coordinator.runtime import Outcome
from millrace.core.errors import MillraceError
from millrace.groups.consumer.commands import JOINING, Beat
from millrace.groups.errors import GroupNotFound
from millrace.groups.share.commands import ShareHeartbeat
from millrace.groups.share.group import ShareGroup
from millrace.groups.share.member import ShareMember
from millrace.metadata.image import Image
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import share_group_describe as described
from millrace.wire.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

ASSIGNOR: Final = "simple"


def share_group_heartbeat(
    ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    decisions = ctx.decisions
    if not decisions.allows_on_group(Operation.READ, request.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not all(
        decisions.allows_on_topic(Operation.DESCRIBE, topic) for topic in request.subscribed_topic_names or ()
    ):
        return _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return answered(ctx.services.share_groups.beat(_command(ctx, request)), _beaten)


def _refused(code: ErrorCode) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=code, error_message=code.message)


def _command(ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> ShareHeartbeat:
    return ShareHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.rack_id,
        request.subscribed_topic_names,
        ctx.client_id or "",
        "/" + ctx.endpoint.peer_host,
    )


def _repeated(ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> ShareHeartbeat | None:
    """The command of a member that stays and tells nothing new, which is what members repeat."""
    stays = request.group_id and request.member_epoch > JOINING
    tells_nothing = request.subscribed_topic_names is None and ctx.decisions.allows_on_group(
        Operation.READ, request.group_id
    )
    return _command(ctx, request) if stays and tells_nothing else None


def _beaten(outcome: Outcome) -> ShareGroupHeartbeatResponse:
    if isinstance(outcome, MillraceError):
        return ShareGroupHeartbeatResponse(
            error_code=error_code(outcome), error_message=error_message(outcome)
        )
    assert isinstance(outcome, Beat), outcome
    assignment = outcome.assignment
    return ShareGroupHeartbeatResponse(
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in assignment.items()
            ]
        ),
    )


def share_group_describe(
    ctx: RequestContext, request: described.ShareGroupDescribeRequest
) -> described.ShareGroupDescribeResponse:
    response = described.ShareGroupDescribeResponse()
    for group_id in request.group_ids:
        try:
            group = _describe(ctx, group_id)
        except MillraceError as error:
            group = described.DescribedGroup(
                group_id=group_id, error_code=error_code(error), error_message=error_message(error)
            )
        group.authorized_operations = NOT_ASKED
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = ctx.decisions.authorized_operations(ResourceType.GROUP, group_id)
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
    if not isinstance(group, ShareGroup):
        raise GroupNotFound(group_id, "not found" if group is None else "is not a share group")
    members = [_described(member, ctx.services.metadata.image) for member in group.members.values()]
    if not all(
        ctx.decisions.allows_on_topic(Operation.DESCRIBE, topic.topic_name)
        for member in members
        for topic in member.assignment.topic_partitions
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
        assignor_name=ASSIGNOR,
        members=members,
    )


def _described(member: ShareMember, image: Image) -> described.Member:
    """Topics that are gone are left out: they have no name any more."""
    named = [(image.topics_by_id.get(topic), numbers) for topic, numbers in member.assigned.items()]
    return described.Member(
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=described.Assignment(
            topic_partitions=[
                described.TopicPartitions(
                    topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(numbers)
                )
                for topic, numbers in named
                if topic is not None
            ]
        ),
    )


SHARE_GROUP_HEARTBEAT: Final = Api(
    ApiKey.SHARE_GROUP_HEARTBEAT,
    versions=(1, 1),
    handle=share_group_heartbeat,
    checks=(on_group(Operation.READ), on_topic(Operation.DESCRIBE, "of those it subscribes to")),
    quick=quick_heartbeat(
        _repeated, _beaten, submit=lambda services, command: services.share_groups.beat(command)
    ),
)
SHARE_GROUP_DESCRIBE: Final = Api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    handle=share_group_describe,
    checks=(on_group(Operation.DESCRIBE), on_topic(Operation.DESCRIBE, "of those it reads")),
)
