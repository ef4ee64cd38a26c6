"""DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.broker.network.checks import on_cluster
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.metadata.errors import MetadataError
from millrace.metadata.security.commands import AlterCredentials
from millrace.metadata.security.image import SecurityImage
from millrace.security.acls.binding import Operation
from millrace.security.credentials.scram import ScramCredential, ScramMechanism
from millrace.security.credentials.scram_changes import (
    CredentialKey,
    Deletion,
    Upsertion,
    alter,
    describe,
)
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from millrace.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    users = None if request.users is None else [user.name for user in request.users]
    if not ctx.decisions.allows_on_cluster(Operation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=_REFUSED,
            error_message=_REFUSED.message,
            # Kafka names no user here either.
            results=[
                DescribeUserScramCredentialsResult(error_code=_REFUSED, error_message=_REFUSED.message)
                for _ in users or ()
            ],
        )
    known = _credentials(ctx.services.metadata.image.security, users)
    return DescribeUserScramCredentialsResponse(
        results=[
            DescribeUserScramCredentialsResult(
                user=found.user,
                error_code=ErrorCode.NONE if found.error is None else error_code(found.error),
                # Empty and not null where all is well, as Kafka has it.
                error_message="" if found.error is None else error_message(found.error),
                credential_infos=[
                    CredentialInfo(mechanism=mechanism.value, iterations=iterations)
                    for mechanism, iterations in found.iterations
                ],
            )
            for found in describe(known, users)
        ],
    )


async def alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    users = [wish.name for wish in request.deletions] + [wish.name for wish in request.upsertions]
    if not ctx.decisions.allows_on_cluster(Operation.ALTER):
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(
                    user=user, error_code=_REFUSED, error_message=_REFUSED.message
                )
                for user in sorted(set(users))
            ]
        )
    alteration = alter(
        _credentials(ctx.services.metadata.image.security, users),
        [Deletion(wish.name, wish.mechanism) for wish in request.deletions],
        [
            Upsertion(
                user=wish.name,
                mechanism=wish.mechanism,
                iterations=wish.iterations,
                salt=bytes(wish.salt),
                salted_password=bytes(wish.salted_password),
            )
            for wish in request.upsertions
        ],
    )
    results = dict(alteration.results)
    # No user is named twice, so each has one command.
    commands = [
        AlterCredentials(user=key.user, written={key.mechanism.label: credential})
        for key, credential in alteration.written
    ] + [AlterCredentials(user=key.user, removed=[key.mechanism.label]) for key in alteration.removed]
    outcomes: list[MetadataError | None]
    try:
        outcomes = await ctx.services.metadata.security.alter_credentials(commands)
    except MetadataError as error:
        outcomes = [error] * len(commands)
    for command, outcome in zip(commands, outcomes, strict=True):
        results[command.user] = outcome
    return AlterUserScramCredentialsResponse(
        results=[_result(user, outcome) for user, outcome in results.items()]
    )


def _result(user: str, outcome: MillraceError | None) -> AlterUserScramCredentialsResult:
    if outcome is None:
        return AlterUserScramCredentialsResult(user=user, error_message=None)
    return AlterUserScramCredentialsResult(
        user=user, error_code=error_code(outcome), error_message=error_message(outcome)
    )


def _credentials(image: SecurityImage, users: list[str] | None) -> dict[CredentialKey, ScramCredential]:
    """The credentials of these users, or of all if none is named."""
    chosen: Iterable[str] = users or image.credentials
    return {
        CredentialKey(user, mechanism): credential
        for user in chosen
        for mechanism in ScramMechanism
        if (credential := image.credentials.get(user, {}).get(mechanism.label)) is not None
    }


DESCRIBE_USER_SCRAM_CREDENTIALS: Final = Api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=describe_user_scram_credentials,
    checks=(on_cluster(Operation.DESCRIBE),),
)
ALTER_USER_SCRAM_CREDENTIALS: Final = Api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=alter_user_scram_credentials,
    checks=(on_cluster(Operation.ALTER),),
)
