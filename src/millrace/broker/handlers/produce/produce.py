"""Produce: append each partition's records, then answer when they are as safe as the request demands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.produce.commit_answers import CommitAnswer
from millrace.broker.handlers.produce.refused_batches import Place, code_behind_refused, note_refused
from millrace.broker.handlers.produce.staging import STAGED_BYTES_MAX, StagedAnswer
from millrace.broker.handlers.produce.transaction_gate import TransactionGate, copied
from millrace.broker.network.dispatch import Api, Route
from millrace.broker.network.lookout import SMALL_BATCH_BYTES
from millrace.broker.wire_errors import error_code, error_message, record_errors
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.log.batches.validation import prepare
from millrace.metadata.topic_names import INTERNAL_TOPICS
from millrace.replica.partition import NotLeader
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import NodeEndpoint, response_frame
from millrace.wire.produce_codec import (
    LEADERS_FROM,
    TOPIC_IDS_FROM,
    PartitionResult,
    TopicRecords,
    TopicResult,
    decode_request,
    encode_response,
    encode_single_success,
    shape_size,
    sole_records,
)

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.connection import Connection, Slot
    from millrace.coordinator.runtime import Answer
    from millrace.log.partition.appending import Appended
    from millrace.replica.partition import Partition

ALL_REPLICAS: Final = -1
VALID_ACKS: Final = (ALL_REPLICAS, 0, 1)
SHAPES_MAX: Final = 10_000


def produce(
    connection: Connection,
    route: Route,
    buffer: memoryview,
    body: int,
    stop: int,
    correlation_id: int,
    started: float,
) -> None:
    """Runs to the end of the appends without a pause, so that the order of requests is the order in the
    log."""
    services = connection.services
    partitions = services.partitions
    now_ms = services.clock.wall_ms()
    shapes = partitions.produce_shapes_by_id if route.version >= TOPIC_IDS_FROM else partitions.produce_shapes
    shape = shapes.get(bytes(buffer[body : body + connection.shape_size]))
    if shape is not None:
        known, topic_id, timeout_ms, acks = shape
        records = sole_records(buffer, body + connection.shape_size, stop)
        if records is not None and known.has_enough_replicas and not known.log.prepares_batches:
            _append_one(
                connection, route, correlation_id, started, known, records, now_ms, topic_id, timeout_ms, acks
            )
            return
    transactional_id, acks, timeout_ms, topics = decode_request(buffer, body, stop, route.version)
    if len(topics) == 1 and len(topics[0][2]) == 1 and acks:
        # The commonest request by far, without the machinery that several partitions need.
        topic, topic_id, ((index, records),) = topics[0]
        by_index = partitions.by_name.get(topic) if topic_id is None else partitions.by_id.get(topic_id)
        partition = None if by_index is None else by_index.get(index)
        if (
            partition is not None
            and records is not None
            and transactional_id is None
            and acks in VALID_ACKS
            and partition.topic not in INTERNAL_TOPICS
            and partition.has_enough_replicas
            and not partition.log.prepares_batches
        ):
            size = shape_size(buffer, body, stop, len(records), route.version)
            if size:
                # The next request of this kind is recognised by its first bytes.
                connection.shape_size = size
                if len(shapes) >= SHAPES_MAX:
                    shapes.clear()
                shapes[bytes(buffer[body : body + size])] = (partition, topic_id, timeout_ms, acks)
            _append_one(
                connection,
                route,
                correlation_id,
                started,
                partition,
                records,
                now_ms,
                topic_id,
                timeout_ms,
                acks,
            )
            return
    reply = _Reply(connection, route, correlation_id, started, acks, timeout_ms)
    if transactional_id is not None:
        reply.gate = TransactionGate(
            services.transactions, transactional_id, route.version, services.remote_transactions
        )
        waits = reply.gate.enter(partitions, topics)
        if waits:
            # The buffer will be read into again before the coordinator has answered.
            connection.run_ordered(_append_after(waits, services, reply, copied(topics), acks))
            return
    _append_all(services, reply, topics, acks, now_ms)
    if reply.unprepared:
        connection.run_ordered(reply.prepare_and_append(services))
    else:
        reply.finish()


async def _append_after(
    waits: Sequence[Answer], services: Services, reply: _Reply, topics: Sequence[TopicRecords], acks: int
) -> None:
    """The coordinator stores that these partitions take part in the transaction; then they may be written."""
    for wait in waits:
        await wait
    _append_all(services, reply, topics, acks, services.clock.wall_ms())
    await reply.prepare_and_append(services)


def _append_all(
    services: Services, reply: _Reply, topics: Sequence[TopicRecords], acks: int, now_ms: int
) -> None:
    partitions = services.partitions
    for topic, topic_id, wanted in topics:
        by_index = partitions.by_name.get(topic) if topic_id is None else partitions.by_id.get(topic_id)
        results: list[PartitionResult] = []
        reply.topics.append(TopicResult(topic, topic_id, results))
        for index, records in wanted:
            partition = None if by_index is None else by_index.get(index)
            if (
                partition is None
                or records is None
                or acks not in VALID_ACKS
                or partition.topic in INTERNAL_TOPICS
            ):
                refused = _refused(services, topic, topic_id, index, records, acks)
                results.append(refused)
                if records is not None:
                    reply.note_refused(_place(topic, topic_id, index), records, refused.error_code)
            elif partition.log.prepares_batches:
                # The buffer will be read into again before the preparation ends.
                reply.unprepared.append((results, len(results), partition, topic_id, bytearray(records)))
                results.append(PartitionResult(index))
            else:
                reply.append(results, partition, topic_id, records, now_ms)


def _append_one(
    connection: Connection,
    route: Route,
    correlation_id: int,
    started: float,
    partition: Partition,
    records: memoryview,
    now_ms: int,
    topic_id: TopicId | None,
    timeout_ms: int,
    acks: int,
) -> None:
    """One partition, acknowledged: if all goes well the answer is made in one step."""
    log = partition.log
    partition.stats.produces += 1
    if connection.refused_batches is not None:
        place = _place(partition.topic, topic_id, partition.index)
        code = code_behind_refused(connection, place, partition, records)
        if code is not None:
            partition.stats.produces_failed += 1
            reply = _Reply(connection, route, correlation_id, started, acks, timeout_ms)
            result = PartitionResult(partition.index, code)
            reply.topics.append(TopicResult(partition.topic, topic_id, [result]))
            reply.finish()
            return
    staging = connection.services.staging
    if (
        (staging.is_worthwhile or staging.is_time_to_try())
        and len(records) <= STAGED_BYTES_MAX
        and partition.leads_alone
        and not log.commits_on_flush
    ):
        answer = StagedAnswer(connection, route, correlation_id, started, topic_id)
        staging.append(connection, answer, partition, records, now_ms)
        return
    try:
        appended = partition.append(records, now_ms)
    except MillraceError as error:
        partition.stats.produces_failed += 1
        reply = _Reply(connection, route, correlation_id, started, acks, timeout_ms)
        result = _failure(partition.index, error)
        reply.topics.append(TopicResult(partition.topic, topic_id, [result]))
        reply.note_refused(_place(partition.topic, topic_id, partition.index), records, result.error_code)
        reply.finish()
        return
    wakeups = connection.services.wakeups
    if wakeups.pending and connection.is_last_frame and not wakeups.has_run_first:
        # Whoever waited for these records gets them before their producer's answer is even made.
        wakeups.run_first()
    if log.high_watermark > appended.last_offset or (acks == 1 and not log.commits_on_flush):
        route.stats.record(connection.ticks() - started)
        connection.send(
            encode_single_success(
                correlation_id,
                route.version,
                partition.topic,
                topic_id,
                (
                    partition.index,
                    appended.base_offset,
                    appended.log_append_time_ms,
                    log.log_start_offset,
                ),
            )
        )
        if len(records) <= SMALL_BATCH_BYTES and partition.leads_alone:
            connection.services.lookout.expect_more(connection.loop)
        return
    waiting = CommitAnswer(connection, route, correlation_id, started, partition, topic_id, appended)
    waiting.wait(connection, timeout_ms)
    if len(records) <= SMALL_BATCH_BYTES:
        # The fetches of its followers come next.
        connection.services.lookout.expect_more(connection.loop)


def _refused(
    services: Services,
    topic: str,
    topic_id: TopicId | None,
    index: int,
    records: memoryview | None,
    acks: int,
) -> PartitionResult:
    if acks not in VALID_ACKS:
        return PartitionResult(
            index,
            ErrorCode.INVALID_REQUIRED_ACKS,
            error_message=f"acks={acks} is not valid: allowed are -1 (all), 0 and 1",
        )
    if topic_id is not None and topic_id not in services.metadata.image.topics_by_id:
        return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
    image = services.metadata.image
    found = image.topics.get(topic) if topic_id is None else image.topics_by_id.get(topic_id)
    if found is not None and found.internal:
        # Their coordinators believe what is in them.
        return PartitionResult(
            index,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            error_message=f"only brokers write to the internal topic {found.name}",
        )
    if records is None:
        return PartitionResult(
            index, ErrorCode.CORRUPT_MESSAGE, error_message="the partition came without records"
        )
    return PartitionResult(
        index,
        services.absence(topic, topic_id, index),
        current_leader=services.current_leader(topic, topic_id, index),
    )


class _Reply:
    """The answer to one request while it takes shape."""

    __slots__ = (
        "_acks",
        "_connection",
        "_correlation_id",
        "_deadline",
        "_open",
        "_route",
        "_slot",
        "_started",
        "_timeout_ms",
        "_waits",
        "gate",
        "topics",
        "unprepared",
    )

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        started: float,
        acks: int,
        timeout_ms: int,
    ) -> None:
        self._connection = connection
        self._route = route
        self._correlation_id = correlation_id
        self._started = started
        self._acks = acks
        self._timeout_ms = timeout_ms
        self.gate: TransactionGate | None = None
        """Set for a producer with a transactional id."""
        self.topics: list[TopicResult] = []
        self.unprepared: list[tuple[list[PartitionResult], int, Partition, TopicId | None, bytearray]] = []
        self._waits: list[tuple[list[PartitionResult], int, Partition, Appended]] | None = None
        self._open = 0
        self._slot: Slot | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def append(
        self,
        results: list[PartitionResult],
        partition: Partition,
        topic_id: TopicId | None,
        records: memoryview,
        now_ms: int,
        at: int | None = None,
    ) -> None:
        """Append to one partition and note the result, at its place if it has one already."""
        partition.stats.produces += 1
        place = _place(partition.topic, topic_id, partition.index)
        code = code_behind_refused(self._connection, place, partition, records)
        if code is not None:
            partition.stats.produces_failed += 1
            _put(results, PartitionResult(partition.index, code), at)
            return
        try:
            if self._acks == ALL_REPLICAS:
                partition.refuse_if_too_few_replicas()
            if self.gate is None:
                appended = partition.append(records, now_ms)
            else:
                appended = self.gate.append(partition, records, now_ms)
        except MillraceError as error:
            partition.stats.produces_failed += 1
            result = _failure(partition.index, error)
            if self.gate is not None:
                result = result._replace(error_code=self.gate.code_of(error))
            if isinstance(error, NotLeader):
                elsewhere = self._connection.services.leader_elsewhere(partition)
                result = result._replace(current_leader=elsewhere)
            self.note_refused(place, records, result.error_code)
        else:
            log = partition.log
            result = PartitionResult(
                partition.index, 0, appended.base_offset, appended.log_append_time_ms, log.log_start_offset
            )
            if log.high_watermark <= appended.last_offset and (
                self._acks == ALL_REPLICAS or (self._acks == 1 and log.commits_on_flush)
            ):
                self.await_commit(results, len(results) if at is None else at, partition, appended)
        _put(results, result, at)

    def note_refused(self, place: Place, records: memoryview, code: int) -> None:
        """Those behind a batch that its producer has to send again are not to come before it."""
        if self._acks:
            note_refused(self._connection, place, records, code)

    def await_commit(
        self, results: list[PartitionResult], at: int, partition: Partition, appended: Appended
    ) -> None:
        """Hold the answer back until what was appended is committed."""
        if self._waits is None:
            self._waits = []
        self._waits.append((results, at, partition, appended))

    async def prepare_and_append(self, services: Services) -> None:
        """For topics whose batches are looked into: check and recompress off the loop, then append."""
        loop = asyncio.get_running_loop()
        for results, at, partition, topic_id, records in self.unprepared:
            now_ms = services.clock.wall_ms()
            try:
                work = partial(prepare, memoryview(records), partition.log.config, now_ms=now_ms)
                ready = await loop.run_in_executor(None, work)
            except MillraceError as error:
                partition.stats.produces_failed += 1
                results[at] = _failure(partition.index, error)
            else:
                self.append(results, partition, topic_id, ready, now_ms, at)
        self.finish()

    def finish(self) -> None:
        """Everything is appended: answer, now or when the records are committed."""
        connection = self._connection
        if self._acks == 0:
            self._route.stats.record(connection.ticks() - self._started)
            if any(result.error_code for topic in self.topics for result in topic.partitions):
                # Without responses this is the only way to tell the client, which then asks for metadata
                # anew.
                connection.abort("a produce with acks=0 failed")
            return
        if self._waits is None:
            connection.send(self._frame())
            return
        self._slot = connection.reserve()
        self._open = len(self._waits)
        loop = connection.loop
        self._deadline = loop.call_later(max(self._timeout_ms, 1) / 1000, self._timed_out)
        for results, at, partition, appended in self._waits:
            settled = partial(self._settled, results, at, partition)
            partition.waiting_produces.add(appended.last_offset + 1, settled)

    def _settled(
        self, results: list[PartitionResult], at: int, partition: Partition, committed: bool
    ) -> None:
        if not committed:
            results[at] = PartitionResult(
                partition.index,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=self._connection.services.leader_elsewhere(partition),
            )
        self._open -= 1
        if self._open == 0:
            self._complete()

    def _timed_out(self) -> None:
        assert self._waits is not None
        for results, at, partition, appended in self._waits:
            if not partition.is_acknowledged(appended):
                code = ErrorCode.REQUEST_TIMED_OUT
                if partition.is_leader and not partition.has_enough_replicas:
                    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                results[at] = PartitionResult(results[at].partition, code)
        self._complete()

    def _complete(self) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        slot.complete(self._frame())

    def _frame(self) -> bytes:
        route, topics = self._route, self.topics
        route.stats.record(self._connection.ticks() - self._started)
        for topic in topics:
            for result in topic.partitions:
                if result.error_code:
                    route.stats.count_error(result.error_code)
        body = encode_response(topics, route.version, endpoints=self._leaders_named())
        return response_frame(self._correlation_id, body, flexible=route.flexible_response)

    def _leaders_named(self) -> Sequence[NodeEndpoint]:
        named = [
            result.current_leader[0]
            for topic in self.topics
            for result in topic.partitions
            if result.current_leader is not None
        ]
        if not named or self._route.version < LEADERS_FROM:
            return ()
        return self._connection.services.endpoints_of(named, self._connection.endpoint.listener)


def _place(topic: str, topic_id: TopicId | None, index: int) -> Place:
    return (topic if topic_id is None else topic_id), index


def _put(results: list[PartitionResult], result: PartitionResult, at: int | None) -> None:
    if at is None:
        results.append(result)
    else:
        results[at] = result


def _failure(index: int, error: MillraceError) -> PartitionResult:
    return PartitionResult(
        index, error_code(error), record_errors=record_errors(error), error_message=error_message(error)
    )


# Versions 0 to 2 carried message formats that no longer exist; librdkafka wants to see them in ApiVersions
# before it compresses, and never uses them.
PRODUCE: Final = Api(ApiKey.PRODUCE, versions=(3, 13), handle=produce, direct=True, advertised_from=0)
