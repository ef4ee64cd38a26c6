"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.metadata.errors import MetadataError
from millrace.security.acls.binding import Operation
from millrace.security.quotas.describe import Component, matching_quotas
from millrace.security.quotas.keys import Alteration
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from millrace.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE_CONFIGS):
        return DescribeClientQuotasResponse(error_code=_REFUSED, error_message=_REFUSED.message, entries=None)
    components = [Component(each.entity_type, each.match_type, each.match) for each in request.components]
    quotas = ctx.services.metadata.image.security.quotas
    try:
        found = matching_quotas(quotas, components, is_strict=request.strict)
    except MillraceError as error:
        return DescribeClientQuotasResponse(
            error_code=error_code(error), error_message=error_message(error), entries=None
        )
    return DescribeClientQuotasResponse(
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in whom.parts],
                values=[ValueData(key=key, value=value) for key, value in limits.items()],
            )
            for whom, limits in found
        ],
    )


async def alter_client_quotas(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    if not ctx.decisions.allows_on_cluster(Operation.ALTER_CONFIGS):
        return _altered(request, [(_REFUSED, _REFUSED.message)] * len(request.entries))
    wanted = [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [Alteration(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in request.entries
    ]
    outcomes: list[MillraceError | None]
    try:
        outcomes = await ctx.services.metadata.security.alter_quotas(
            wanted, validate_only=request.validate_only
        )
    except MetadataError as error:
        outcomes = [error] * len(wanted)
    return _altered(
        request,
        [
            (ErrorCode.NONE, None) if error is None else (error_code(error), error_message(error))
            for error in outcomes
        ],
    )


def _altered(
    request: AlterClientQuotasRequest, outcomes: Sequence[tuple[ErrorCode, str | None]]
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=message,
                entity=[
                    AlterClientQuotasResponseEntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry, (code, message) in zip(request.entries, outcomes, strict=True)
        ]
    )


# v1 is the flexible encoding.
DESCRIBE_CLIENT_QUOTAS: Final = Api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    handle=describe_client_quotas,
    checks=(on_cluster(Operation.DESCRIBE_CONFIGS),),
)
# v1 is the flexible encoding.
ALTER_CLIENT_QUOTAS: Final = Api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    handle=alter_client_quotas,
    checks=(on_cluster(Operation.ALTER_CONFIGS),),
)
