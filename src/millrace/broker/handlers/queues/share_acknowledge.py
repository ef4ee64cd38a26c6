"""ShareAcknowledge: a member says what has become of the records that it was given, and fetches nothing."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.queues.share_requests import (
    Acknowledgements,
    Refusal,
    by_topic,
    endpoints_of,
    leader_of,
    refusal,
    told,
)
from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.dispatch import Api
from millrace.broker.network.requests import Request
from millrace.broker.queues.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    InvalidShareSessionEpoch,
    ShareSession,
    ShareSessions,
)
from millrace.core.errors import MillraceError
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.share_codec import (
    VERSIONS,
    PartitionResult,
    acknowledge_frame,
    decode_acknowledge,
)


def share_acknowledge(answer: Request) -> None:
    """Serve a ShareAcknowledge; its answer leaves when what it says is stored."""
    connection, version = answer.connection, answer.route.version
    request = decode_acknowledge(answer.buffer, answer.body, answer.stop, version)
    group_id, member_id = request.group_id, request.member_id
    refused = refusal(connection.decisions, group_id, member_id)
    if refused is not None:
        _refuse(answer, refused)
        return
    assert group_id is not None
    assert member_id is not None
    shares = connection.services.shares
    try:
        session = _session(shares.sessions, group_id, member_id, request.session_epoch)
    except MillraceError as error:
        _refuse(answer, told(error))
        return
    if session.waiting is not None:
        # Its answer has to leave before this one.
        session.waiting.hurry()
    acks = Acknowledgements()
    acks.take(
        connection,
        shares,
        (group_id, member_id),
        request.partitions,
        version=version,
        is_renewal=request.is_renewal,
    )
    ending = session if request.session_epoch == FINAL_EPOCH else None
    if acks.are_stored:
        _answer(answer, acks, group_id, ending)
    else:
        connection.take_place(answer)
        acks.when_stored(lambda: _answer(answer, acks, group_id, ending))


def _session(sessions: ShareSessions, group_id: str, member_id: str, epoch: int) -> ShareSession:
    if epoch == INITIAL_EPOCH:
        # Who has fetched nothing has nothing to acknowledge.
        raise InvalidShareSessionEpoch(group_id, member_id, epoch=epoch, expected=1)
    if epoch == FINAL_EPOCH:
        return sessions.find(group_id, member_id)
    return sessions.resume(group_id, member_id, epoch)


def _answer(answer: Request, acks: Acknowledgements, group_id: str, ending: ShareSession | None) -> None:
    connection, route = answer.connection, answer.route
    services, shares = connection.services, connection.services.shares
    lock_ms = shares.settings_of(group_id).lock_duration_ms
    if ending is not None:
        shares.end_session(ending, in_order=True)
    results = []
    for key, (code, message) in acks.outcomes.items():
        if code:
            route.stats.count_error(code)
        leader = leader_of(services, key, code)
        results.append((key[0], PartitionResult(key[1], code, message, leader=leader)))
    frame = acknowledge_frame(
        answer.correlation_id,
        route.version,
        by_topic(results),
        lock_ms=lock_ms,
        endpoints=endpoints_of(connection, results),
    )
    route.stats.record(connection.ticks() - answer.started)
    answer.complete(frame)


def _refuse(answer: Request, refused: Refusal) -> None:
    code, message = refused
    route = answer.route
    route.stats.count_error(code)
    answer.complete(
        acknowledge_frame(
            answer.correlation_id, route.version, (), lock_ms=0, error_code=code, error_message=message
        )
    )


# v2 renewals, and the lock's duration in answers.
SHARE_ACKNOWLEDGE: Final = Api(
    ApiKey.SHARE_ACKNOWLEDGE,
    versions=VERSIONS,
    handle=share_acknowledge,
    checks=(on_group(Operation.READ), on_topic(Operation.READ)),
    direct=True,
)
