"""A Fetch request, from its bytes to the one who serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.fetch.record_answers import RecordsAnswer
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
from millrace.wire.fetch_codec import REPLICA_STATE_FROM, TOPIC_IDS_FROM, decode_request, request_shape

if TYPE_CHECKING:
    from millrace.broker.network.requests import Request


def fetch(asked: Request) -> None:
    """Serve a consumer that repeats itself by its last Fetch, a follower by its session, all others by a
    Fetch of their own."""
    connection, route, buffer = asked.connection, asked.route, asked.buffer
    body, stop, correlation_id, started = asked.body, asked.stop, asked.correlation_id, asked.started
    last: Fetch | None = connection.recognised[route].get(connection)
    if last is not None and last.begin_again(route, buffer, body, stop, correlation_id, started):
        return
    request = decode_request(buffer, body, stop, route.version)
    services = connection.services
    answer = RecordsAnswer(connection, route, correlation_id, started)
    if request.replica_id >= 0 and route.version >= REPLICA_STATE_FROM:
        replicas = services.replica_sessions
        if replicas is not None and replicas.is_replica(request):
            replica_fetch(answer, request, replicas)
            return
    connection.fetched_at = started
    try:
        plan = services.fetch_sessions.plan(
            request, uses_topic_ids=route.version >= TOPIC_IDS_FROM, now_ms=services.clock.wall_ms()
        )
    except (SessionNotFound, InvalidSessionEpoch, SessionTopicIdsDiffer) as error:
        answer.refuse(error_code(error))
        return
    begun = Fetch(answer, request, plan)
    begun.begin()
    if begun.is_at_end:
        begun.shape = request_shape(buffer, body, stop, route.version, request)
        if begun.shape is not None:
            # A consumer at the end of one partition asks for the same again and again.
            connection.recognised.remember(route, connection, begun)


# v7 sessions, v9 leader epochs, v11 racks, v12 flexible encoding and divergence, v13 topic ids, v15
# replica state.
FETCH: Final = Api(ApiKey.FETCH, versions=(4, 18), handle=fetch, direct=True)
