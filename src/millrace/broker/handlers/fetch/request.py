"""A Fetch request, from its bytes to the one who serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.fetch.replica_fetch import replica_fetch
from millrace.broker.handlers.fetch.serving import Fetch
from millrace.broker.network.dispatch import Api
from millrace.broker.network.fetch_sessions import (
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIdsDiffer,
)
from millrace.broker.wire_errors import error_code
from millrace.wire.api_keys import ApiKey
from millrace.wire.fetch_codec import (
    REPLICA_STATE_FROM,
    TOPIC_IDS_FROM,
    decode_request,
    encode_error,
    request_shape,
)
from millrace.wire.framing import response_frame

if TYPE_CHECKING:
    from millrace.broker.network.requests import Request


def fetch(asked: Request) -> None:
    """Answer at once where there is enough to read, else when there is."""
    connection, route, correlation_id, started = (
        asked.connection,
        asked.route,
        asked.correlation_id,
        asked.started,
    )
    buffer, body, stop = asked.buffer, asked.body, asked.stop
    last: Fetch | None = connection.recognised[route].get(connection)
    if last is not None and last.begin_again(route, buffer, body, stop, correlation_id, started):
        return
    request = decode_request(buffer, body, stop, route.version)
    services = connection.services
    if request.replica_id >= 0:
        sessions = services.replica_sessions
        if sessions is not None and route.version >= REPLICA_STATE_FROM and sessions.is_replica(request):
            replica_fetch(connection, route, correlation_id, started, request, sessions)
            return
    connection.fetched_at = started
    try:
        plan = services.fetch_sessions.plan(
            request, uses_topic_ids=route.version >= TOPIC_IDS_FROM, now_ms=services.clock.wall_ms()
        )
    except (SessionNotFound, InvalidSessionEpoch, SessionTopicIdsDiffer) as error:
        code = error_code(error)
        route.stats.count_error(code)
        # Without a session id, as Kafka: the client has to begin a new session.
        answer = encode_error(code, 0, route.version)
        connection.send(response_frame(correlation_id, answer, flexible=route.flexible_response))
        return
    begun = Fetch(connection, route, correlation_id, started, request, plan)
    begun.begin()
    if begun.is_at_end:
        begun.shape = request_shape(buffer, body, stop, route.version, request)
        if begun.shape is not None:
            # A consumer at the end of one partition asks for the same again and again.
            connection.recognised.remember(route, connection, begun)


# v7 sessions, v9 leader epochs, v11 racks, v12 flexible encoding and divergence, v13 topic ids, v15
# replica state.
FETCH: Final = Api(ApiKey.FETCH, versions=(4, 18), handle=fetch, direct=True)
