"""Fetch by followers: answered as soon as there is anything to replicate, committed or not."""

from __future__ import annotations

import asyncio
from functools import partial

from millrace.broker.handlers.fetch.record_answers import RecordsAnswer
from millrace.broker.replication.replica_sessions import (
    HIGH_WATERMARK_DELAY_S,
    ReplicaSession,
    ReplicaSessions,
    SessionRefused,
    steady_ms,
)
from millrace.security.acls.binding import Operation
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import FetchRequest


class ReplicaFetch:
    """One request of a follower that `sessions.is_replica` has accepted, from its arrival to its answer."""

    __slots__ = ("_answer", "_connection", "_deadline", "_is_hastened", "_request", "_session", "_sessions")

    _session: ReplicaSession
    _deadline: asyncio.TimerHandle
    """Set while it waits."""

    def __init__(self, answer: RecordsAnswer, request: FetchRequest, sessions: ReplicaSessions) -> None:
        self._answer = answer
        self._connection = answer.connection
        self._request = request
        self._sessions = sessions
        self._is_hastened = False

    def begin(self) -> None:
        """Take over what the follower says. Answer at once where there is something to tell it, else wait for
        that."""
        connection, request, sessions = self._connection, self._request, self._sessions
        try:
            session = self._session = sessions.enter(request, steady_ms())
        except SessionRefused as refused:
            self._answer.refuse(refused.code)
            return
        # A broker's connection, which no quota of clients holds up.
        connection.throttle = None
        if request.session_epoch <= 0:
            connection.on_close[partial(sessions.connection_ended, session)] = None
        if session.ready or request.max_wait_ms <= 0:
            self._send()
            return
        # The follower has fetched the last records one by one, and the next may come the same way.
        connection.services.lookout.expect_more(connection.loop)
        connection.take_place(self._answer)
        wait_s = request.max_wait_ms / 1000
        if session.moved:
            self._is_hastened = True
            wait_s = min(wait_s, HIGH_WATERMARK_DELAY_S)
        self._deadline = connection.loop.call_later(wait_s, self.send_now)
        session.waiting = self

    def wake(self) -> None:
        """Soon, not now: batches that came together travel together."""
        self._stop_waiting()
        self._connection.services.wakeups.add(self._send)

    def wake_later(self) -> None:
        """News of the high watermark waits a moment for records to travel with."""
        if not self._is_hastened:
            self._is_hastened = True
            self._deadline.cancel()
            self._deadline = self._connection.loop.call_later(HIGH_WATERMARK_DELAY_S, self.send_now)

    def send_now(self) -> None:
        """Whatever there is to tell, were it nothing."""
        self._stop_waiting()
        self._send()

    def permissions_changed(self) -> None:
        """Who may not act as a broker any more is told so now."""
        if not self._is_allowed():
            self.send_now()

    def _is_allowed(self) -> bool:
        return self._connection.decisions.allows_on_cluster(Operation.CLUSTER_ACTION)

    def _stop_waiting(self) -> None:
        self._deadline.cancel()
        self._session.waiting = None

    def _send(self) -> None:
        # Asked in full only where there are permissions: followers fetch for every few records.
        if self._connection.services.access.authorizer is not None and not self._is_allowed():
            self._answer.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return
        topics = self._sessions.read(self._session, self._request.max_bytes)
        self._answer.send(topics, self._session.session_id, read_again=self._send)
