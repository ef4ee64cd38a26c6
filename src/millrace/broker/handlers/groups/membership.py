"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the life of a member of a classic group."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from millrace.broker.handlers.groups.answers import answered
from millrace.broker.handlers.groups.heartbeats import quick_heartbeat
from millrace.broker.network.checks import on_group
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.coordinator.runtime import Outcome
from millrace.core.errors import MillraceError
from millrace.groups.commands import (
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Left,
    Protocol,
    Sync,
    Synced,
)
from millrace.groups.errors import (
    GroupError,
    InconsistentProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
)
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from millrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from millrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

MEMBER_IDS_REQUIRED_FROM: Final = 4
NULL_PROTOCOL_FROM: Final = 7
SKIPPED_ASSIGNMENT_FROM: Final = 9
NAMED_PROTOCOLS_FROM: Final = 5
REASON_LENGTH_MAX: Final = 255


def join_group(
    ctx: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    version = ctx.api_version

    def respond(outcome: Outcome) -> JoinGroupResponse:
        # Joining may take minutes: who may not read the group any more hears nothing of its members.
        if not _may_read(ctx, request.group_id):
            return JoinGroupResponse(
                error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
                protocol_name=None if version >= NULL_PROTOCOL_FROM else "",
            )
        return _joined(outcome, request, version)

    if not _may_read(ctx, request.group_id):
        return respond(None)
    error = _check_join(ctx, request)
    if error is not None:
        return respond(error)
    groups = ctx.services.groups
    client_id = ctx.client_id or ""
    command = Join(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host="/" + ctx.endpoint.peer_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(each.name, each.metadata) for each in request.protocols),
        reason=request.reason[:REASON_LENGTH_MAX] if request.reason else None,
        new_member_id=(
            groups.new_member_id(request.group_instance_id or client_id) if not request.member_id else ""
        ),
        requires_known_member_id=version >= MEMBER_IDS_REQUIRED_FROM,
        supports_skipped_assignment=version >= SKIPPED_ASSIGNMENT_FROM,
    )
    return answered(groups.submit(request.group_id, command), respond)


def _may_read(ctx: RequestContext, group_id: str) -> bool:
    return ctx.decisions.allows_on_group(Operation.READ, group_id)


def _check_join(ctx: RequestContext, request: JoinGroupRequest) -> GroupError | None:
    settings = ctx.services.groups.settings
    low_ms, high_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    if not request.group_id:
        return InvalidGroupId(request.group_id)
    if not low_ms <= request.session_timeout_ms <= high_ms:
        return InvalidSessionTimeout(request.session_timeout_ms, low_ms=low_ms, high_ms=high_ms)
    if not request.protocol_type or not request.protocols:
        return InconsistentProtocol(request.group_id, "a member must name its protocols")
    return None


def _joined(outcome: Outcome, request: JoinGroupRequest, version: int) -> JoinGroupResponse:
    if isinstance(outcome, MillraceError):
        member_id = outcome.member_id if isinstance(outcome, MemberIdRequired) else request.member_id
        return JoinGroupResponse(
            error_code=error_code(outcome),
            member_id=member_id,
            protocol_name=None if version >= NULL_PROTOCOL_FROM else "",
        )
    assert isinstance(outcome, Joined), outcome
    protocol = outcome.protocol
    return JoinGroupResponse(
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        protocol_name="" if protocol is None and version < NULL_PROTOCOL_FROM else protocol,
        leader=outcome.leader,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in outcome.members
        ],
    )


def sync_group(
    ctx: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    def respond(outcome: Outcome) -> SyncGroupResponse:
        # The leader's assignment may have been long in coming.
        if not _may_read(ctx, request.group_id):
            return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return _synced(outcome)

    if not _may_read(ctx, request.group_id):
        return respond(None)
    if not request.group_id:
        return _synced(InvalidGroupId(request.group_id))
    if ctx.api_version >= NAMED_PROTOCOLS_FROM and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return _synced(InconsistentProtocol(request.group_id, "the request names no protocol"))
    command = Sync(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    return answered(ctx.services.groups.submit(request.group_id, command), respond)


def _synced(outcome: Outcome) -> SyncGroupResponse:
    if isinstance(outcome, MillraceError):
        return SyncGroupResponse(error_code=error_code(outcome))
    assert isinstance(outcome, Synced), outcome
    return SyncGroupResponse(
        protocol_type=outcome.protocol_type, protocol_name=outcome.protocol, assignment=outcome.assignment
    )


def heartbeat(
    ctx: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    if not _may_read(ctx, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return _beaten(InvalidGroupId(request.group_id))
    return answered(ctx.services.groups.submit(request.group_id, _heartbeat_of(ctx, request)), _beaten)


def _heartbeat_of(_ctx: RequestContext, request: HeartbeatRequest) -> Heartbeat:
    return Heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)


def _repeated_heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> Heartbeat | None:
    is_usual = request.group_id and _may_read(ctx, request.group_id)
    return _heartbeat_of(ctx, request) if is_usual else None


def _beaten(outcome: Outcome) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error_code(outcome) if isinstance(outcome, MillraceError) else 0)


def leave_group(
    ctx: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    if not _may_read(ctx, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return _left(InvalidGroupId(request.group_id))
    command = Leave(
        request.group_id,
        [LeavingMember(each.member_id, each.group_instance_id, each.reason) for each in request.members],
    )
    return answered(ctx.services.groups.submit(request.group_id, command), _left)


def _left(outcome: Outcome) -> LeaveGroupResponse:
    if isinstance(outcome, MillraceError):
        return LeaveGroupResponse(error_code=error_code(outcome))
    assert isinstance(outcome, Left), outcome
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                error_code=0 if error is None else error_code(error),
            )
            for member, error in outcome.members
        ]
    )


# v4 asks new members to join again with the id that they are given; v5 adds static members, v8 reasons,
# v9 the hint to skip the assignment.
JOIN_GROUP: Final = Api(
    ApiKey.JOIN_GROUP, versions=(0, 9), handle=join_group, checks=(on_group(Operation.READ),)
)
SYNC_GROUP: Final = Api(
    ApiKey.SYNC_GROUP, versions=(0, 5), handle=sync_group, checks=(on_group(Operation.READ),)
)
HEARTBEAT: Final = Api(
    ApiKey.HEARTBEAT,
    versions=(0, 4),
    handle=heartbeat,
    checks=(on_group(Operation.READ),),
    quick=quick_heartbeat(_repeated_heartbeat, _beaten),
)
# v3 lets several members leave at once.
LEAVE_GROUP: Final = Api(
    ApiKey.LEAVE_GROUP, versions=(0, 5), handle=leave_group, checks=(on_group(Operation.READ),)
)
