"""A consumer's Fetch, from its first look at the logs to its answer: now, or when there is more to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.fetch.reading import Reading
from millrace.broker.handlers.fetch.record_answers import RecordsAnswer
from millrace.broker.network.fetch_sessions import FINAL_EPOCH, FetchPlan
from millrace.broker.network.pace import LARGE_ANSWER_BYTES, Pace
from millrace.wire.fetch_codec import (
    ENDPOINTS_FROM,
    FLEXIBLE_FROM,
    READ_COMMITTED,
    FetchRequest,
    RequestShape,
    TopicData,
    repeated,
    sole_records_frame,
)
from millrace.wire.framing import NodeEndpoint

if TYPE_CHECKING:
    from millrace.replica.waiting import Newest

SMALL_ANSWER_BYTES: Final = 128 * 1024
"""A consumer that asks for so little at a time waits for each answer: see `network.lookout`. One that asks
for more wants throughput, and needs the core for itself."""

ANSWER_BYTES: Final = 40
PARTITION_BYTES: Final = 60
"""About what an answer has beside its records: once, and for each partition with its name or id."""


class Fetch:
    """One consumer's request: what it asks for (the plan), what it finds (`Reading`), how long it waits, and
    its answer (`RecordsAnswer`).

    A consumer at the end of its partition asks for the same again and again. Its Fetch is remembered and
    offered the next requests. Those that repeat the first one it serves as well, one at a time and without
    decoding them (`begin_again`). It answers them with the batches that were just written, without reading
    these, where reading could find nothing else (`more_records`).
    """

    __slots__ = (
        "_answer",
        "_connection",
        "_deadline",
        "_is_waiting",
        "_newest",
        "_pending_bytes",
        "_plan",
        "_reading",
        "_request",
        "_services",
        "_stable_offsets",
        "shape",
    )

    def __init__(self, answer: RecordsAnswer, request: FetchRequest, plan: FetchPlan) -> None:
        self._answer = answer
        self._connection = connection = answer.connection
        self._services = services = connection.services
        self._request = request
        self._plan = plan
        self._reading = Reading(services, connection.decisions, answer.route.stats, request, plan)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._pending_bytes = 0
        self._stable_offsets: Sequence[int] = ()
        """The last stable offsets of the partitions, when a reader of committed records began to wait."""
        self._newest: tuple[int, bytes] | None = None
        """The high watermark and the batches below it that answer the request."""
        self.shape: RequestShape | None = None
        """Set for a request that may be repeated."""

    def begin(self) -> None:
        """Answer at once where there is enough to say, else wait for more records."""
        connection, request, reading = self._connection, self._request, self._reading
        pace = connection.out.pace
        hold_s = 0.0
        if pace is not None and self._services.settings.paces_fetches:
            hold_s = pace.hold_s(self._answer.started)
        reading.read()
        size_bytes = reading.size_bytes
        if reading.unread_aborted:
            self._send(is_read=True)
        elif hold_s > 0 and size_bytes >= LARGE_ANSWER_BYTES and reading.is_catching_up():
            # No longer than the client would wait for records that are not there yet.
            self._hold(min(hold_s, request.max_wait_ms / 1000))
        elif (
            size_bytes >= request.min_bytes
            or reading.is_urgent
            or request.max_wait_ms <= 0
            or not reading.partitions
        ):
            self._send(is_read=True)
            if 0 < size_bytes <= SMALL_ANSWER_BYTES:
                self._services.lookout.expect_more(connection.loop)
        else:
            self._wait(size_bytes)

    @property
    def is_at_end(self) -> bool:
        """Whether it waits for the next records of one partition, which has no other replica."""
        partitions = self._reading.partitions
        return (
            self._is_waiting
            and len(partitions) == len(self._plan.targets) == 1
            and partitions[0].leads_alone
            and not self._pending_bytes
            and (self._plan.is_incremental or self._request.session_epoch == FINAL_EPOCH)
        )

    def begin_again(self, answer: RecordsAnswer) -> bool:
        """Wait on behalf of a request that differs from the last one in its offset only, where that offset is
        the end of the log. False if it is another request, and then nothing has changed."""
        shape, partitions = self.shape, self._reading.partitions
        if shape is None or not self._answer.is_over or not partitions:
            return False
        found = repeated(shape, answer.buffer, answer.body, answer.stop)
        if found is None:
            return False
        session_epoch, offset = found
        plan, partition = self._plan, partitions[0]
        target, log = plan.targets[0], partition.log
        if (
            offset != log.log_end_offset
            or offset != log.last_stable_offset
            or not partition.leads_alone
            or target.current_leader_epoch not in (-1, partition.leader_epoch)
        ):
            return False
        session, services = plan.session, self._services
        if session is None:
            if session_epoch != FINAL_EPOCH:
                return False
        elif services.fetch_sessions.is_next(session, session_epoch, target):
            session.used(services.clock.wall_ms())
        else:
            return False
        self._answer = answer
        self._connection.fetched_at = answer.started
        target.fetch_offset = offset
        partition.stats.fetches += 1
        self._wait(0)
        return True

    # Waiting for records, or for an index.

    def _wait(self, found_bytes: int) -> None:
        connection, partitions = self._connection, self._reading.partitions
        connection.take_place(self._answer)
        self._is_waiting = True
        self._pending_bytes = found_bytes
        if self._request.isolation_level == READ_COMMITTED:
            self._stable_offsets = [partition.log.last_stable_offset for partition in partitions]
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = connection.loop.call_later(self._request.max_wait_ms / 1000, self._expire)
        for partition in partitions:
            partition.fetch_waiters[self] = None
        connection.on_close[self._stop_waiting] = None

    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        """A partition has more to read: these batches, where they are known."""
        targets = self._plan.targets
        if newest is not None and len(targets) == 1 and self._is_waiting and not self._pending_bytes:
            first_offset, records = newest
            target, partition, request = targets[0], self._reading.partitions[0], self._request
            size = len(records)
            # Where reading could find nothing but these records, it is left out.
            if (
                partition.leads_alone
                and target.fetch_offset == first_offset
                and target.current_leader_epoch in (-1, partition.leader_epoch)
                and request.min_bytes <= size <= target.max_bytes
                and size <= min(request.max_bytes, self._services.settings.fetch_bytes_max)
                # No transaction is open, and none that was aborted reaches behind the former end of the log.
                and partition.log.last_stable_offset == partition.log.high_watermark
                and self._answer.route.version >= FLEXIBLE_FROM
            ):
                self._is_waiting = False
                self._newest = partition.log.high_watermark, records
                self._services.wakeups.add(self._send_newest)
                return
        self._pending_bytes += size_bytes
        if self._pending_bytes >= self._request.min_bytes and self._is_waiting:
            if self._request.isolation_level == READ_COMMITTED and not self._sees_more():
                # Records of an open transaction: there is nothing to read before it ends.
                return
            # Soon, not now: batches that came together are fetched together.
            self._stop_waiting()
            self._services.wakeups.add(self._send)

    def changed(self) -> None:
        """A partition changed in a way that waiting cannot mend."""
        if self._is_waiting:
            self._stop_waiting()
            self._services.wakeups.add(self._send)

    def permissions_changed(self) -> None:
        """Tell the consumer now if it may not read any more what it waits for."""
        if not self._reading.is_still_allowed:
            # Neither may it have what was found for it but has not left.
            self._newest = None
            self.changed()

    def _sees_more(self) -> bool:
        return any(
            partition.log.last_stable_offset > before
            for partition, before in zip(self._reading.partitions, self._stable_offsets, strict=True)
        )

    def _expire(self) -> None:
        if self._is_waiting:
            self._stop_waiting()
            self._send()

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for partition in self._reading.partitions:
            partition.fetch_waiters.pop(self, None)
        self._connection.on_close.pop(self._stop_waiting, None)

    async def _learn_aborted_and_send(self) -> None:
        await self._reading.read_with_aborted()
        self._send(is_read=True)

    # Answering no faster than the application reads: see `network.pace`.

    def _hold(self, hold_s: float) -> None:
        connection = self._connection
        self._answer.reserve()
        self._deadline = connection.loop.call_later(hold_s, self._end_hold)
        connection.on_close[self._stop_waiting] = None

    def _end_hold(self) -> None:
        self._stop_waiting()
        self._send()

    def _tell_pace(self, now: float) -> None:
        out = self._connection.out
        if not self._reading.is_catching_up():
            if out.pace is not None:
                out.pace.caught_up(now)
            return
        if out.pace is None:
            out.pace = Pace(now)
        out.pace.sent(self._reading.size_bytes, now)

    # Answering.

    def _send(self, *, is_read: bool = False) -> None:
        """Send what there is to read now, or what `is_read` already."""
        reading = self._reading
        if not is_read:
            reading.read()
        if reading.unread_aborted:
            self._answer.reserve()
            self._connection.start_task(self._learn_aborted_and_send())
            return
        throttle = self._connection.throttle
        if throttle is not None and throttle.holds_back(
            _answer_bytes(reading.size_bytes, len(reading.results))
        ):
            self._send_nothing()
            return
        topics = reading.topics_to_tell()
        endpoints = self._leaders_named(topics) if reading.is_urgent else ()
        is_paced = reading.size_bytes >= LARGE_ANSWER_BYTES or self._connection.out.pace is not None
        self._answer.send(
            topics,
            self._plan.session_id,
            endpoints,
            self._tell_pace if is_paced else None,
            read_again=self._send,
        )

    def _send_nothing(self) -> None:
        """The consumer has had too much: it is to ask again later, and is told nothing new before."""
        plan, sessions = self._plan, self._services.fetch_sessions
        session_id = plan.session_id
        if plan.session is not None and not plan.is_incremental:
            # It would miss its partitions in the first answer of a session, and begins another.
            sessions.end(plan.session)
            session_id = 0
        self._answer.send([], session_id, read_again=self._send)

    def _leaders_named(self, topics: list[TopicData]) -> Sequence[NodeEndpoint]:
        if self._answer.route.version < ENDPOINTS_FROM:
            return ()
        named = [
            data.current_leader[0]
            for topic in topics
            for data in topic.partitions
            if data.current_leader is not None
        ]
        return self._services.endpoints_of(named, self._connection.endpoint.listener) if named else ()

    def _send_newest(self) -> None:
        """As `_send`, for records of one partition that are still in memory."""
        newest, self._newest = self._newest, None
        answer = self._answer
        if answer.is_over:
            # The connection has ended.
            return
        if newest is None:
            # It may not have them any more.
            self._stop_waiting()
            self._send()
            return
        high_watermark, records = newest
        target, partition = self._plan.targets[0], self._reading.partitions[0]
        log = partition.log
        log_start_offset = log.log_start_offset
        if high_watermark != log.high_watermark:
            # Batches that came together are fetched together.
            self._stop_waiting()
            self._send()
            return
        throttle = self._connection.throttle
        if throttle is not None and throttle.holds_back(_answer_bytes(len(records), 1)):
            self._stop_waiting()
            self._send_nothing()
            return
        partition.stats.bytes_out += len(records)
        pace = self._connection.out.pace
        if pace is not None:
            pace.caught_up(self._connection.ticks())
        if self._plan.session is not None:
            target.told_high_watermark = high_watermark
            target.told_log_start_offset = log_start_offset
        answer.route.stats.record(self._connection.ticks() - answer.started)
        frame = sole_records_frame(
            answer.correlation_id,
            self._plan.session_id,
            (target.topic, target.topic_id),
            (target.partition, high_watermark, log.last_stable_offset, log_start_offset),
            records,
            tells_aborted=self._request.isolation_level == READ_COMMITTED,
        )
        self._connection.complete(answer, frame)
        # Tidying up waits until the records are on their way, and is left out if the next request has come
        # with their answer.
        if not self._is_waiting:
            self._stop_waiting()


def _answer_bytes(records_bytes: int, partitions: int) -> int:
    """What a consumer is charged for: the whole answer, nearly to the byte."""
    return records_bytes + ANSWER_BYTES + partitions * PARTITION_BYTES
