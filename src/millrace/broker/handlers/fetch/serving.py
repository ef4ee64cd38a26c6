"""One Fetch request, from its first look at the logs to its answer: now, or when there is more to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from millrace.broker.handlers.fetch.reading import FetchReads
from millrace.broker.handlers.fetch.record_answers import send_chunks, send_records, warm_all
from millrace.broker.network.fetch_sessions import FINAL_EPOCH, FetchPlan, FetchTarget
from millrace.broker.network.outgoing import Chunk
from millrace.broker.network.pace import BURST_BYTES, LARGE_ANSWER_BYTES, Pace
from millrace.core.ids import TopicId
from millrace.log.partition.aborted_bounds import learn_aborted
from millrace.log.partition.log_slice import LogSlice
from millrace.wire.fetch_codec import (
    BEHIND_SOLE_RECORDS,
    ENDPOINTS_FROM,
    FLEXIBLE_FROM,
    READ_COMMITTED,
    FetchRequest,
    PartitionData,
    RequestShape,
    TopicData,
    before_sole_records,
    body_size,
    encode_response,
    encode_single,
    repeated,
)
from millrace.wire.framing import FLEXIBLE_RESPONSE_HEAD, RESPONSE_HEAD, NodeEndpoint

SMALL_ANSWER_BYTES: Final = 128 * 1024
"""Who asks for so little at a time waits for each answer: see `broker.lookout`. More is asked for by those
who want throughput, and to them a core is better left."""

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.broker.network.requests import Slot
    from millrace.replica.waiting import Newest


class Fetch(FetchReads):
    __slots__ = (
        "_correlation_id",
        "_deadline",
        "_is_waiting",
        "_newest",
        "_newest_end",
        "_pending_bytes",
        "_slot",
        "_started",
        "shape",
    )

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        started: float,
        request: FetchRequest,
        plan: FetchPlan,
    ) -> None:
        super().__init__(connection, route, request, plan)
        self._correlation_id = correlation_id
        self._started = started
        self._slot: Slot | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._pending_bytes = 0
        self._newest = b""
        self._newest_end = 0
        self.shape: RequestShape | None = None
        """Set for a request that may be repeated."""

    def begin(self) -> None:
        """Answer at once where there is enough to say, else wait for more records."""
        pace = self._connection.out.pace
        hold_s = 0.0
        if pace is not None and self._services.config.boolean("fetch.pacing.enable"):
            hold_s = pace.hold_s(self._started)
        self._read()
        request = self._request
        if self._unread_aborted:
            self._learn_aborted()
        elif hold_s > 0 and self._size_bytes >= LARGE_ANSWER_BYTES and self._is_catching_up():
            # No longer than the client would wait for records that are not there yet.
            self._hold(min(hold_s, request.max_wait_ms / 1000))
        elif (
            self._size_bytes >= request.min_bytes
            or self._urgent
            or request.max_wait_ms <= 0
            or not self._partitions
        ):
            self._answer()
            if 0 < self._size_bytes <= SMALL_ANSWER_BYTES:
                self._services.lookout.expect_more(self._connection.loop)
        else:
            self._wait()

    @property
    def is_at_end(self) -> bool:
        """Whether it waits for the next records of one partition, which has no other replica."""
        return (
            self._is_waiting
            and len(self._partitions) == len(self._plan.targets) == 1
            and self._partitions[0].leads_alone
            and not self._size_bytes
            and (self._plan.is_incremental or self._request.session_epoch == FINAL_EPOCH)
        )

    def begin_again(
        self,
        route: Route,
        buffer: memoryview,
        body: int,
        stop: int,
        correlation_id: int,
        started: float,
    ) -> bool:
        """Wait on behalf of a request that differs from the last one in its offset only, and there is nothing
        to read at that yet; False, with nothing done, if it is another one."""
        shape = self.shape
        if shape is None or self._slot is not None or route is not self._route:
            return False
        found = repeated(shape, buffer, body, stop)
        if found is None:
            return False
        session_epoch, offset = found
        plan, partition = self._plan, self._partitions[0]
        target, log = plan.targets[0], partition.log
        if (
            offset != log.log_end_offset
            or offset != log.last_stable_offset
            or not partition.leads_alone
            or target.current_leader_epoch not in (-1, partition.leader_epoch)
        ):
            return False
        if plan.session is None:
            if session_epoch != FINAL_EPOCH:
                return False
        elif not self._services.fetch_sessions.goes_on(
            plan.session, session_epoch, target, self._services.clock.wall_ms()
        ):
            return False
        self._connection.fetched_at = self._started = started
        self._correlation_id = correlation_id
        self._max_bytes = min(self._request.max_bytes, self._services.fetch_bytes_max)
        partition.stats.fetches += 1
        target.fetch_offset = offset
        self._results = [(target, partition, self._data(target, partition, 0))]
        self._size_bytes = 0
        self._wait()
        return True

    # Answering no faster than the application reads: see `broker.pace`.

    def _hold(self, hold_s: float) -> None:
        connection = self._connection
        self._slot = connection.reserve()
        self._deadline = connection.loop.call_later(hold_s, self._end_hold)
        connection.on_close[self._abandon] = None

    def _end_hold(self) -> None:
        self._deadline = None
        self._connection.on_close.pop(self._abandon, None)
        self._read_and_answer()

    def _is_catching_up(self) -> bool:
        """Whether a partition has much to read behind what was found."""
        return any(
            isinstance(data.records, LogSlice)
            and partition is not None
            and not partition.log.is_near_end(data.records, BURST_BYTES)
            for _, partition, data in self._results
        )

    def _tell_pace(self, now: float) -> None:
        out = self._connection.out
        if not self._is_catching_up():
            if out.pace is not None:
                out.pace.caught_up(now)
            return
        if out.pace is None:
            out.pace = Pace(now)
        out.pace.sent(self._size_bytes, now)

    # Waiting.

    def _wait(self) -> None:
        connection = self._connection
        self._slot = connection.reserve()
        self._is_waiting = True
        self._pending_bytes = self._size_bytes
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = connection.loop.call_later(self._request.max_wait_ms / 1000, self._wake)
        for partition in self._partitions:
            partition.await_records(self)
        connection.on_close[self._abandon] = None

    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        if newest is not None and self._is_answered_by(*newest):
            self._is_waiting = False
            self._newest = newest[1]
            self._newest_end = self._partitions[0].log.high_watermark
            self._services.wakeups.add(self._send_newest)
            return
        self._pending_bytes += size_bytes
        if self._pending_bytes >= self._request.min_bytes and self._is_waiting:
            if self._request.isolation_level == READ_COMMITTED and not self._sees_more():
                # Records of an open transaction: there is nothing to read before it ends.
                return
            # Soon, not now: batches that came together are fetched together.
            self._stop_waiting()
            self._services.wakeups.add(self._read_and_answer)

    def _is_answered_by(self, first_offset: int, records: bytes) -> bool:
        """Whether reading could find nothing else, so that it can be left out."""
        if len(self._results) != 1 or self._pending_bytes or not self._is_waiting:
            return False
        target, partition, _ = self._results[0]
        return (
            partition is not None
            and partition.leads_alone
            and target.fetch_offset == first_offset
            and target.current_leader_epoch in (-1, partition.leader_epoch)
            and self._request.min_bytes <= len(records) <= min(self._max_bytes, target.max_bytes)
            # No transaction is open, and none that was aborted reaches behind the former end of the log.
            and partition.log.last_stable_offset == partition.log.high_watermark
            and self._route.version >= FLEXIBLE_FROM
        )

    def _sees_more(self) -> bool:
        return any(
            partition is not None and partition.log.last_stable_offset > data.last_stable_offset
            for _, partition, data in self._results
        )

    def changed(self) -> None:
        if self._is_waiting:
            self._stop_waiting()
            self._services.wakeups.add(self._read_and_answer)

    def _wake(self) -> None:
        if self._is_waiting:
            self._stop_waiting()
            self._read_and_answer()

    def _read_and_answer(self) -> None:
        self._read()
        if self._unread_aborted:
            self._learn_aborted()
        else:
            self._answer()

    def _learn_aborted(self) -> None:
        if self._slot is None:
            self._slot = self._connection.reserve()
        self._connection.start_task(self._learn_and_answer())

    async def _learn_and_answer(self) -> None:
        """After a start it has to be read once which transactions were aborted; nobody waits for that but who
        asked."""
        unread, self._unread_aborted = self._unread_aborted or [], None
        volume = self._services.log_directories.volume
        await asyncio.gather(*(learn_aborted(volume, log, segments) for log, segments in unread))
        self._read()
        self._unread_aborted = []
        self._answer()

    def _abandon(self) -> None:
        self._slot = None
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for partition in self._partitions:
            partition.stop_waiting(self)
        self._connection.on_close.pop(self._abandon, None)

    # Answering.

    def _answer(self) -> None:
        cold = [
            data.records
            for _, _, data in self._results
            if isinstance(data.records, LogSlice) and data.records.is_cold()
        ]
        if cold:
            if self._slot is None:
                self._slot = self._connection.reserve()
            self._connection.start_task(self._warm_and_send(cold))
        else:
            self._send()

    async def _warm_and_send(self, cold: list[LogSlice]) -> None:
        await warm_all(self._connection.services.log_directories.volume, cold)
        self._send()

    def _send_newest(self) -> None:
        """As `_send`, for records of one partition that are still in memory."""
        records, self._newest = self._newest, b""
        slot = self._slot
        if slot is None:
            # The connection has ended.
            return
        (target, _, _), log = self._results[0], self._partitions[0].log
        high_watermark, log_start_offset = log.high_watermark, log.log_start_offset
        if high_watermark != self._newest_end:
            # Batches that came together are fetched together.
            self._stop_waiting()
            self._read_and_answer()
            return
        self._slot = None
        route, plan, partition = self._route, self._plan, self._partitions[0]
        size = len(records)
        partition.stats.bytes_out += size
        now = self._connection.ticks()
        route.stats.record(now - self._started)
        if self._connection.out.pace is not None:
            self._connection.out.pace.caught_up(now)
        if plan.session is not None:
            target.told_high_watermark = high_watermark
            target.told_log_start_offset = log_start_offset
        before = before_sole_records(
            self._correlation_id,
            plan.session_id,
            (target.topic, target.topic_id),
            (target.partition, high_watermark, log.last_stable_offset, log_start_offset),
            size,
            tells_aborted=self._request.isolation_level == READ_COMMITTED,
        )
        slot.complete(before + records + BEHIND_SOLE_RECORDS)
        # Tidying up can wait until the records are on their way; unless the next request came with that.
        if not self._is_waiting:
            self._stop_waiting()

    def _send(self) -> None:
        slot, self._slot = self._slot, None
        route = self._route
        topics = self._topics_to_tell()
        now = self._connection.ticks()
        route.stats.record(now - self._started)
        if self._size_bytes >= LARGE_ANSWER_BYTES or self._connection.out.pace is not None:
            self._tell_pace(now)
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            around = encode_single(self._correlation_id, self._plan.session_id, route.version, topics[0])
            if around is not None:
                # The records of every partition are the log's own slices.
                records = cast("LogSlice", topics[0].partitions[0].records)
                send_records(self._connection, slot, around[0], records, around[1])
                return
        body = encode_response(topics, self._plan.session_id, route.version, self._leaders_named(topics))
        size = body_size(body)
        if route.flexible_response:
            head = FLEXIBLE_RESPONSE_HEAD.pack(size + 5, self._correlation_id, 0)
        else:
            head = RESPONSE_HEAD.pack(size + 4, self._correlation_id)
        assert isinstance(body[0], bytes), body[0]
        send_chunks(self._connection, slot, [head + body[0], *cast("list[Chunk]", body[1:])])

    def _leaders_named(self, topics: list[TopicData]) -> Sequence[NodeEndpoint]:
        if not self._urgent or self._route.version < ENDPOINTS_FROM:
            return ()
        named = [
            data.current_leader[0]
            for topic in topics
            for data in topic.partitions
            if data.current_leader is not None
        ]
        return self._services.endpoints_of(named, self._connection.endpoint.listener) if named else ()

    def _topics_to_tell(self) -> list[TopicData]:
        """The results by topic; with a session only those with news."""
        topics: list[TopicData] = []
        last: tuple[str, TopicId | None] | None = None
        session = self._plan.session
        incremental = self._plan.is_incremental
        for target, partition, data in self._results:
            if partition is not None and data.records is not None:
                partition.stats.bytes_out += data.records.size_bytes
            if session is not None:
                if incremental and not _is_news(target, data):
                    continue
                target.told_high_watermark = data.high_watermark
                target.told_log_start_offset = data.log_start_offset
                if incremental and data.records is not None and len(session.targets) > 1:
                    session.move_to_end(target)
            name = (target.topic, target.topic_id)
            if name != last:
                topics.append(TopicData(target.topic, target.topic_id, []))
                last = name
            topics[-1].partitions.append(data)
        return topics


def _is_news(target: FetchTarget, data: PartitionData) -> bool:
    return (
        data.records is not None
        or data.error_code != 0
        or data.diverging_epoch is not None
        or data.high_watermark != target.told_high_watermark
        or data.log_start_offset != target.told_log_start_offset
    )
