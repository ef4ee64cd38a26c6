"""A ShareFetch request, from its bytes to its session and the one who serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.queues.share_requests import Refusal, refusal, told
from millrace.broker.handlers.queues.share_serving import ShareFetch, refuse
from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.dispatch import Api
from millrace.broker.network.requests import Request
from millrace.broker.queues.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    AcknowledgedTooEarly,
    ShareSession,
    ShareSessionLimitReached,
)
from millrace.core.errors import MillraceError
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.share_codec import VERSIONS, ShareFetchRequest, decode_fetch

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection

_ZERO_IN_RENEWALS: Final = (
    ("max_bytes", "maxBytes"),
    ("min_bytes", "minBytes"),
    ("max_records", "maxRecords"),
    ("max_wait_ms", "maxWaitMs"),
)


def share_fetch(answer: Request) -> None:
    """Find the session of a fetch, and serve it."""
    connection = answer.connection
    request = decode_fetch(answer.buffer, answer.body, answer.stop, answer.route.version)
    refused = refusal(connection.decisions, request.group_id, request.member_id) or _wrong_renewal(request)
    if refused is not None:
        refuse(answer, refused)
        return
    connection.fetched_at = answer.started
    try:
        session = _session(connection, request)
    except ShareSessionLimitReached as error:
        # Whoever has no room is to come back, and not at once.
        if request.max_wait_ms <= 0:
            refuse(answer, told(error))
            return
        connection.take_place(answer)
        connection.services.deadlines.add(connection.loop, request.max_wait_ms, _NoRoom(answer, told(error)))
        return
    except MillraceError as error:
        refuse(answer, told(error))
        return
    if session.waiting is not None:
        session.waiting.hurry()
    ShareFetch(answer, request, session).begin()


def _session(connection: Connection, request: ShareFetchRequest) -> ShareSession:
    """The session that a request opens, goes on with or ends."""
    group_id, member_id, epoch = request.group_id, request.member_id, request.session_epoch
    assert group_id is not None
    assert member_id is not None
    shares = connection.services.shares
    sessions = shares.sessions
    keys = [(asked.topic_id, asked.partition) for asked in request.partitions]
    if epoch == FINAL_EPOCH:
        return sessions.find(group_id, member_id)
    if epoch != INITIAL_EPOCH:
        session = sessions.resume(group_id, member_id, epoch)
        session.change(keys, request.forgotten)
        return session
    if any(asked.acks for asked in request.partitions):
        raise AcknowledgedTooEarly(group_id, member_id)

    def lost() -> None:
        shares.end_session(session, in_order=False)

    def ended() -> None:
        connection.on_close.pop(lost, None)

    session = sessions.begin(group_id, member_id, keys, on_end=ended)
    connection.on_close[lost] = None
    return session


def _wrong_renewal(request: ShareFetchRequest) -> Refusal | None:
    """A fetch that renews locks must not ask for records: waiting for them could outlast the locks."""
    if not request.is_renewal:
        return None
    wrong = [name for field, name in _ZERO_IN_RENEWALS if getattr(request, field) != 0]
    if not wrong:
        return None
    named = ", ".join(f"{name} must be set to 0" for name in wrong)
    return ErrorCode.INVALID_REQUEST, f"{named}, if isRenewAck is true."


class _NoRoom:
    """A fetch that would have opened one session too many."""

    __slots__ = ("_answer", "_refused")

    def __init__(self, answer: Request, refused: Refusal) -> None:
        self._answer = answer
        self._refused = refused

    @property
    def is_over(self) -> bool:
        return self._answer.is_over

    def expire(self) -> None:
        refuse(self._answer, self._refused)


# v2 exact limits and renewals.
SHARE_FETCH: Final = Api(
    ApiKey.SHARE_FETCH,
    versions=VERSIONS,
    handle=share_fetch,
    checks=(on_group(Operation.READ), on_topic(Operation.READ)),
    direct=True,
)
