"""What a producer is told: success, a refusal, or that its time has passed. The only place that says so.

A request for one partition, which nearly all are, is its own answer: one object, and the place in the order
of responses as well, whether the answer leaves at once, when staged batches are written, or when a batch is
committed. A request for several partitions has a `PartAnswer` for each (`several_partitions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from millrace.broker.handlers.produce.refused_batches import Place, note_refused
from millrace.broker.network.requests import Request
from millrace.broker.wire_errors import error_code, error_message, record_errors
from millrace.core.override import override
from millrace.replica.partition import NotLeader
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import NodeEndpoint, response_frame
from millrace.wire.produce_codec import (
    LEADERS_FROM,
    PartitionResult,
    TopicResult,
    encode_response,
    encode_single_success,
)

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.connection import Connection
    from millrace.core.errors import MillraceError
    from millrace.core.ids import TopicId
    from millrace.log.partition.appending import Appended
    from millrace.replica.partition import Partition

ALL_REPLICAS: Final = -1


class ProduceAnswer(Request):
    """A produce request, and the answer to it if it is for one partition."""

    __slots__ = ("_appended", "acks", "partition", "timeout_ms", "topic_id")

    is_produce = True

    acks: int
    timeout_ms: int
    topic_id: TopicId | None
    """None where the request names its topic by name."""
    partition: Partition
    _appended: Appended

    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        """The batch is as safe as the request demands."""
        partition, route, connection = self.partition, self.route, self.connection
        route.stats.record(connection.ticks() - self.started)
        frame = encode_single_success(
            self.correlation_id,
            route.version,
            partition.topic,
            self.topic_id,
            partition.index,
            base_offset,
            append_time_ms,
            partition.log.log_start_offset,
        )
        connection.complete(self, frame)

    @property
    def place(self) -> Place:
        """The partition as the request names it."""
        topic = self.partition.topic if self.topic_id is None else self.topic_id
        return topic, self.partition.index

    def refuse(self, error: MillraceError, records: memoryview) -> None:
        """The batch was not appended. Those that are on their way behind it are not to come before it."""
        result = refusal_of(self.connection.services, self.partition, error)
        note_refused(self.connection, self.place, records, result.error_code)
        self.conclude(result)

    def expire(self) -> None:
        """The time is over that the producer has given the replicas."""
        partition = self.partition
        code = ErrorCode.REQUEST_TIMED_OUT
        if partition.is_leader and not partition.has_enough_replicas:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self.conclude(PartitionResult(partition.index, code))

    def await_commit(self, appended: Appended) -> None:
        """Answer when what was appended is committed, in the place of the request that is being handled."""
        connection = self.connection
        connection.take_place(self)
        self._appended = appended
        self.partition.waiting_produces.add(appended.last_offset + 1, self._committed)
        connection.services.deadlines.add(connection.loop, max(self.timeout_ms, 1), self)

    def conclude(self, result: PartitionResult) -> None:
        """Answer with a result that is made already; `succeed` takes fewer steps."""
        topic = TopicResult(self.partition.topic, self.topic_id, [result])
        self.complete(_frame(self, [topic]))

    def _committed(self, is_there: bool) -> None:
        """All who count have the batch; or this broker cannot tell any more whether they ever will."""
        if self.is_over:
            return
        if is_there:
            appended = self._appended
            self.succeed(appended.base_offset, appended.log_append_time_ms)
        else:
            leader = self.connection.services.leader_elsewhere(self.partition)
            self.conclude(
                PartitionResult(self.partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
            )


class PartAnswer(ProduceAnswer):
    """The answer for one of the partitions that a request names, where that has to wait: a part of the
    whole."""

    __slots__ = ("_at", "_is_held", "_results", "_success", "_whole")

    def __init__(
        self, whole: WholeAnswer, connection: Connection, partition: Partition, results: list[PartitionResult]
    ) -> None:
        # Only what a part needs: it has no place of its own in the order of responses.
        self.connection = connection
        self.partition = partition
        self.is_over = False
        self._whole = whole
        self._results = results
        self._at = len(results)
        self._is_held = False
        self._success: PartitionResult | None = None
        results.append(PartitionResult(partition.index))

    @override
    def succeed(self, base_offset: int, append_time_ms: int) -> None:
        success = success_of(self.partition, base_offset, append_time_ms)
        if self._is_held:
            self._success = success
        else:
            self.conclude(success)

    def hold(self) -> None:
        """Tell of no success before `let_go` is called: what was taken out of the batch has to be stored
        elsewhere."""
        self._is_held = True

    def let_go(self, error: MillraceError | None) -> None:
        """What was taken out is stored, or may not be: then the producer has to send the batch again, which
        is in the log already."""
        self._is_held = False
        if error is not None:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self.conclude(PartitionResult(self.partition.index, code, error_message=str(error)))
        elif self._success is not None:
            self.conclude(self._success)

    @override
    def await_commit(self, appended: Appended) -> None:
        # The whole has the place and the deadline.
        self._appended = appended
        self.partition.waiting_produces.add(appended.last_offset + 1, self._committed)

    @override
    def conclude(self, result: PartitionResult) -> None:
        if not self.is_over:
            self.is_over = True
            self._results[self._at] = result
            self._whole.part_concluded()


class WholeAnswer:
    """The answer to a request for several partitions: it leaves when each of its parts is concluded."""

    __slots__ = ("_has_all_parts", "_open_count", "_parts", "_request", "_topics")

    def __init__(self, request: ProduceAnswer) -> None:
        self._request = request
        self._topics: list[TopicResult] = []
        self._parts: list[PartAnswer] = []
        """Those that had to wait."""
        self._open_count = 0
        self._has_all_parts = False

    def add_topic(self, topic: str, topic_id: TopicId | None) -> list[PartitionResult]:
        """The next topic of the request. To the list that is returned one result, or one `new_part`, is to be
        added for each of its partitions."""
        results: list[PartitionResult] = []
        self._topics.append(TopicResult(topic, topic_id, results))
        return results

    def new_part(self, partition: Partition, results: list[PartitionResult]) -> PartAnswer:
        """For a partition whose result is not known yet."""
        self._open_count += 1
        part = PartAnswer(self, self._request.connection, partition, results)
        self._parts.append(part)
        return part

    def finish(self) -> None:
        """All parts are there, and what could be appended was: answer, now or when the last is concluded."""
        request = self._request
        self._has_all_parts = True
        if request.acks == 0:
            self._finish_without_response()
        elif self._open_count == 0:
            request.complete(_frame(request, self._topics))
        else:
            connection = request.connection
            connection.take_place(request)
            connection.services.deadlines.add(connection.loop, max(request.timeout_ms, 1), self)

    @property
    def is_over(self) -> bool:
        """Whether it has left, or nobody waits for it any more."""
        return self._request.is_over

    def expire(self) -> None:
        """The time of the request is over: each part that is open says so."""
        for part in self._parts:
            if not part.is_over:
                part.expire()

    def part_concluded(self) -> None:
        """One part less to wait for."""
        self._open_count -= 1
        if self._open_count == 0 and self._has_all_parts and not self._request.is_over:
            self._request.complete(_frame(self._request, self._topics))

    def _finish_without_response(self) -> None:
        request, connection = self._request, self._request.connection
        request.route.stats.record(connection.ticks() - request.started)
        if connection.throttle is not None:
            connection.throttle.charge_unanswered(request)
        if any(result.error_code for topic in self._topics for result in topic.partitions):
            # Without responses this is the only way to tell the client, which then asks for metadata anew.
            connection.abort("a produce with acks=0 failed")


def success_of(partition: Partition, base_offset: int, append_time_ms: int) -> PartitionResult:
    """For a request that names several partitions; one partition alone has `ProduceAnswer.succeed`."""
    return PartitionResult(partition.index, 0, base_offset, append_time_ms, partition.log.log_start_offset)


def refusal_of(
    services: Services, partition: Partition, error: MillraceError, code: int | None = None
) -> PartitionResult:
    """Why nothing was appended; `code` where the client is to be told another than the error's own."""
    return PartitionResult(
        partition.index,
        error_code(error) if code is None else code,
        record_errors=record_errors(error),
        error_message=error_message(error),
        current_leader=services.leader_elsewhere(partition) if isinstance(error, NotLeader) else None,
    )


def _frame(request: ProduceAnswer, topics: list[TopicResult]) -> bytes:
    """The whole response, with the addresses of the leaders that it names."""
    route, connection = request.route, request.connection
    route.stats.record(connection.ticks() - request.started)
    leaders: list[int] = []
    for topic in topics:
        for result in topic.partitions:
            if result.error_code:
                route.stats.count_error(result.error_code)
                if result.current_leader is not None:
                    leaders.append(result.current_leader[0])
    endpoints: Sequence[NodeEndpoint] = ()
    if leaders and route.version >= LEADERS_FROM:
        endpoints = connection.services.endpoints_of(leaders, connection.endpoint.listener)
    body = encode_response(topics, route.version, endpoints=endpoints)
    return response_frame(request.correlation_id, body, flexible=route.flexible_response)
