"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken."""

from __future__ import annotations

from typing import Final

from millrace.broker.network.checks import Check
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.errors import TokensDisabled
from millrace.security.principals import Principal
from millrace.security.tokens import DelegationToken
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millrace.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from millrace.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from millrace.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

NO_TIME: Final = -1


async def create_delegation_token(
    ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    tokens, identity = ctx.services.tokens, ctx.decisions.identity
    owner = identity.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=identity.principal.kind,
        token_requester_principal_name=identity.principal.name,
    )
    try:
        token = await tokens.create(
            identity,
            owner=owner,
            renewers=[Principal(each.principal_type, each.principal_name) for each in request.renewers],
            lifetime_ms=request.max_lifetime_ms,
            may_create=lambda owner: ctx.decisions.allows(
                Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
            ),
        )
    except MillraceError as error:
        response.error_code = error_code(error)
        if not isinstance(error, TokensDisabled):
            # What Kafka's brokers refuse has no times, what its controller refuses has zeros.
            response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = NO_TIME
        return response
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.ends_ms
    response.token_id = token.token_id
    response.hmac = tokens.hmac_of(token)
    return response


async def renew_delegation_token(
    ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    try:
        expires_ms = await ctx.services.tokens.renew(
            ctx.decisions.identity, bytes(request.hmac), request.renew_period_ms
        )
    except MillraceError as error:
        return RenewDelegationTokenResponse(error_code=error_code(error), expiry_timestamp_ms=NO_TIME)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)


async def expire_delegation_token(
    ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    try:
        expires_ms = await ctx.services.tokens.expire(
            ctx.decisions.identity, bytes(request.hmac), request.expiry_time_period_ms
        )
    except MillraceError as error:
        return ExpireDelegationTokenResponse(error_code=error_code(error), expiry_timestamp_ms=NO_TIME)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)


def describe_delegation_token(
    ctx: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    owners = None
    if request.owners is not None:
        owners = [Principal(owner.principal_type, owner.principal_name) for owner in request.owners]

    def may_describe(token: DelegationToken) -> bool:
        decisions = ctx.decisions
        return decisions.allows(
            Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
        ) or decisions.allows(Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner))

    try:
        found = ctx.services.tokens.describe(ctx.decisions.identity, owners, may_describe)
    except MillraceError as error:
        return DescribeDelegationTokenResponse(error_code=error_code(error))
    return DescribeDelegationTokenResponse(
        tokens=[
            DescribedDelegationToken(
                principal_type=token.owner.kind,
                principal_name=token.owner.name,
                token_requester_principal_type=token.requester.kind,
                token_requester_principal_name=token.requester.name,
                issue_timestamp=token.issued_ms,
                expiry_timestamp=token.expires_ms,
                max_timestamp=token.ends_ms,
                token_id=token.token_id,
                hmac=ctx.services.tokens.hmac_of(token),
                renewers=[
                    DescribedDelegationTokenRenewer(principal_type=renewer.kind, principal_name=renewer.name)
                    for renewer in token.renewers
                ],
            )
            for token in found
        ]
    )


# v2 is the flexible encoding; v3 adds the owner, for whom somebody else may ask.
CREATE_DELEGATION_TOKEN: Final = Api(
    ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(1, 3),
    handle=create_delegation_token,
    checks=(Check(Operation.CREATE_TOKENS, ResourceType.USER, "for another owner"),),
)
# v2 is the flexible encoding. Owners and renewers may, and nobody else.
RENEW_DELEGATION_TOKEN: Final = Api(
    ApiKey.RENEW_DELEGATION_TOKEN, versions=(1, 2), handle=renew_delegation_token, checks=()
)
EXPIRE_DELEGATION_TOKEN: Final = Api(
    ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2), handle=expire_delegation_token, checks=()
)
# v2 is the flexible encoding; v3 adds who asked for a token.
DESCRIBE_DELEGATION_TOKEN: Final = Api(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(1, 3),
    handle=describe_delegation_token,
    checks=(
        Check(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "of others' tokens"),
        Check(Operation.DESCRIBE_TOKENS, ResourceType.USER, "or of their owners"),
    ),
)
