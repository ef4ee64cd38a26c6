"""Fetch: plan from the session, read slices without touching them, wait where there is too little, answer
by sendfile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from millrace.broker.dispatch import Api, Route
from millrace.broker.fetch_sessions import (
    FetchPlan,
    FetchTarget,
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIdsDiffer,
)
from millrace.broker.handlers.record_answers import send_chunks, send_records, warm
from millrace.broker.handlers.replica_fetch import replica_fetch
from millrace.broker.outgoing import Chunk
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.log.errors import OffsetOutOfRange
from millrace.log.segment import LogSlice
from millrace.replica.partition import FencedLeaderEpoch, NotLeader, UnknownLeaderEpoch
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import (
    ENDPOINTS_FROM,
    READ_COMMITTED,
    REPLICA_STATE_FROM,
    TOPIC_IDS_FROM,
    FetchRequest,
    PartitionData,
    TopicData,
    body_size,
    decode_request,
    encode_error,
    encode_response,
    encode_single,
)
from millrace.wire.framing import FLEXIBLE_RESPONSE_HEAD, RESPONSE_HEAD, NodeEndpoint, response_frame

if TYPE_CHECKING:
    from millrace.broker.connection import Connection, Slot
    from millrace.broker.services import Services
    from millrace.replica.partition import Partition


def fetch(
    connection: Connection,
    route: Route,
    buffer: memoryview,
    body: int,
    stop: int,
    correlation_id: int,
    started: float,
) -> None:
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
    _Fetch(connection, route, correlation_id, started, request, plan).begin()


class _Fetch:
    """One request, from its first look at the logs to its answer."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_deadline",
        "_is_waiting",
        "_max_bytes",
        "_partitions",
        "_pending_bytes",
        "_plan",
        "_request",
        "_results",
        "_route",
        "_services",
        "_size_bytes",
        "_slot",
        "_started",
        "_urgent",
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
        self._connection = connection
        self._services: Services = connection.services
        self._route = route
        self._correlation_id = correlation_id
        self._started = started
        self._request = request
        self._plan = plan
        self._max_bytes = min(request.max_bytes, self._services.fetch_bytes_max)
        self._slot: Slot | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_waiting = False
        self._pending_bytes = 0
        self._results: list[tuple[FetchTarget, Partition | None, PartitionData]] = []
        self._partitions: list[Partition] = []
        self._size_bytes = 0
        self._urgent = False

    def begin(self) -> None:
        """Answer at once where there is enough to say, else wait for more records."""
        self._read()
        request = self._request
        if (
            self._size_bytes >= request.min_bytes
            or self._urgent
            or request.max_wait_ms <= 0
            or not self._partitions
        ):
            self._answer()
        else:
            self._wait()

    # Reading.

    def _read(self) -> None:
        self._results = results = []
        self._partitions = partitions = []
        self._urgent = False
        left = self._max_bytes
        size = 0
        registry = self._services.partitions
        for target in self._plan.targets:
            by_index = (
                registry.by_name.get(target.topic)
                if target.topic_id is None
                else registry.by_id.get(target.topic_id)
            )
            partition = None if by_index is None else by_index.get(target.partition)
            if partition is None:
                data = self._absent(target)
            else:
                partitions.append(partition)
                data = self._read_partition(target, partition, left, size == 0)
            if data.error_code or data.diverging_epoch is not None:
                self._urgent = True
            elif data.records is not None:
                size += data.records.size_bytes
                left -= data.records.size_bytes
            results.append((target, partition, data))
        self._size_bytes = size

    def _read_partition(
        self, target: FetchTarget, partition: Partition, left: int, min_one: bool
    ) -> PartitionData:
        request = self._request
        log = partition.log
        partition.stats.fetches += 1
        try:
            partition.check_epoch(target.current_leader_epoch)
            if request.replica_id >= 0:
                return self._not_a_replica(target, partition)
            if not partition.leads_alone:
                read_replica = self._check_role(target, partition)
                if read_replica >= 0:
                    self._urgent = True
                    return self._data(target, partition, 0)._replace(preferred_read_replica=read_replica)
            if target.last_fetched_epoch >= 0:
                diverging = partition.divergence(target.last_fetched_epoch, target.fetch_offset)
                if diverging is not None:
                    return self._data(target, partition, 0, diverging_epoch=diverging)
            committed_only = request.isolation_level == READ_COMMITTED
            limit = min(left, target.max_bytes)
            found = partition.read(target.fetch_offset, limit, committed_only=committed_only, min_one=min_one)
        except MillraceError as error:
            partition.stats.fetches_failed += 1
            return self._refused(target, partition, error)
        records = found if found.size_bytes > 0 else None
        aborted = None
        if committed_only:
            aborted = [] if records is None else partition.aborted_transactions(target.fetch_offset, records)
        return PartitionData(
            target.partition,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            records,
            aborted,
        )

    def _data(
        self,
        target: FetchTarget,
        partition: Partition,
        code: int,
        *,
        diverging_epoch: tuple[int, int] | None = None,
    ) -> PartitionData:
        log = partition.log
        return PartitionData(
            target.partition,
            code,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            diverging_epoch=diverging_epoch,
        )

    def _check_role(self, target: FetchTarget, partition: Partition) -> int:
        """A follower serves consumers that were sent to it, which name their rack; a leader may send them.

        The replica to read from instead, or -1."""
        rack = self._request.rack_id
        if partition.is_leader:
            if not rack:
                return -1
            return self._services.read_replica(partition, rack, target.fetch_offset)
        if not rack or partition.leader_id < 0:
            partition.refuse_unless_leader()
        partition.log.expect_readers()
        return -1

    def _refused(self, target: FetchTarget, partition: Partition, error: MillraceError) -> PartitionData:
        code = error_code(error)
        is_above = isinstance(error, OffsetOutOfRange) and error.offset > error.log_end_offset
        if is_above and not partition.is_leader:
            # The leader may well have it: nobody is to start over because this replica is behind.
            code = ErrorCode.OFFSET_NOT_AVAILABLE
        data = self._failed(target, code)
        is_about_leaders = isinstance(error, NotLeader | FencedLeaderEpoch | UnknownLeaderEpoch)
        if is_about_leaders and partition.leader_id >= 0:
            return data._replace(current_leader=(partition.leader_id, partition.leader_epoch))
        return data

    def _not_a_replica(self, target: FetchTarget, partition: Partition) -> PartitionData:
        """A fetch in the name of a replica that the partition does not have: nothing is told, nothing is
        moved."""
        partition.stats.fetches_failed += 1
        return self._failed(target, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _absent(self, target: FetchTarget) -> PartitionData:
        services = self._services
        data = self._failed(target, services.absence(target.topic, target.topic_id, target.partition))
        leader = services.current_leader(target.topic, target.topic_id, target.partition)
        return data if leader is None else data._replace(current_leader=leader)

    def _failed(self, target: FetchTarget, code: int) -> PartitionData:
        self._route.stats.count_error(code)
        aborted: list[tuple[int, int]] | None = (
            [] if self._request.isolation_level == READ_COMMITTED else None
        )
        return PartitionData(target.partition, code, -1, -1, -1, None, aborted)

    # Waiting.

    def _wait(self) -> None:
        connection = self._connection
        self._slot = connection.reserve()
        self._is_waiting = True
        self._pending_bytes = self._size_bytes
        self._deadline = connection.loop.call_later(self._request.max_wait_ms / 1000, self._wake)
        for partition in self._partitions:
            partition.await_records(self)
        connection.on_close[self._abandon] = None

    def more_records(self, size_bytes: int) -> None:
        self._pending_bytes += size_bytes
        if self._pending_bytes >= self._request.min_bytes and self._is_waiting:
            if self._request.isolation_level == READ_COMMITTED and not self._sees_more():
                # Records of an open transaction: there is nothing to read before it ends.
                return
            # Soon, not now: batches that came together are fetched together.
            self._stop_waiting()
            self._services.wakeups.add(self._read_and_answer)

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
        await asyncio.get_running_loop().run_in_executor(None, warm, cold)
        self._send()

    def _send(self) -> None:
        route = self._route
        topics = self._topics_to_tell()
        route.stats.record(self._connection.ticks() - self._started)
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            around = encode_single(self._correlation_id, self._plan.session_id, route.version, topics[0])
            if around is not None:
                # The records of every partition are the log's own slices.
                records = cast("LogSlice", topics[0].partitions[0].records)
                send_records(self._connection, self._slot, around[0], records, around[1])
                return
        body = encode_response(topics, self._plan.session_id, route.version, self._leaders_named(topics))
        size = body_size(body)
        if route.flexible_response:
            head = FLEXIBLE_RESPONSE_HEAD.pack(size + 5, self._correlation_id, 0)
        else:
            head = RESPONSE_HEAD.pack(size + 4, self._correlation_id)
        assert isinstance(body[0], bytes), body[0]
        send_chunks(self._connection, self._slot, [head + body[0], *cast("list[Chunk]", body[1:])])

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


# v7 sessions, v9 leader epochs, v11 racks, v12 flexible encoding and divergence, v13 topic ids, v15
# replica state.
FETCH: Final = Api(ApiKey.FETCH, versions=(4, 18), handle=fetch, direct=True)
