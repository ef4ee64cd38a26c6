"""Produces that need more than one append: several partitions, a transaction, batches that are looked into,
or no acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.produce.answers import (
    ALL_REPLICAS,
    PartAnswer,
    ProduceAnswer,
    WholeAnswer,
    refusal_of,
    success_of,
)
from millrace.broker.handlers.produce.deduplication import PATIENCE_S
from millrace.broker.handlers.produce.marked_batches import (
    Looked,
    delayed_records,
    look_into,
    places_in_log,
)
from millrace.broker.handlers.produce.refused_batches import Place, code_behind_refused, note_refused
from millrace.broker.handlers.produce.transaction_gate import TransactionGate, copied, is_transactional
from millrace.broker.internal_appends import BETWEEN_BROKERS
from millrace.core.errors import MillraceError
from millrace.log.partition.appending import Appended
from millrace.metadata.topic_names import DELAYED_TOPIC, INTERNAL_TOPICS
from millrace.queues.delayed.model import DelayedStoreAbsent
from millrace.replica.partition import NotLeader
from millrace.security.acls.binding import Operation
from millrace.wire.batch_header import read_header
from millrace.wire.error_codes import ErrorCode
from millrace.wire.produce_codec import PartitionResult, TopicRecords

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.coordinator.runtime import Answer
    from millrace.core.ids import TopicId
    from millrace.queues.marked_records import Scheduled
    from millrace.replica.partition import Partition
    from millrace.security.acls.decisions import Decisions

VALID_ACKS: Final = (ALL_REPLICAS, 0, 1)


def produce_to_several(
    request: ProduceAnswer, transactional_id: str | None, topics: Sequence[TopicRecords], now_ms: int
) -> None:
    """Serve any request that was decoded; its `acks` and `timeout_ms` are set."""
    services = request.connection.services
    if transactional_id == BETWEEN_BROKERS:
        if _may_be_a_broker(request.connection):
            _finish(request, _Appends(request, None, is_from_broker=True), topics, now_ms)
        else:
            _refuse_all(request, topics, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    if not _may_transact(request.connection.decisions, transactional_id, topics):
        _refuse_all(request, topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return
    gate = None
    if transactional_id is not None:
        gate = TransactionGate(
            services.transactions, transactional_id, request.route.version, services.remote_transactions
        )
        # What it may not write to takes no part in its transaction.
        waits = gate.enter(
            services.partitions,
            [topic for topic in topics if not is_write_refused(request.connection, topic)],
        )
        if waits:
            # The buffer will be read into again before the coordinator has answered.
            appends = _Appends(request, gate)
            request.connection.run_ordered(appends.begin_after(waits, copied(topics)))
            return
    _finish(request, _Appends(request, gate), topics, now_ms)


def _may_be_a_broker(connection: Connection) -> bool:
    """Whether the words of a broker are to be believed. One that has no others believes nobody; the others
    come on their own listener, with the permission of brokers. Where clients share that listener and
    permissions are off, nothing tells them from brokers: `docs/queues.md` says so."""
    services = connection.services
    return (
        services.replica_sessions is not None
        and connection.endpoint.listener == services.settings.listener_between_brokers
        and connection.decisions.allows_on_cluster(Operation.CLUSTER_ACTION)
    )


def _finish(request: ProduceAnswer, appends: _Appends, topics: Sequence[TopicRecords], now_ms: int) -> None:
    appends.begin(topics, now_ms)
    if appends.has_unprepared:
        request.connection.run_ordered(appends.prepare_and_finish())
    else:
        appends.finish()


def _may_transact(decisions: Decisions, transactional_id: str | None, topics: Sequence[TopicRecords]) -> bool:
    """Whether the records of a transaction are of one that the client may write in. Without an id they are of
    nobody's."""
    return not any(
        records is not None and is_transactional(records) for _, _, wanted in topics for _, records in wanted
    ) or (
        transactional_id is not None
        and decisions.allows_on_transactional_id(Operation.WRITE, transactional_id)
    )


def _refuse_all(request: ProduceAnswer, topics: Sequence[TopicRecords], code: ErrorCode) -> None:
    answer = WholeAnswer(request)
    for topic, topic_id, wanted in topics:
        results = answer.add_topic(topic, topic_id)
        results += [PartitionResult(index, code, error_message=code.message) for index, _ in wanted]
    answer.finish()


def is_write_refused(connection: Connection, topic: TopicRecords) -> bool:
    """Whether the client may not write to a topic, which may not exist. An id that nobody knows is no
    secret."""
    name, topic_id, _ = topic
    if topic_id is not None:
        known = connection.services.metadata.image.topics_by_id.get(topic_id)
        if known is None:
            return False
        name = known.name
    return not connection.decisions.allows_on_topic(Operation.WRITE, name)


class _Appends:
    """The appends of one request."""

    __slots__ = (
        "_acks",
        "_answer",
        "_connection",
        "_gate",
        "_is_from_broker",
        "_services",
        "_timeout_ms",
        "_unprepared",
    )

    def __init__(
        self, request: ProduceAnswer, gate: TransactionGate | None, *, is_from_broker: bool = False
    ) -> None:
        self._connection = request.connection
        self._services = request.connection.services
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._answer = WholeAnswer(request)
        self._gate = gate
        """For a producer with a transactional id."""
        self._is_from_broker = is_from_broker
        """Whether another broker appends what was accepted before: no client's permissions count."""
        self._unprepared: list[tuple[PartAnswer, Partition, TopicId | None, bytearray]] = []

    @property
    def has_unprepared(self) -> bool:
        return bool(self._unprepared)

    async def begin_after(self, waits: Sequence[Answer], topics: Sequence[TopicRecords]) -> None:
        """The coordinator stores that these partitions take part in the transaction; then they may be
        written."""
        for wait in waits:
            await wait
        self.begin(topics, self._services.clock.wall_ms())
        await self.prepare_and_finish()

    def begin(self, topics: Sequence[TopicRecords], now_ms: int) -> None:
        """Append what can be appended as it is."""
        partitions = self._services.partitions
        answer, acks = self._answer, self._acks
        for topic_records in topics:
            topic, topic_id, wanted = topic_records
            by_index = partitions.by_name.get(topic) if topic_id is None else partitions.by_id.get(topic_id)
            results = answer.add_topic(topic, topic_id)
            if not self._is_from_broker and is_write_refused(self._connection, topic_records):
                results += [_not_authorized(index) for index, _ in wanted]
                continue
            for index, records in wanted:
                partition = None if by_index is None else by_index.get(index)
                if (
                    partition is None
                    or records is None
                    or acks not in VALID_ACKS
                    or (partition.topic in INTERNAL_TOPICS and not self._may_append_inside(partition.topic))
                ):
                    refusal = self._refusal(topic_records, index, records)
                    results.append(refusal)
                    if records is not None:
                        place = (topic if topic_id is None else topic_id), index
                        self._note_refused(place, records, refusal.error_code)
                elif partition.log.prepares_batches:
                    # The buffer will be read into again before the preparation ends.
                    part = answer.new_part(partition, results)
                    self._unprepared.append((part, partition, topic_id, bytearray(records)))
                else:
                    self._append(partition, topic_id, records, now_ms, results)

    async def prepare_and_finish(self) -> None:
        """For topics whose batches are looked into: check, recompress and thin off the loop, then
        append."""
        loop = asyncio.get_running_loop()
        for part, partition, topic_id, records in self._unprepared:
            now_ms = self._services.clock.wall_ms()
            try:
                work = partial(
                    look_into,
                    memoryview(records),
                    partition.log.config,
                    now_ms=now_ms,
                    has_marks=not self._is_from_broker,
                )
                looked = await loop.run_in_executor(None, work)
            except MillraceError as error:
                partition.stats.produces_failed += 1
                part.conclude(refusal_of(self._services, partition, error))
            else:
                await self._append_looked_into(part, partition, topic_id, looked)
        self.finish()

    async def _append_looked_into(
        self, part: PartAnswer, partition: Partition, topic_id: TopicId | None, looked: Looked
    ) -> None:
        """Append what is left of a batch, and have stored what was taken out to be delivered later."""
        append = partial(self._append_left, partition, topic_id)
        repeated: Container[int] = ()
        outcome: PartitionResult | Appended
        if looked.marks.scheduled and self._services.delayed_store is None:
            partition.stats.produces += 1
            outcome = self._failure(partition, topic_id, looked.records, DelayedStoreAbsent())
        elif looked.marks.ids:
            try:
                outcome, repeated = await self._services.deduplication.append_once(
                    partition, looked, append, min(PATIENCE_S, self._timeout_ms / 1000)
                )
            except MillraceError as error:
                partition.stats.produces += 1
                outcome = self._failure(partition, topic_id, looked.records, error)
        else:
            outcome = append(looked.records, looked.is_thinned)
        if isinstance(outcome, PartitionResult):
            part.conclude(outcome)
            return
        scheduled = looked.marks.scheduled
        if outcome.duplicate:
            scheduled += looked.marks.due
        if scheduled and self._acks:
            part.hold()
        if self._must_wait_for(partition, outcome):
            part.await_commit(outcome)
        else:
            part.succeed(outcome.base_offset, outcome.log_append_time_ms)
        if scheduled:
            await self._store(part, scheduled, outcome, repeated)

    def _append_left(
        self, partition: Partition, topic_id: TopicId | None, records: memoryview, is_thinned: bool
    ) -> PartitionResult | Appended:
        """Append what is left of a batch, as everything else is."""
        decisions = self._connection.decisions
        if not self._is_from_broker and not decisions.allows_on_topic(Operation.WRITE, partition.topic):
            # The permission went while the batch was looked into.
            return _not_authorized(partition.index)
        now_ms = self._services.clock.wall_ms()
        return self._outcome(partition, topic_id, records, now_ms, is_thinned=is_thinned)

    async def _store(
        self,
        part: PartAnswer,
        scheduled: Sequence[Scheduled],
        appended: Appended,
        repeated: Container[int],
    ) -> None:
        """Have delayed records stored under the offsets that they got. Those of a batch that was sent again
        are stored again, unless they are in the log."""
        partition, store = part.partition, self._services.delayed_store
        records = delayed_records(partition, scheduled, appended, without=repeated)
        if appended.duplicate and records:
            try:
                present = await places_in_log(partition, appended)
            except MillraceError as error:
                if self._acks:
                    part.let_go(error)
                return
            records = [each for each in records if each.offset - appended.base_offset not in present]
        if not records or store is None:
            part.let_go(None)
            return

        def committed(is_there: bool) -> None:
            if is_there:
                stored = store.add(records)
                if self._acks:
                    stored.add_done_callback(partial(_stored, part))
            elif self._acks:
                part.let_go(NotLeader(partition.topic_partition, leader_id=partition.leader_id))

        # Not before: a batch that the next leader does not have is appended anew when it is sent again. Its
        # records, which are no repetition for that leader, would be stored twice.
        if partition.log.high_watermark > appended.last_offset:
            committed(True)
        else:
            partition.waiting_produces.add(appended.last_offset + 1, committed)

    def finish(self) -> None:
        """Everything is appended."""
        self._answer.finish()

    def _append(
        self,
        partition: Partition,
        topic_id: TopicId | None,
        records: memoryview,
        now_ms: int,
        results: list[PartitionResult],
    ) -> None:
        """Append to one partition; what comes of it is added to the results."""
        outcome = self._outcome(partition, topic_id, records, now_ms)
        if isinstance(outcome, PartitionResult):
            results.append(outcome)
        elif partition.log.high_watermark <= outcome.last_offset and self._must_wait_for(partition, outcome):
            self._answer.new_part(partition, results).await_commit(outcome)
        else:
            results.append(success_of(partition, outcome.base_offset, outcome.log_append_time_ms))

    def _must_wait_for(self, partition: Partition, appended: Appended) -> bool:
        """Whether the batch is not yet as safe as the request demands."""
        log, acks = partition.log, self._acks
        return log.high_watermark <= appended.last_offset and (
            acks == ALL_REPLICAS or (acks == 1 and log.commits_on_flush)
        )

    def _outcome(
        self,
        partition: Partition,
        topic_id: TopicId | None,
        records: memoryview,
        now_ms: int,
        *,
        is_thinned: bool = False,
    ) -> PartitionResult | Appended:
        """Where the batch was appended, or why not."""
        partition.stats.produces += 1
        gate, acks = self._gate, self._acks
        place = (partition.topic if topic_id is None else topic_id), partition.index
        behind = code_behind_refused(self._connection, place, partition, records)
        if behind is not None:
            partition.stats.produces_failed += 1
            return PartitionResult(partition.index, behind)
        try:
            refusal = None if self._is_from_broker else self._services.storage_refusal(partition.topic)
            if refusal is not None:
                raise refusal
            if acks == ALL_REPLICAS:
                partition.refuse_if_too_few_replicas()
            if is_thinned:
                return self._append_thinned(partition, records, now_ms)
            if gate is None:
                return partition.append(records, now_ms)
            return gate.append(partition, records, now_ms)
        except MillraceError as error:
            return self._failure(partition, topic_id, records, error)

    def _append_thinned(self, partition: Partition, records: memoryview, now_ms: int) -> Appended:
        """It is of no transaction: those keep all their records."""
        appended = partition.append_thinned(records, now_ms)
        if not appended.duplicate:
            partition.stats.messages_in += read_header(records).records_count
        return appended

    def _failure(
        self, partition: Partition, topic_id: TopicId | None, records: memoryview, error: MillraceError
    ) -> PartitionResult:
        """Nothing was appended."""
        partition.stats.produces_failed += 1
        code = None if self._gate is None else self._gate.code_of(error)
        result = refusal_of(self._services, partition, error, code)
        place = (partition.topic if topic_id is None else topic_id), partition.index
        self._note_refused(place, records, result.error_code)
        return result

    def _note_refused(self, place: Place, records: memoryview, code: int) -> None:
        """Those behind a batch that its producer has to send again are not to come before it."""
        if self._acks:
            note_refused(self._connection, place, records, code)

    def _may_append_inside(self, topic: str) -> bool:
        """Whether this may go into an internal topic. Coordinators alone write to theirs, where they lead
        them."""
        return self._is_from_broker and topic == DELAYED_TOPIC

    def _refusal(
        self, topic_records: TopicRecords, index: int, records: memoryview | None
    ) -> PartitionResult:
        """Why nothing can be appended to a partition, before its log is asked."""
        topic, topic_id, _ = topic_records
        services, acks = self._services, self._acks
        if acks not in VALID_ACKS:
            return PartitionResult(
                index,
                ErrorCode.INVALID_REQUIRED_ACKS,
                error_message=f"acks={acks} is not valid: allowed are -1 (all), 0 and 1",
            )
        image = services.metadata.image
        if topic_id is not None and topic_id not in image.topics_by_id:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_ID)
        found = image.topics.get(topic) if topic_id is None else image.topics_by_id.get(topic_id)
        if found is not None and found.internal and not self._may_append_inside(found.name):
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


def _stored(part: PartAnswer, outcome: asyncio.Future[MillraceError | None]) -> None:
    # A broker that stops tells nobody: the producer asks the next leader.
    if not outcome.cancelled():
        part.let_go(outcome.result())


def _not_authorized(index: int) -> PartitionResult:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return PartitionResult(index, code, error_message=code.message)
