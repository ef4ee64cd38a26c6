"""DescribeAcls, CreateAcls, DeleteAcls.

Who may alter the cluster sets all permissions. A tenant's administrators set those that are about names of
their tenant alone, and see no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.metadata.errors import MetadataError
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType, known
from millrace.security.acls.filters import AclFilter, InvalidAclFilter
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import uvarint
from millrace.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from millrace.wire.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from millrace.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

# Kafka's words, which its tools show.
NONE_TO_DESCRIBE: Final = "No Authorizer is configured on the broker"
NONE_TO_CHANGE: Final = "No Authorizer is configured."

SHOWN_PER_TURN: Final = 2_000
"""After so many permissions other work of the loop gets its turn."""

Refusal: TypeAlias = tuple[ErrorCode, str]
_NOT_ALLOWED: Final[Refusal] = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message,
)


async def describe_acls(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse | bytes:
    concerns = _concerns(ctx, Operation.DESCRIBE)
    refusal = _refusal(ctx, concerns, NONE_TO_DESCRIBE)
    if refusal is not None:
        return DescribeAclsResponse(error_code=refusal[0], error_message=refusal[1])
    assert concerns is not None
    try:
        found = await ctx.services.metadata.security.describe_acls(filter_of(request))
    except InvalidAclFilter:
        # Kafka finds nothing, and says nothing else.
        return DescribeAclsResponse()
    resources: dict[tuple[ResourceType, str, PatternType], DescribeAclsResource] = {}
    for place, acl in enumerate(found, 1):
        if place % SHOWN_PER_TURN == 0:
            await asyncio.sleep(0)
        if not concerns(acl):
            continue
        resource = resources.setdefault(
            (acl.resource_type, acl.name, acl.pattern),
            DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
    shown = list(resources.values())
    if len(found) < SHOWN_PER_TURN:
        return DescribeAclsResponse(resources=shown)
    return await encoded_in_portions(shown, ctx.api_version)


async def encoded_in_portions(resources: Sequence[DescribeAclsResource], version: int) -> bytes:
    """The bytes of an answer with so many resources that others get their turn while they are made."""
    encode = schema.response_encoder(ApiKey.DESCRIBE_ACLS, version)
    is_flexible = schema.response_header_version(ApiKey.DESCRIBE_ACLS, version) >= 1

    def count(number: int) -> bytes:
        return uvarint(number + 1) if is_flexible else number.to_bytes(4, "big")

    # Behind the resources there are no fields, and in the flexible encoding an empty list of tags.
    tags = b"\0" if is_flexible else b""
    head = encode(DescribeAclsResponse()).removesuffix(count(0) + tags)
    parts = [head, count(len(resources))]
    for at in range(0, len(resources), SHOWN_PER_TURN):
        portion = list(resources[at : at + SHOWN_PER_TURN])
        body = encode(DescribeAclsResponse(resources=portion))
        parts.append(body.removeprefix(head + count(len(portion))).removesuffix(tags))
        await asyncio.sleep(0)
    return b"".join((*parts, tags))


async def create_acls(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    concerns = _concerns(ctx, Operation.ALTER)
    refusal = _refusal(ctx, concerns, NONE_TO_CHANGE)
    if refusal is not None:
        return CreateAclsResponse(results=[_creation(*refusal) for _ in request.creations])
    assert concerns is not None
    acls = [acl_of(creation) for creation in request.creations]
    allowed = [acl for acl in acls if concerns(acl)]
    outcomes: list[MillraceError | None]
    try:
        outcomes = await ctx.services.metadata.security.create_acls(allowed)
    except MetadataError as error:
        outcomes = [error] * len(allowed)
    made = iter(outcomes)
    return CreateAclsResponse(
        results=[_created(next(made)) if concerns(acl) else _creation(*_NOT_ALLOWED) for acl in acls]
    )


async def delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    concerns = _concerns(ctx, Operation.ALTER)
    refusal = _refusal(ctx, concerns, NONE_TO_CHANGE)
    if refusal is not None:
        return DeleteAclsResponse(filter_results=[_deletion(*refusal) for _ in request.filters])
    assert concerns is not None
    filters = [filter_of(wanted) for wanted in request.filters]
    try:
        outcomes = await ctx.services.metadata.security.delete_acls(filters, concerns)
    except MetadataError as error:
        failure = (error_code(error), error_message(error))
        return DeleteAclsResponse(filter_results=[_deletion(*failure) for _ in filters])
    return DeleteAclsResponse(filter_results=[_deleted(outcome) for outcome in outcomes])


def _concerns(ctx: RequestContext, operation: Operation) -> Callable[[Acl], bool] | None:
    """Says which permissions are the business of whoever asks; None if none is."""
    decisions = ctx.decisions
    if decisions.allows_on_cluster(operation):
        return lambda _: True
    subject, tenants = decisions.subject, ctx.services.metadata.image.security.tenants
    if subject is None:
        return None
    principals = subject.principals
    if not tenants.administered_by(principals):
        return None
    return lambda acl: tenants.may_administer(principals, acl)


def _refusal(ctx: RequestContext, concerns: object | None, no_authorizer: str) -> Refusal | None:
    if concerns is None:
        return _NOT_ALLOWED
    if ctx.services.access.authorizer is None:
        return ErrorCode.SECURITY_DISABLED, no_authorizer
    return None


def acl_of(creation: AclCreation) -> Acl:
    """The permission that is meant. Numbers that nobody knows are UNKNOWN."""
    return Acl(
        known(ResourceType, creation.resource_type),
        creation.resource_name,
        known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        known(Operation, creation.operation),
        known(Permission, creation.permission_type),
    )


def filter_of(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """The filter that is meant. Numbers that nobody knows are UNKNOWN."""
    return AclFilter(
        known(ResourceType, wanted.resource_type_filter),
        wanted.resource_name_filter,
        known(PatternType, wanted.pattern_type_filter),
        wanted.principal_filter,
        wanted.host_filter,
        known(Operation, wanted.operation),
        known(Permission, wanted.permission_type),
    )


def _creation(code: ErrorCode, message: str | None) -> AclCreationResult:
    return AclCreationResult(error_code=code, error_message=message)


def _created(outcome: MillraceError | None) -> AclCreationResult:
    if outcome is None:
        # Empty and not null, as Kafka has it.
        return AclCreationResult(error_message="")
    return _creation(error_code(outcome), error_message(outcome))


def _deletion(code: ErrorCode, message: str | None) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


def _deleted(outcome: list[Acl] | InvalidAclFilter) -> DeleteAclsFilterResult:
    if isinstance(outcome, InvalidAclFilter):
        return _deletion(error_code(outcome), error_message(outcome))
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in outcome
        ],
    )


# v2 is the flexible encoding; v3 adds users as a type of resource.
DESCRIBE_ACLS: Final = Api(
    ApiKey.DESCRIBE_ACLS,
    versions=(1, 3),
    handle=describe_acls,
    checks=(on_cluster(Operation.DESCRIBE, "or only those of an own tenant"),),
)
CREATE_ACLS: Final = Api(
    ApiKey.CREATE_ACLS,
    versions=(1, 3),
    handle=create_acls,
    checks=(on_cluster(Operation.ALTER, "or only those of an own tenant"),),
)
DELETE_ACLS: Final = Api(
    ApiKey.DELETE_ACLS,
    versions=(1, 3),
    handle=delete_acls,
    checks=(on_cluster(Operation.ALTER, "or only those of an own tenant"),),
)
