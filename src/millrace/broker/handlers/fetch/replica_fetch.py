"""Fetch by followers: answered as soon as there is anything to replicate, committed or not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

from millrace.broker.handlers.fetch.record_answers import send_chunks, send_records, warm_all
from millrace.broker.network.outgoing import Chunk
from millrace.broker.replication.replica_sessions import (
    HIGH_WATERMARK_DELAY_S,
    ReplicaSession,
    ReplicaSessions,
    SessionRefused,
    steady_ms,
)
from millrace.log.partition.log_slice import LogSlice
from millrace.wire.fetch_codec import (
    FetchRequest,
    TopicData,
    body_size,
    encode_error,
    encode_response,
    encode_single,
)
from millrace.wire.framing import FLEXIBLE_RESPONSE_HEAD, response_frame

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.broker.network.requests import Slot


def replica_fetch(
    connection: Connection,
    route: Route,
    correlation_id: int,
    started: float,
    request: FetchRequest,
    sessions: ReplicaSessions,
) -> None:
    """For a request that `sessions.is_replica` has accepted; of a version with topic ids."""
    sessions.release(request.replica_id)
    try:
        session = sessions.enter(request, steady_ms())
    except SessionRefused as refused:
        route.stats.count_error(refused.code)
        answer = encode_error(refused.code, 0, route.version)
        connection.send(response_frame(correlation_id, answer, flexible=True))
        return
    if request.session_epoch <= 0:
        connection.on_close[partial(sessions.connection_ended, session)] = None
    _ReplicaFetch(connection, route, correlation_id, started, request, sessions, session).begin()


class _ReplicaFetch:
    """One request, from its arrival to its answer."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_deadline",
        "_is_hastened",
        "_request",
        "_route",
        "_session",
        "_sessions",
        "_slot",
        "_started",
    )

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        started: float,
        request: FetchRequest,
        sessions: ReplicaSessions,
        session: ReplicaSession,
    ) -> None:
        self._connection = connection
        self._route = route
        self._correlation_id = correlation_id
        self._started = started
        self._request = request
        self._sessions = sessions
        self._session = session
        self._slot: Slot | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_hastened = False

    def begin(self) -> None:
        session = self._session
        if session.ready or self._request.max_wait_ms <= 0:
            self._answer()
            return
        connection = self._connection
        # What it has fetched before came one by one, and so may the next.
        connection.services.lookout.expect_more(connection.loop)
        self._slot = connection.reserve()
        wait_s = self._request.max_wait_ms / 1000
        if session.moved:
            self._is_hastened = True
            wait_s = min(wait_s, HIGH_WATERMARK_DELAY_S)
        self._deadline = connection.loop.call_later(wait_s, self._answer_now)
        session.wait(wake=self._wake, wake_later=self._wake_later, release=self._answer_now)

    def _wake(self) -> None:
        """Soon, not now: batches that came together travel together."""
        self._stop_waiting()
        self._connection.services.wakeups.add(self._answer)

    def _wake_later(self) -> None:
        if not self._is_hastened and self._deadline is not None:
            self._is_hastened = True
            self._deadline.cancel()
            self._deadline = self._connection.loop.call_later(HIGH_WATERMARK_DELAY_S, self._answer_now)

    def _answer_now(self) -> None:
        self._stop_waiting()
        self._answer()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._session.wait_over()

    # Answering.

    def _answer(self) -> None:
        topics = self._sessions.read(self._session, self._request.max_bytes)
        cold = [
            data.records
            for topic in topics
            for data in topic.partitions
            if isinstance(data.records, LogSlice) and data.records.is_cold()
        ]
        if cold:
            if self._slot is None:
                self._slot = self._connection.reserve()
            self._connection.start_task(self._warm_and_send(cold, topics))
        else:
            self._send(topics)

    async def _warm_and_send(self, cold: list[LogSlice], topics: list[TopicData]) -> None:
        """A follower that is far behind reads old files: from the disk in a thread, never on the loop."""
        await warm_all(self._connection.services.log_directories.volume, cold)
        self._send(topics)

    def _send(self, topics: list[TopicData]) -> None:
        route = self._route
        route.stats.record(self._connection.ticks() - self._started)
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            around = encode_single(self._correlation_id, self._session.session_id, route.version, topics[0])
            if around is not None:
                records = cast("LogSlice", topics[0].partitions[0].records)
                send_records(self._connection, self._slot, around[0], records, around[1])
                return
        body = encode_response(topics, self._session.session_id, route.version)
        head = FLEXIBLE_RESPONSE_HEAD.pack(body_size(body) + 5, self._correlation_id, 0)
        assert isinstance(body[0], bytes), body[0]
        send_chunks(self._connection, self._slot, [head + body[0], *cast("list[Chunk]", body[1:])])
