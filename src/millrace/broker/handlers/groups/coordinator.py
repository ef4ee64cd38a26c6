"""FindCoordinator: which broker looks after a group or a transactional id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from millrace.broker.handlers.cluster.metadata import reachable_brokers
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.groups.service import OFFSETS_TOPIC
from millrace.metadata.image import NO_LEADER
from millrace.transactions.service import TRANSACTION_TOPIC
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
SHARE_FROM: Final = 6
SEVERAL_KEYS_FROM: Final = 4


def find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if request.key_type == GROUP:
        if ctx.services.metadata.image.topics.get(OFFSETS_TOPIC) is None:
            return _create_and_find(ctx, request)
        return _find_groups(ctx, request)
    if request.key_type == TRANSACTION:
        if ctx.services.metadata.image.topics.get(TRANSACTION_TOPIC) is None:
            return _create_and_find_transactions(ctx, request)
        return _find_transactions(ctx, request)
    if request.key_type == SHARE and ctx.api_version >= SHARE_FROM:
        return _failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _failed(request, ErrorCode.INVALID_REQUEST)


async def _create_and_find(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    try:
        await ctx.services.groups.ensure_topic()
    except MillraceError:
        return _failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _find_groups(ctx, request)


async def _create_and_find_transactions(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    try:
        await ctx.services.transactions.ensure_topic()
    except MillraceError:
        return _failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _find_transactions(ctx, request)


def _find_transactions(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    return _find(ctx, request, TRANSACTION_TOPIC, ctx.services.transactions.partition_of)


def _find_groups(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    return _find(ctx, request, OFFSETS_TOPIC, ctx.services.groups.partition_of)


def _find(
    ctx: RequestContext,
    request: FindCoordinatorRequest,
    topic_name: str,
    partition_of: Callable[[str], int | None],
) -> FindCoordinatorResponse:
    image = ctx.services.metadata.image
    topic = image.topics.get(topic_name)
    brokers = reachable_brokers(ctx, image)
    response = FindCoordinatorResponse()
    for key in request.coordinator_keys:
        index = partition_of(key)
        leader = NO_LEADER if topic is None or index is None else topic.partitions[index].leader
        response.coordinators.append(_coordinator(key, leader, brokers))
    if ctx.api_version < SEVERAL_KEYS_FROM:
        for found in response.coordinators:
            # Kafka has always had a text for success in these versions.
            found.error_message = found.error_message or "NONE"
    return response


def _coordinator(key: str, leader: NodeId, brokers: dict[NodeId, tuple[str, int]]) -> Coordinator:
    address = brokers.get(leader)
    if address is None:
        return _absent(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=leader, host=address[0], port=address[1])


def _failed(request: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(coordinators=[_absent(key, code) for key in request.coordinator_keys])


def _absent(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=code.message)


# v4 looks for several keys at once, v6 adds share groups.
FIND_COORDINATOR: Final = Api(ApiKey.FIND_COORDINATOR, versions=(0, 6), handle=find_coordinator)
