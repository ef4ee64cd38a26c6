"""Small batches of one turn of the loop, written together.

With many connections, a turn brings many requests of a few hundred bytes each, and the write into the page
cache would be the dearest step of each. So a small batch is checked and gets its offset at once, but is
written with all others that the turn brings for its partition; then they are answered. Nothing waits for
more to come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from millrace.broker.handlers.produce.refused_batches import note_refused
from millrace.broker.network.connection import Slot
from millrace.broker.wire_errors import error_code, error_message, record_errors
from millrace.core.errors import MillraceError
from millrace.log.partition.appending import STAGED
from millrace.log.partition.staging import StagedBatch
from millrace.wire.framing import response_frame
from millrace.wire.produce_codec import PartitionResult, TopicResult, encode_response, encode_single_success

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.broker.network.wakeups import Wakeups
    from millrace.core.ids import TopicId
    from millrace.replica.partition import Partition

logger: Final = logging.getLogger(__name__)

STAGED_BYTES_MAX: Final = 8 * 1024
"""Larger batches are written at once: copying them would cost as much as the write saves."""
TRY_EVERY: Final = 32
"""While turns bring one small batch each, one in so many is staged, to notice when that changes."""


class StagedAnswer(Slot):
    """The place of an answer, and what is needed to make it."""

    __slots__ = ("correlation_id", "route", "started", "topic_id")

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        started: float,
        topic_id: TopicId | None,
    ) -> None:
        # What the base class does, without the call: there is one of these for every small request.
        self._connection = connection
        self.response = None
        self.route = route
        self.correlation_id = correlation_id
        self.started = started
        self.topic_id = topic_id

    def refuse(self, partition: Partition, records: memoryview, error: MillraceError) -> None:
        topic = partition.topic if self.topic_id is None else self.topic_id
        if self._connection is not None:
            note_refused(self._connection, (topic, partition.index), records, error_code(error))
        self.complete(_failure_frame(partition, self, error))


class Staging:
    def __init__(self, wakeups: Wakeups) -> None:
        self.is_worthwhile = False
        """Whether the last turn brought more than one small batch for a partition."""
        self._wakeups = wakeups
        self._until_try = TRY_EVERY
        self._partitions: dict[Partition, None] = {}
        self._largest = 0
        self._ticks: Callable[[], float] = float

    def is_time_to_try(self) -> bool:
        """Answers True now and then, and then for the rest of this turn."""
        self._until_try -= 1
        if self._until_try:
            return False
        self._until_try = TRY_EVERY
        self.is_worthwhile = True
        return True

    def append(
        self,
        connection: Connection,
        answer: StagedAnswer,
        partition: Partition,
        records: memoryview,
        now_ms: int,
    ) -> None:
        """Append to a partition that commits what is written; the answer leaves at the end of this turn, or
        now."""
        connection.take_place(answer)
        try:
            appended = partition.append(records, now_ms, token=answer)
        except MillraceError as error:
            partition.stats.produces_failed += 1
            answer.refuse(partition, records, error)
            return
        if appended is STAGED:
            partitions = self._partitions
            if partition not in partitions:
                partition.answer_staged = self._answer
                if not partitions:
                    self._schedule(connection)
                partitions[partition] = None
            return
        assert partition.log.high_watermark > appended.last_offset, partition.topic_partition
        answer.route.stats.record(connection.ticks() - answer.started)
        answer.complete(
            encode_single_success(
                answer.correlation_id,
                answer.route.version,
                partition.topic,
                answer.topic_id,
                (
                    partition.index,
                    appended.base_offset,
                    appended.log_append_time_ms,
                    partition.log.log_start_offset,
                ),
            )
        )

    def _schedule(self, connection: Connection) -> None:
        self._ticks = connection.ticks
        connection.loop.call_soon(self._settle_all)

    def _settle_all(self) -> None:
        partitions, self._partitions = self._partitions, {}
        for partition in partitions:
            # It raises nothing: one partition's trouble leaves no other's requests unanswered.
            partition.log.write_staged()
        self.is_worthwhile = self._largest > 1
        self._largest = 0

    def _answer(self, partition: Partition, staged: list[StagedBatch], error: MillraceError | None) -> None:
        if len(staged) > self._largest:
            self._largest = len(staged)
        if self._wakeups.pending:
            # The same order as for a batch that was written at once.
            self._wakeups.run_first()
        now = self._ticks()
        log = partition.log
        topic, index = partition.topic, partition.index
        log_start_offset = log.log_start_offset
        append_time_ms = -1
        for batch in staged:
            answer = cast("StagedAnswer", batch[7])
            route = answer.route
            route.stats.record(now - answer.started)
            try:
                if error is not None:
                    answer.refuse(partition, memoryview(batch[0]), error)
                    continue
                if log.config.timestamp_log_append:
                    append_time_ms = batch[3]
                answer.complete(
                    encode_single_success(
                        answer.correlation_id,
                        route.version,
                        topic,
                        answer.topic_id,
                        (index, batch[1], append_time_ms, log_start_offset),
                    )
                )
            except Exception:
                # A bug on that connection: the others wait for their answers.
                logger.exception("%s: the answer to a staged batch", partition.topic_partition)


def _failure_frame(partition: Partition, answer: StagedAnswer, error: MillraceError) -> bytes:
    route = answer.route
    code = error_code(error)
    route.stats.count_error(code)
    result = PartitionResult(
        partition.index, code, record_errors=record_errors(error), error_message=error_message(error)
    )
    body = encode_response([TopicResult(partition.topic, answer.topic_id, [result])], route.version)
    return response_frame(answer.correlation_id, body, flexible=route.flexible_response)
