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
from millrace.wire.fetch_codec import FetchRequest


def replica_fetch(answer: RecordsAnswer, request: FetchRequest, sessions: ReplicaSessions) -> None:
    """Take over what a follower says that `sessions.is_replica` has accepted, and tell it what is new."""
    sessions.release(request.replica_id)
    try:
        session = sessions.enter(request, steady_ms())
    except SessionRefused as refused:
        answer.refuse(refused.code)
        return
    if request.session_epoch <= 0:
        answer.connection.on_close[partial(sessions.connection_ended, session)] = None
    ReplicaFetch(answer, request, sessions, session).begin()


class ReplicaFetch:
    """One request of a follower, from its arrival to its answer."""

    __slots__ = ("_answer", "_connection", "_deadline", "_is_hastened", "_request", "_session", "_sessions")

    def __init__(
        self,
        answer: RecordsAnswer,
        request: FetchRequest,
        sessions: ReplicaSessions,
        session: ReplicaSession,
    ) -> None:
        self._answer = answer
        self._connection = answer.connection
        self._request = request
        self._sessions = sessions
        self._session = session
        self._deadline: asyncio.TimerHandle | None = None
        self._is_hastened = False

    def begin(self) -> None:
        """Answer at once where there is something to tell, else wait for it."""
        session = self._session
        if session.ready or self._request.max_wait_ms <= 0:
            self._send()
            return
        connection = self._connection
        # The follower has fetched the last records one by one, and the next may come the same way.
        connection.services.lookout.expect_more(connection.loop)
        self._answer.reserve()
        wait_s = self._request.max_wait_ms / 1000
        if session.moved:
            self._is_hastened = True
            wait_s = min(wait_s, HIGH_WATERMARK_DELAY_S)
        self._deadline = connection.loop.call_later(wait_s, self._send_now)
        session.wait(wake=self._wake, wake_later=self._wake_later, release=self._send_now)

    def _wake(self) -> None:
        """Soon, not now: batches that came together travel together."""
        self._stop_waiting()
        self._connection.services.wakeups.add(self._send)

    def _wake_later(self) -> None:
        if not self._is_hastened and self._deadline is not None:
            self._is_hastened = True
            self._deadline.cancel()
            self._deadline = self._connection.loop.call_later(HIGH_WATERMARK_DELAY_S, self._send_now)

    def _send_now(self) -> None:
        self._stop_waiting()
        self._send()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._session.wait_over()

    def _send(self) -> None:
        topics = self._sessions.read(self._session, self._request.max_bytes)
        self._answer.send(topics, self._session.session_id)
