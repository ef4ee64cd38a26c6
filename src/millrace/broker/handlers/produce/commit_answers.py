"""The answer to a produce for one partition that waits until its batch is committed.

With followers nearly every acks=all request waits, so its answer is made as directly as one that does not:
one object, which is the place in the order of responses as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.broker.network.connection import Slot
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
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.core.ids import TopicId
    from millrace.log.partition.appending import Appended
    from millrace.replica.partition import Partition


class CommitAnswer(Slot):
    __slots__ = ("_appended", "_correlation_id", "_partition", "_route", "_started", "_topic_id")

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        started: float,
        partition: Partition,
        topic_id: TopicId | None,
        appended: Appended,
    ) -> None:
        super().__init__(connection)
        self._route = route
        self._correlation_id = correlation_id
        self._started = started
        self._partition = partition
        self._topic_id = topic_id
        self._appended = appended

    def wait(self, connection: Connection, timeout_ms: int) -> None:
        """Take the place of the request that is being handled, until its batch is committed."""
        connection.take_place(self)
        self._partition.waiting_produces.add(self._appended.last_offset + 1, self._settled)
        connection.services.deadlines.add(connection.loop, max(timeout_ms, 1), self)

    @property
    def is_over(self) -> bool:
        return self._connection is None

    def expire(self) -> None:
        partition = self._partition
        if partition.is_leader and not partition.has_enough_replicas:
            self._refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            self._refuse(ErrorCode.REQUEST_TIMED_OUT)

    def _settled(self, committed: bool) -> None:
        connection = self._connection
        if connection is None:
            return
        if not committed:
            leader = connection.services.leader_elsewhere(self._partition)
            self._refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader)
            return
        partition, appended, route = self._partition, self._appended, self._route
        route.stats.record(connection.ticks() - self._started)
        self.complete(
            encode_single_success(
                self._correlation_id,
                route.version,
                partition.topic,
                self._topic_id,
                (
                    partition.index,
                    appended.base_offset,
                    appended.log_append_time_ms,
                    partition.log.log_start_offset,
                ),
            )
        )

    def _refuse(self, code: ErrorCode, leader: tuple[int, int] | None = None) -> None:
        connection, partition, route = self._connection, self._partition, self._route
        if connection is None:
            return
        route.stats.record(connection.ticks() - self._started)
        route.stats.count_error(code)
        result = PartitionResult(partition.index, code, current_leader=leader)
        endpoints: list[NodeEndpoint] = []
        if leader is not None and route.version >= LEADERS_FROM:
            endpoints = connection.services.endpoints_of([leader[0]], connection.endpoint.listener)
        topic = TopicResult(partition.topic, self._topic_id, [result])
        body = encode_response([topic], route.version, endpoints=endpoints)
        self.complete(response_frame(self._correlation_id, body, flexible=route.flexible_response))
