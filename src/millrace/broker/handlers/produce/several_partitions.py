"""Produces that need more than one append: several partitions, a transaction, batches that are looked into,
or no acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from millrace.broker.handlers.produce.refused_batches import Place, code_behind_refused, note_refused
from millrace.broker.handlers.produce.transaction_gate import TransactionGate, copied, is_transactional
from millrace.broker.internal_appends import BETWEEN_BROKERS
from millrace.core.errors import MillraceError
from millrace.log.batches.validation import prepare
from millrace.log.partition.appending import Appended
from millrace.metadata.topic_names import DELAYED_TOPIC, INTERNAL_TOPICS
from millrace.security.acls.binding import Operation
from millrace.wire.error_codes import ErrorCode
from millrace.wire.produce_codec import PartitionResult, TopicRecords

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.coordinator.runtime import Answer
    from millrace.core.ids import TopicId
    from millrace.replica.partition import Partition
    from millrace.security.acls.decisions import Decisions

VALID_ACKS: Final = (ALL_REPLICAS, 0, 1)


def produce_to_several(
    request: ProduceAnswer, transactional_id: str | None, topics: Sequence[TopicRecords], now_ms: int
) -> None:
    """Serve any request that was decoded; its `acks` and `timeout_ms` are set."""
    services = request.connection.services
    if transactional_id == BETWEEN_BROKERS:
        if request.connection.decisions.allows_on_cluster(Operation.CLUSTER_ACTION):
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

    __slots__ = ("_acks", "_answer", "_connection", "_gate", "_is_from_broker", "_services", "_unprepared")

    def __init__(
        self, request: ProduceAnswer, gate: TransactionGate | None, *, is_from_broker: bool = False
    ) -> None:
        self._connection = request.connection
        self._services = request.connection.services
        self._acks = request.acks
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
        """For topics whose batches are looked into: check and recompress off the loop, then append."""
        loop = asyncio.get_running_loop()
        for part, partition, topic_id, records in self._unprepared:
            now_ms = self._services.clock.wall_ms()
            try:
                work = partial(prepare, memoryview(records), partition.log.config, now_ms=now_ms)
                ready = await loop.run_in_executor(None, work)
            except MillraceError as error:
                partition.stats.produces_failed += 1
                part.conclude(refusal_of(self._services, partition, error))
            else:
                if self._is_from_broker or self._connection.decisions.allows_on_topic(
                    Operation.WRITE, partition.topic
                ):
                    self._append(partition, topic_id, ready, now_ms, [], part)
                else:
                    # The permission went while the batch was looked into.
                    part.conclude(_not_authorized(partition.index))
        self.finish()

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
        part: PartAnswer | None = None,
    ) -> None:
        """Append to one partition; what comes of it is added to the results, or told the part that stands
        there already."""
        result = self._result(partition, topic_id, records, now_ms)
        if isinstance(result, Appended):
            if part is None:
                part = self._answer.new_part(partition, results)
            part.await_commit(result)
        elif part is None:
            results.append(result)
        else:
            part.conclude(result)

    def _result(
        self, partition: Partition, topic_id: TopicId | None, records: memoryview, now_ms: int
    ) -> PartitionResult | Appended:
        """The result of an append; or, if that has to wait for the commit, where the batch was appended."""
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
            if gate is None:
                appended = partition.append(records, now_ms)
            else:
                appended = gate.append(partition, records, now_ms)
        except MillraceError as error:
            partition.stats.produces_failed += 1
            code = None if gate is None else gate.code_of(error)
            result = refusal_of(self._services, partition, error, code)
            self._note_refused(place, records, result.error_code)
            return result
        log = partition.log
        if log.high_watermark <= appended.last_offset and (
            acks == ALL_REPLICAS or (acks == 1 and log.commits_on_flush)
        ):
            return appended
        return success_of(partition, appended.base_offset, appended.log_append_time_ms)

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


def _not_authorized(index: int) -> PartitionResult:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return PartitionResult(index, code, error_message=code.message)
