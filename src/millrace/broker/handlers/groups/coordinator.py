"""FindCoordinator: which broker looks after a group, a transactional id, or the state of a share
partition."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from millrace.broker.handlers.cluster.metadata import reachable_brokers
from millrace.broker.network.checks import on_cluster, on_group, on_transactional_id
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.queues.state.records import coordinator_key, parse_coordinator_key
from millrace.security.acls.binding import Operation
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
    if request.key_type not in (GROUP, TRANSACTION, SHARE):
        return _failed(request, ErrorCode.INVALID_REQUEST)
    if request.key_type == SHARE and ctx.api_version < SHARE_FROM:
        return _failed(request, ErrorCode.INVALID_REQUEST)
    topic = _topic_of(ctx, request.key_type)
    if all(_refusal(ctx, request.key_type, key) is not None for key in request.coordinator_keys):
        # Nobody who may not ask gets a topic created.
        return _find(ctx, request, topic)
    return _find(ctx, request, topic) if topic.exists else _create_and_find(ctx, request, topic)


def _topic_of(ctx: RequestContext, key_type: int) -> InternalTopic:
    """The internal topic that holds keys of this type."""
    if key_type == GROUP:
        return ctx.services.groups.topic
    if key_type == TRANSACTION:
        return ctx.services.transactions.topic
    return ctx.services.share_state.topic


def _refusal(ctx: RequestContext, key_type: int, key: str) -> ErrorCode | None:
    """Why the client does not get to know who coordinates this; None if it does."""
    decisions = ctx.decisions
    if key_type == GROUP:
        is_allowed = decisions.allows_on_group(Operation.DESCRIBE, key)
        return None if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION:
        is_allowed = decisions.allows_on_transactional_id(Operation.DESCRIBE, key)
        return None if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not decisions.allows_on_cluster(Operation.CLUSTER_ACTION):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    try:
        parse_coordinator_key(key)
    except ValueError:
        return ErrorCode.INVALID_REQUEST
    return None


async def _create_and_find(
    ctx: RequestContext, request: FindCoordinatorRequest, topic: InternalTopic
) -> FindCoordinatorResponse:
    try:
        await topic.ensure()
    except MillraceError:
        return _failed(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return _find(ctx, request, topic)


def _find(
    ctx: RequestContext, request: FindCoordinatorRequest, topic: InternalTopic
) -> FindCoordinatorResponse:
    brokers = reachable_brokers(ctx, ctx.services.metadata.image)
    response = FindCoordinatorResponse(
        coordinators=[
            _absent(key, code)
            if (code := _refusal(ctx, request.key_type, key)) is not None
            else _coordinator(key, topic.leader_of(_canonical(request.key_type, key)), brokers)
            for key in request.coordinator_keys
        ]
    )
    if ctx.api_version < SEVERAL_KEYS_FROM:
        for found in response.coordinators:
            # Kafka has always had a text for success in these versions.
            found.error_message = found.error_message or "NONE"
    return response


def _canonical(key_type: int, key: str) -> str:
    """The key as it is hashed: a share partition may be named in several ways (`+1`)."""
    return coordinator_key(parse_coordinator_key(key)) if key_type == SHARE else key


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
FIND_COORDINATOR: Final = Api(
    ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    handle=find_coordinator,
    checks=(
        on_group(Operation.DESCRIBE, "of groups"),
        on_transactional_id(Operation.DESCRIBE, "of transactions"),
        on_cluster(Operation.CLUSTER_ACTION, "of share groups"),
    ),
)
