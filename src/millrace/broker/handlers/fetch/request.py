"""A Fetch request, from its bytes to the one who serves it."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.fetch.record_answers import RecordsAnswer
from millrace.broker.handlers.fetch.replica_fetch import ReplicaFetch
from millrace.broker.handlers.fetch.serving import Fetch
from millrace.broker.network.checks import on_cluster, on_topic
from millrace.broker.network.dispatch import Api
from millrace.broker.network.fetch_sessions import (
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIdsDiffer,
)
from millrace.broker.wire_errors import error_code
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.fetch_codec import (
    REPLICA_STATE_FROM,
    TOPIC_IDS_FROM,
    FetchRequest,
    decode_request,
    request_shape,
)

SHAPE_BYTES_MAX: Final = 4_096
"""Of requests that are remembered: one partition, a rack, and what belongs to a session take far less."""


def fetch(answer: RecordsAnswer) -> None:
    """Serve a consumer that repeats itself by its last Fetch, a follower by its session, all others by a
    Fetch of their own."""
    connection, route = answer.connection, answer.route
    last: Fetch | None = connection.recognised[route].get(connection)
    if last is not None and last.begin_again(answer):
        return
    # Once an answer waits, its bytes are gone.
    buffer, body, stop = answer.buffer, answer.body, answer.stop
    request = decode_request(buffer, body, stop, route.version)
    services = connection.services
    if request.replica_id >= 0 and route.version >= REPLICA_STATE_FROM:
        replicas = services.replica_sessions
        if (
            replicas is not None
            # Or anybody could say what a follower has, and have it counted.
            and (
                services.access.authorizer is None
                or connection.decisions.allows_on_cluster(Operation.CLUSTER_ACTION)
            )
            and replicas.is_replica(request)
        ):
            ReplicaFetch(answer, request, replicas).begin()
            return
    connection.fetched_at = answer.started
    if connection.throttle is not None:
        request = _within(connection.throttle.fetch_bytes_max, request)
    try:
        plan = services.fetch_sessions.plan(
            request,
            uses_topic_ids=route.version >= TOPIC_IDS_FROM,
            now_ms=services.clock.wall_ms(),
            owner=connection.decisions.identity.principal,
        )
    except (SessionNotFound, InvalidSessionEpoch, SessionTopicIdsDiffer) as error:
        answer.refuse(error_code(error))
        return
    begun = Fetch(answer, request, plan)
    begun.begin()
    if begun.is_at_end and stop - body <= SHAPE_BYTES_MAX:
        begun.shape = request_shape(buffer, body, stop, route.version, request)
        if begun.shape is not None:
            # A consumer at the end of one partition asks for the same again and again.
            connection.recognised.remember(route, connection, begun)


def _within(bytes_max: float | None, request: FetchRequest) -> FetchRequest:
    """The request, asking for no more than a quota lets through at once: more could never be had."""
    if bytes_max is None or request.max_bytes <= bytes_max:
        return request
    size = max(int(bytes_max), 1)
    return request._replace(max_bytes=size, min_bytes=min(request.min_bytes, size))


# v7 sessions, v9 leader epochs, v11 racks, v12 flexible encoding and divergence, v13 topic ids, v15
# replica state.
FETCH: Final = Api(
    ApiKey.FETCH,
    versions=(4, 18),
    handle=fetch,
    checks=(on_cluster(Operation.CLUSTER_ACTION, "followers"), on_topic(Operation.READ, "all others")),
    direct=True,
    request_type=RecordsAnswer,
)
