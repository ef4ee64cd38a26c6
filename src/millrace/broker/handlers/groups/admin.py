"""ListGroups, DescribeGroups and DeleteGroups: what operators ask of groups."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.network.checks import on_cluster, on_group
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.groups.classic.group import ClassicGroup, State
from millrace.groups.errors import GroupNotFound
from millrace.security.acls.authorizer import NOT_ASKED
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millrace.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

NOT_FOUND_FROM: Final = 6
"""Older versions describe a group that is not there as dead."""


def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    groups = ctx.services.groups
    if groups.runtime.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    response = ListGroupsResponse()
    decisions = ctx.decisions
    sees_all = decisions.shows_on_cluster(Operation.DESCRIBE)
    for machine in groups.machines():
        for group_id, group in machine.groups.items():
            state = group.state_name
            if (
                (not states or state.lower() in states)
                and (not types or group.type_name in types)
                and (sees_all or decisions.shows(Operation.DESCRIBE, ResourceType.GROUP, group_id))
            ):
                response.groups.append(
                    ListedGroup(
                        group_id=group_id,
                        protocol_type=group.protocol_type,
                        group_state=state,
                        group_type=group.type_name,
                    )
                )
    return response


def describe_groups(ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse()
    for group_id in request.groups:
        described = _describe(ctx, group_id)
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = ctx.decisions.authorized_operations(
                ResourceType.GROUP, group_id
            )
        else:
            described.authorized_operations = NOT_ASKED
        response.groups.append(described)
    return response


def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    if not ctx.decisions.allows_on_group(Operation.DESCRIBE, group_id):
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    machine = ctx.services.groups.machine_of(group_id)
    if isinstance(machine, MillraceError):
        return DescribedGroup(group_id=group_id, error_code=error_code(machine))
    group = machine.groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        if ctx.api_version < NOT_FOUND_FROM:
            return DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        error = GroupNotFound(group_id, "not found" if group is None else "is not a classic group")
        return DescribedGroup(
            group_id=group_id,
            group_state=State.DEAD.value,
            error_code=error_code(error),
            error_message=error_message(error),
        )
    # Between generations nobody's assignment counts.
    is_stable = group.state is State.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol or "" if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata_for(group.protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
    )


async def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    allowed: list[str] = []
    refused: list[str] = []
    for name in dict.fromkeys(request.groups_names):
        (allowed if ctx.decisions.allows_on_group(Operation.DELETE, name) else refused).append(name)
    outcomes = await asyncio.gather(*(ctx.services.share_groups.delete_group(name) for name in allowed))
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id=name,
                error_code=error_code(outcome) if isinstance(outcome, MillraceError) else 0,
            )
            for name, outcome in zip(allowed, outcomes, strict=True)
        ]
        + [
            DeletableGroupResult(group_id=name, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for name in refused
        ]
    )


# v4 filters by state, v5 by type.
LIST_GROUPS: Final = Api(
    ApiKey.LIST_GROUPS,
    versions=(0, 5),
    handle=list_groups,
    checks=(on_cluster(Operation.DESCRIBE, "for all groups"), on_group(Operation.DESCRIBE, "else for each")),
)
DESCRIBE_GROUPS: Final = Api(
    ApiKey.DESCRIBE_GROUPS, versions=(0, 6), handle=describe_groups, checks=(on_group(Operation.DESCRIBE),)
)
DELETE_GROUPS: Final = Api(
    ApiKey.DELETE_GROUPS, versions=(0, 2), handle=delete_groups, checks=(on_group(Operation.DELETE),)
)
