"""What a consumer's fetch finds in its partitions, and what of that is news to the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.broker.network.fetch_sessions import FetchPlan, FetchTarget
from millrace.broker.network.pace import BURST_BYTES
from millrace.broker.wire_errors import error_code
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.aborted_bounds import learn_aborted
from millrace.log.partition.log_slice import LogSlice
from millrace.replica.partition import FencedLeaderEpoch, NotLeader, UnknownLeaderEpoch
from millrace.security.acls.binding import Operation
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import READ_COMMITTED, FetchRequest, PartitionData, TopicData

if TYPE_CHECKING:
    from millrace.broker.handlers.services import Services
    from millrace.broker.network.dispatch import ApiStats
    from millrace.log.partition.partition_log import PartitionLog
    from millrace.log.segments.segment import Segment
    from millrace.replica.partition import Partition
    from millrace.security.acls.decisions import Decisions


class Reading:
    """What a consumer's fetch finds in its partitions. It neither waits nor touches the records, and may read
    again later."""

    __slots__ = (
        "_decisions",
        "_plan",
        "_request",
        "_services",
        "_stats",
        "is_urgent",
        "partitions",
        "results",
        "size_bytes",
        "unread_aborted",
    )

    def __init__(
        self,
        services: Services,
        decisions: Decisions,
        stats: ApiStats,
        request: FetchRequest,
        plan: FetchPlan,
    ) -> None:
        self._services = services
        self._decisions = decisions
        self._stats = stats
        self._request = request
        self._plan = plan
        self.results: Sequence[tuple[FetchTarget, Partition | None, PartitionData]] = ()
        self.partitions: Sequence[Partition] = ()
        """Those of the results that this broker has."""
        self.size_bytes = 0
        self.is_urgent = False
        """Whether there is something to tell that is no record and cannot wait."""
        self.unread_aborted: list[tuple[PartitionLog, list[Segment]]] | None = []
        """Indexes that a thread has to read before the results are complete (`read_with_aborted`). None while
        all of them are read on the spot."""

    def read(self) -> None:
        results: list[tuple[FetchTarget, Partition | None, PartitionData]] = []
        partitions: list[Partition] = []
        self.results, self.partitions = results, partitions
        self.is_urgent = False
        if self.unread_aborted:
            self.unread_aborted = []
        services = self._services
        left = min(self._request.max_bytes, services.settings.fetch_bytes_max)
        size = 0
        registry = services.partitions
        is_restricted = self._decisions.is_restricted
        for target in self._plan.targets:
            by_index = (
                registry.by_name.get(target.topic)
                if target.topic_id is None
                else registry.by_id.get(target.topic_id)
            )
            partition = None if by_index is None else by_index.get(target.partition)
            if is_restricted and self._is_refused(target, partition):
                partition = None
                data = self._failed(target, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif partition is None:
                data = self._absent(target)
            else:
                partitions.append(partition)
                data = self._read_partition(target, partition, left, size == 0)
            if data.error_code or data.diverging_epoch is not None:
                self.is_urgent = True
            elif data.records is not None:
                size += data.records.size_bytes
                left -= data.records.size_bytes
            results.append((target, partition, data))
        self.size_bytes = size

    @property
    def is_still_allowed(self) -> bool:
        """Whether all that was found may still be read."""
        return not any(
            partition is not None and self._is_refused(target, partition)
            for target, partition, _ in self.results
        )

    def _is_refused(self, target: FetchTarget, partition: Partition | None) -> bool:
        """Whether the client may not read this, be it there or not. An id that nobody knows is no secret."""
        if self._request.replica_id >= 0:
            return not self._decisions.allows_on_cluster(Operation.CLUSTER_ACTION)
        name = target.topic
        if partition is not None:
            name = partition.topic
        elif target.topic_id is not None:
            known = self._services.metadata.image.topics_by_id.get(target.topic_id)
            if known is None:
                return False
            name = known.name
        return not self._decisions.allows_on_topic(Operation.READ, name)

    async def read_with_aborted(self) -> None:
        """Read again once threads have read which transactions were aborted. A broker needs that once after
        its start, and only the fetch that asks waits for it."""
        unread, self.unread_aborted = self.unread_aborted or [], None
        volume = self._services.log_directories.volume
        await asyncio.gather(*(learn_aborted(volume, log, segments) for log, segments in unread))
        self.read()
        self.unread_aborted = []

    def is_catching_up(self) -> bool:
        """Whether a partition has much to read behind what was found."""
        return any(
            isinstance(data.records, LogSlice)
            and partition is not None
            and not partition.log.is_near_end(data.records, BURST_BYTES)
            for _, partition, data in self.results
        )

    def topics_to_tell(self) -> list[TopicData]:
        """The results by topic, to be told now: with an incremental session, only those with news."""
        topics: list[TopicData] = []
        last: tuple[str, TopicId | None] | None = None
        session = self._plan.session
        incremental = self._plan.is_incremental
        for target, partition, data in self.results:
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

    def _read_partition(
        self, target: FetchTarget, partition: Partition, left: int, min_one: bool
    ) -> PartitionData:
        request = self._request
        log = partition.log
        partition.stats.fetches += 1
        try:
            if target.current_leader_epoch not in (-1, partition.leader_epoch):
                partition.check_epoch(target.current_leader_epoch)
            if request.replica_id >= 0:
                return self._not_a_replica(target, partition)
            if not partition.leads_alone:
                read_replica = self._check_role(target, partition)
                if read_replica >= 0:
                    self.is_urgent = True
                    return _without_records(target, partition, preferred_read_replica=read_replica)
            if target.last_fetched_epoch >= 0:
                diverging = partition.divergence(target.last_fetched_epoch, target.fetch_offset)
                if diverging is not None:
                    return _without_records(target, partition, diverging_epoch=diverging)
            committed_only = request.isolation_level == READ_COMMITTED
            limit = min(left, target.max_bytes)
            end_offset = partition.last_stable_offset if committed_only else log.high_watermark
            found = log.read(target.fetch_offset, limit, end_offset, min_one)
            records = found if found.size_bytes > 0 else None
            aborted = None
            if committed_only:
                # This reads files, too: an error of the disk is an answer as well.
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
        if self.unread_aborted is not None:
            unread = partition.log.unread_aborted()
            if unread:
                self.unread_aborted.append((partition.log, unread))
                return []
        return partition.aborted_transactions(offset, records)

    def _check_role(self, target: FetchTarget, partition: Partition) -> int:
        """The replica that the consumer should read from instead, or -1.

        A leader may send a consumer that names its rack to a follower nearby, and the follower serves it."""
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
            # The leader may well have it: no consumer should start over because this replica is behind.
            code = ErrorCode.OFFSET_NOT_AVAILABLE
        data = self._failed(target, code)
        is_about_leaders = isinstance(error, NotLeader | FencedLeaderEpoch | UnknownLeaderEpoch)
        if is_about_leaders and partition.leader_id >= 0:
            return data._replace(current_leader=(partition.leader_id, partition.leader_epoch))
        return data

    def _not_a_replica(self, target: FetchTarget, partition: Partition) -> PartitionData:
        """Refuse a fetch in the name of a replica that the partition does not have: it learns nothing and
        moves nothing."""
        partition.stats.fetches_failed += 1
        return self._failed(target, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _absent(self, target: FetchTarget) -> PartitionData:
        services = self._services
        data = self._failed(target, services.absence(target.topic, target.topic_id, target.partition))
        leader = services.current_leader(target.topic, target.topic_id, target.partition)
        return data if leader is None else data._replace(current_leader=leader)

    def _failed(self, target: FetchTarget, code: int) -> PartitionData:
        self._stats.count_error(code)
        aborted: list[tuple[int, int]] | None = (
            [] if self._request.isolation_level == READ_COMMITTED else None
        )
        return PartitionData(target.partition, code, -1, -1, -1, None, aborted)


def _without_records(
    target: FetchTarget,
    partition: Partition,
    *,
    preferred_read_replica: int = -1,
    diverging_epoch: tuple[int, int] | None = None,
) -> PartitionData:
    log = partition.log
    return PartitionData(
        target.partition,
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_read_replica=preferred_read_replica,
        diverging_epoch=diverging_epoch,
    )


def _is_news(target: FetchTarget, data: PartitionData) -> bool:
    return (
        data.records is not None
        or data.error_code != 0
        or data.diverging_epoch is not None
        # Without it the answer would be empty, and the consumer would ask again at once, without end.
        or data.preferred_read_replica >= 0
        or data.high_watermark != target.told_high_watermark
        or data.log_start_offset != target.told_log_start_offset
    )
