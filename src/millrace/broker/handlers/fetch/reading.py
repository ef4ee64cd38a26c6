"""What a fetch finds in its partitions, without waiting and without touching the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.broker.network.fetch_sessions import FetchPlan, FetchTarget
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.log.errors import OffsetOutOfRange
from millrace.replica.partition import FencedLeaderEpoch, NotLeader, UnknownLeaderEpoch
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import READ_COMMITTED, FetchRequest, PartitionData

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.dispatch import Route
    from millrace.log.partition.log_slice import LogSlice
    from millrace.log.partition.partition_log import PartitionLog
    from millrace.log.segments.segment import Segment
    from millrace.replica.partition import Partition


class FetchReads:
    """A request and its results so far."""

    __slots__ = (
        "_connection",
        "_max_bytes",
        "_partitions",
        "_plan",
        "_request",
        "_results",
        "_route",
        "_services",
        "_size_bytes",
        "_unread_aborted",
        "_urgent",
    )

    def __init__(self, connection: Connection, route: Route, request: FetchRequest, plan: FetchPlan) -> None:
        self._connection = connection
        self._services: Services = connection.services
        self._route = route
        self._request = request
        self._plan = plan
        self._max_bytes = min(request.max_bytes, self._services.settings.fetch_bytes_max)
        self._results: list[tuple[FetchTarget, Partition | None, PartitionData]] = []
        self._partitions: list[Partition] = []
        self._size_bytes = 0
        self._unread_aborted: list[tuple[PartitionLog, list[Segment]]] | None = []
        """Indexes to be read in a thread, and then all this again; None if they were: the rest is read on the
        spot."""
        self._urgent = False

    def _read(self) -> None:
        self._results = results = []
        self._partitions = partitions = []
        self._urgent = False
        if self._unread_aborted:
            self._unread_aborted = []
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
            records = found if found.size_bytes > 0 else None
            aborted = None
            if committed_only:
                # Reads files, too: what the disk says to that is an answer as well.
                aborted = [] if records is None else self._aborted(partition, target.fetch_offset, records)
        except MillraceError as error:
            partition.stats.fetches_failed += 1
            return self._refused(target, partition, error)
        return PartitionData(
            target.partition,
            0,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            records,
            aborted,
        )

    def _aborted(self, partition: Partition, offset: int, records: LogSlice) -> list[tuple[int, int]]:
        if self._unread_aborted is not None:
            unread = partition.log.unread_aborted()
            if unread:
                self._unread_aborted.append((partition.log, unread))
                return []
        return partition.aborted_transactions(offset, records)

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
