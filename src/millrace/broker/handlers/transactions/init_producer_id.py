"""InitProducerId: the identity under which an idempotent or transactional producer numbers its batches."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.transactions.transactions import fenced_code
from millrace.broker.network.checks import on_cluster, on_topic, on_transactional_id
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.security.acls.binding import Operation, ResourceType
from millrace.transactions.commands import Identity
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_EPOCH: Final = -1
FIRST_EPOCH: Final = 0
FENCED_FROM: Final = 4


async def init_producer_id(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        if not ctx.decisions.allows_on_transactional_id(Operation.WRITE, request.transactional_id):
            return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not ctx.decisions.shows_on_cluster(
        Operation.IDEMPOTENT_WRITE
    ) and not ctx.decisions.allows_somewhere(Operation.WRITE, ResourceType.TOPIC):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    # Half an identity is a mistake of the client. A whole one means that the client wants to start over after
    # an error: as in Kafka it gets a new id, which tells every partition the same as a higher epoch would.
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        if request.transactional_id is not None:
            return await _init_transactional(ctx, request, request.transactional_id)
        producer_id = await ctx.services.producer_ids.next()
    except MillraceError as error:
        return _refused(error_code(error))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


async def _init_transactional(
    ctx: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id >= 0:
        expected = Identity(request.producer_id, request.producer_epoch)
    outcome = await ctx.services.transactions.init_producer(
        transactional_id, timeout_ms=request.transaction_timeout_ms, expected=expected
    )
    if isinstance(outcome, MillraceError):
        return _refused(fenced_code(outcome, ctx.api_version, since=FENCED_FROM))
    assert isinstance(outcome, Identity), outcome
    return InitProducerIdResponse(producer_id=outcome.producer_id, producer_epoch=outcome.epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)


# v2 is the flexible encoding, v3 names the identity to replace, v4 and v5 know more errors of transactions.
INIT_PRODUCER_ID: Final = Api(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    handle=init_producer_id,
    checks=(
        on_transactional_id(Operation.WRITE, "with a transactional id"),
        on_cluster(Operation.IDEMPOTENT_WRITE, "without one"),
        on_topic(Operation.WRITE, "or this on any topic"),
    ),
)
