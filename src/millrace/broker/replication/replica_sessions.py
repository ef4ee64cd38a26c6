"""The leader's side of replication: what it has told each follower, what it can tell now, and the fetch with
which a follower waits for more.

A session spans all partitions that a follower fetches from this broker. A fetch looks only at those with
news: appends and moves of the high watermark put a partition on the session's list, and a fetch reads the
list. So a fetch costs what it brings, however many partitions the session has.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

from millrace.broker.replication.throttles import Throttle
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicId
from millrace.log.errors import CorruptLog, OffsetOutOfRange
from millrace.replica.partition import FencedLeaderEpoch, UnknownLeaderEpoch
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import FetchPartition, FetchRequest, PartitionData, TopicData

if TYPE_CHECKING:
    from millrace.broker.replication.peers import Peers
    from millrace.metadata.service import Metadata
    from millrace.replica.partition import Partition
    from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)

HIGH_WATERMARK_DELAY_S: Final = 0.005
"""How long news of the high watermark alone waits for records to travel with."""

Key = tuple[TopicId, int]


class WaitingFetch(Protocol):
    """A follower's fetch that waits for something to tell."""

    def wake(self) -> None:
        """There is more to fetch: answer soon."""

    def wake_later(self) -> None:
        """There is a high watermark to tell: answer within moments."""

    def send_now(self) -> None:
        """The follower has more to say, or its session is over: answer at once."""

    def permissions_changed(self) -> None:
        """Answer at once if the follower may not have any more what it waits for."""


class ReplicaTarget:
    """One partition in a follower's session. The partition tells it what happens there."""

    __slots__ = (
        "agreed_epoch",
        "asked",
        "diverging",
        "error",
        "follower_start_offset",
        "index",
        "is_held_back",
        "partition",
        "session",
        "told_high_watermark",
        "topic_id",
    )

    def __init__(self, session: ReplicaSession, topic_id: TopicId, index: int) -> None:
        self.session = session
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        self.asked: FetchPartition | None = None
        self.error = 0
        self.diverging: tuple[int, int] | None = None
        self.agreed_epoch = -1
        """The term in which the follower's log was last found to be a part of the leader's. In any other term
        it may have different records below a high watermark."""
        self.told_high_watermark = -1
        self.follower_start_offset = -1
        """Where the follower's log began when it last asked."""
        self.is_held_back = False
        """Whether the follower waits for the leader's quota. It hears of what is appended meanwhile when
        there is quota again."""

    def appended(self) -> None:
        session = self.session
        if self.asked is not None and not self.is_held_back and self not in session.ready:
            session.ready[self] = None
            if session.waiting is not None:
                session.waiting.wake()

    def high_watermark_moved(self) -> None:
        session = self.session
        session.moved[self] = None
        if session.waiting is not None:
            session.waiting.wake_later()

    def changed(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        """There is quota again, or something to tell that needs none."""
        self.is_held_back = False
        self.appended()

    @property
    def is_followed(self) -> bool:
        """Whether this broker leads the partition, and the follower has a replica of it."""
        leadership = None if self.partition is None else self.partition.leadership
        return leadership is not None and self.session.node_id in leadership.replicas

    def has_news(self, partition: Partition) -> bool:
        """Whether there is something to tell beside records. A leader tells where its log begins until the
        follower says that it has heard it: whoever deletes records may wait for that."""
        partition_log = partition.log
        return (
            partition_log.high_watermark != self.told_high_watermark
            or partition_log.log_start_offset > self.follower_start_offset
        )

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.remove_replica_reader(self)
            self.partition = None


class ReplicaSession:
    """All partitions that one follower fetches from this broker."""

    def __init__(self, node_id: NodeId, session_id: int, broker_epoch: int) -> None:
        self.node_id = node_id
        self.session_id = session_id
        self.broker_epoch = broker_epoch
        self.epoch = 1
        self.is_leaving = False
        """Whether the follower is about to stop: then nobody waits for it any more."""
        self.targets: dict[Key, ReplicaTarget] = {}
        self.ready: dict[ReplicaTarget, None] = {}
        """Those with records, or with an error to tell."""
        self.moved: dict[ReplicaTarget, None] = {}
        """Those with a high watermark, or a start, that the follower has not heard of."""
        self.waiting: WaitingFetch | None = None
        """The fetch that waits, if one does; it enters itself here, and takes itself out."""

    def end(self) -> None:
        for target in self.targets.values():
            partition = target.partition
            target.leave()
            if partition is not None:
                partition.replica_lost(self.node_id)
        self.targets.clear()
        self.ready.clear()
        self.moved.clear()


class SessionRefused(MillraceError):
    """The follower has to begin a new session."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ReplicaSessions:
    """The sessions of all followers: one for each broker, since a broker fetches over one connection."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        peers: Peers,
        *,
        node_id: NodeId,
        chance: random.Random,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._peers = peers
        self._node_id = node_id
        self._chance = chance
        self._sessions: dict[NodeId, ReplicaSession] = {}
        self.throttle = Throttle()
        """Holds back followers that are not in sync, of the partitions that the settings name."""

    @property
    def sessions(self) -> tuple[ReplicaSession, ...]:
        return tuple(self._sessions.values())

    def is_replica(self, request: FetchRequest) -> bool:
        """Whether a fetch comes from a broker of the cluster: it knows the epoch of its registration.

        That is no secret, so this keeps out mistakes, not malice: who may speak as a broker is for the
        listener to say, as soon as it knows identities."""
        broker = self._metadata.image.brokers.get(NodeId(request.replica_id))
        return (
            broker is not None
            and request.replica_id != self._node_id
            and broker.epoch == request.replica_epoch
        )

    def enter(self, request: FetchRequest, now_ms: int) -> ReplicaSession:
        """The request's session, brought up to date with what the request says; raises SessionRefused."""
        node_id = NodeId(request.replica_id)
        session = self._sessions.get(node_id)
        if session is not None and session.waiting is not None:
            # The follower reads answers in order: the one to its last request goes first.
            session.waiting.send_now()
        if request.session_epoch <= 0:
            if session is not None:
                self._end(session)
            session = ReplicaSession(node_id, self._chance.randrange(1, 0x7FFF_FFFF), request.replica_epoch)
            self._sessions[node_id] = session
            self._peers.met(node_id)
        else:
            if session is None or session.session_id != request.session_id:
                raise SessionRefused(
                    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no replica session {request.session_id}"
                )
            if session.epoch != request.session_epoch or session.broker_epoch != request.replica_epoch:
                raise SessionRefused(
                    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                    f"replica session {request.session_id} is at {session.epoch}",
                )
            session.epoch = 1 if session.epoch == 0x7FFF_FFFF else session.epoch + 1
        for forgotten in request.forgotten:
            assert forgotten.topic_id is not None, forgotten
            for index in forgotten.partitions:
                self._forget(session, (forgotten.topic_id, index))
        session.is_leaving = node_id in self._metadata.image.stopping
        for topic in request.topics:
            assert topic.topic_id is not None, topic
            for asked in topic.partitions:
                self._ask(session, topic.topic_id, asked, now_ms)
        return session

    def connection_ended(self, session: ReplicaSession) -> None:
        """The follower comes back soon, or is gone: unless it has nothing left to fetch here, find out
        which."""
        if self._sessions.get(session.node_id) is session:
            is_follower = any(target.is_followed for target in session.targets.values())
            self._end(session)
            if is_follower:
                self._peers.suspect(session.node_id)

    def _end(self, session: ReplicaSession) -> None:
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]
        for target in session.targets.values():
            self.throttle.forget(target)
        session.end()
        if session.waiting is not None:
            session.waiting.send_now()

    def _forget(self, session: ReplicaSession, key: Key) -> None:
        target = session.targets.pop(key, None)
        if target is not None:
            target.leave()
            self.throttle.forget(target)
            session.ready.pop(target, None)
            session.moved.pop(target, None)

    def _ask(self, session: ReplicaSession, topic_id: TopicId, asked: FetchPartition, now_ms: int) -> None:
        """Take over a follower's position: it has everything below the offset that it asks for."""
        key = (topic_id, asked.partition)
        target = session.targets.get(key)
        if target is None:
            target = session.targets[key] = ReplicaTarget(session, topic_id, asked.partition)
        target.asked = asked
        target.follower_start_offset = asked.log_start_offset
        target.error = 0
        target.diverging = None
        partition = self._partitions.by_id.get(topic_id, {}).get(asked.partition)
        if partition is not target.partition:
            target.leave()
            target.partition = partition
            if partition is not None:
                partition.add_replica_reader(target)
        target.error = self._check(session, target, asked, now_ms)
        if target.error or target.diverging is not None:
            target.agreed_epoch = -1
            session.ready[target] = None
            return
        target.agreed_epoch = asked.current_leader_epoch
        if partition is not None and partition.log.log_end_offset > asked.fetch_offset:
            session.ready[target] = None
        else:
            session.ready.pop(target, None)
            if partition is not None and target.has_news(partition):
                session.moved[target] = None

    def _check(
        self, session: ReplicaSession, target: ReplicaTarget, asked: FetchPartition, now_ms: int
    ) -> int:
        """An error code for a partition that cannot be fetched like this; else the follower's progress
        counts."""
        partition = target.partition
        if partition is None:
            return (
                ErrorCode.UNKNOWN_TOPIC_ID
                if target.topic_id not in self._partitions.by_id
                else (ErrorCode.NOT_LEADER_OR_FOLLOWER)
            )
        if partition.leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            if asked.current_leader_epoch != partition.leader_epoch:
                partition.check_epoch(asked.current_leader_epoch)
            if asked.last_fetched_epoch >= 0 and not (
                # What this term has written is ours, as far as it goes.
                asked.last_fetched_epoch == partition.leader_epoch
                and asked.fetch_offset <= partition.log.log_end_offset
            ):
                target.diverging = partition.divergence(asked.last_fetched_epoch, asked.fetch_offset)
                if target.diverging is not None:
                    return 0
        except FencedLeaderEpoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        except UnknownLeaderEpoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        partition_log = partition.log
        if not partition_log.log_start_offset <= asked.fetch_offset <= partition_log.log_end_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        is_known = partition.replica_fetched(
            session.node_id,
            broker_epoch=session.broker_epoch,
            offset=asked.fetch_offset,
            log_start_offset=asked.log_start_offset,
            now_ms=now_ms,
            is_leaving=session.is_leaving,
        )
        return 0 if is_known else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # Reading.

    def read(self, session: ReplicaSession, max_bytes: int) -> list[TopicData]:
        """What there is to tell, as far as it fits; the rest waits for the next request."""
        by_topic: dict[TopicId, list[PartitionData]] = {}
        left = max_bytes
        is_empty = True
        for target in list(session.ready):
            if left <= 0 and not is_empty:
                break
            del session.ready[target]
            session.moved.pop(target, None)
            data = self._read_target(target, left, min_one=is_empty)
            if data is None:
                continue
            if data.records is not None:
                left -= data.records.size_bytes
                is_empty = False
            by_topic.setdefault(target.topic_id, []).append(data)
        for target in session.moved:
            partition = target.partition
            if partition is None or not target.has_news(partition):
                continue
            if target.agreed_epoch != partition.leader_epoch:
                continue
            if target not in session.ready and partition.leadership is not None:
                by_topic.setdefault(target.topic_id, []).append(self._data(target, partition))
        session.moved.clear()
        return [TopicData("", topic_id, partitions) for topic_id, partitions in by_topic.items()]

    def _read_target(self, target: ReplicaTarget, left: int, *, min_one: bool) -> PartitionData | None:
        asked, partition = target.asked, target.partition
        if asked is None:
            return None
        is_current = (
            partition is not None
            and partition.leadership is not None
            and partition.leader_epoch == asked.current_leader_epoch
        )
        if not is_current and not target.error:
            target.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if target.error:
            # The follower is told once; it names the partition again when it thinks that things have changed.
            target.asked = None
            start = -1 if partition is None else partition.log.log_start_offset
            return PartitionData(target.index, target.error, -1, -1, start)
        assert partition is not None
        if target.diverging is not None:
            target.asked = None
            return self._data(target, partition, diverging=target.diverging)
        limit = min(left, asked.max_bytes)
        throttle = self._throttle_of(target, partition) if partition.is_throttled_as_leader else None
        if throttle is not None:
            available = throttle.available()
            if available == 0:
                target.is_held_back = True
                throttle.wait(target, target.go_on)
                return None
            limit = min(limit, available)
            # A batch that is larger than what is left goes whole, or it would never go.
            min_one = True
        try:
            # Up to the end of the log, committed or not.
            end_offset = partition.log.log_end_offset
            found = partition.log.read(asked.fetch_offset, limit, end_offset, min_one)
        except OffsetOutOfRange:
            target.asked = None
            start = partition.log.log_start_offset
            return PartitionData(target.index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, start)
        except MillraceError as error:
            target.asked = None
            code = (
                ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptLog) else ErrorCode.KAFKA_STORAGE_ERROR
            )
            log.error("%s cannot be replicated: %s", partition.topic_partition, error)
            return PartitionData(target.index, code, -1, -1, partition.log.log_start_offset)
        if found.size_bytes == 0:
            if partition.log.log_end_offset > asked.fetch_offset:
                # The records did not fit any more: they are the first to be sent next time.
                target.session.ready[target] = None
                return None
            return self._data(target, partition)
        if throttle is not None:
            throttle.take(found.size_bytes)
        # The follower names the partition again once it has these.
        target.asked = None
        data = self._data(target, partition)
        partition.stats.bytes_out += found.size_bytes
        return data._replace(records=found)

    def _throttle_of(self, target: ReplicaTarget, partition: Partition) -> Throttle | None:
        assert partition.leadership is not None, partition.topic_partition
        if not self.throttle.is_limited or partition.leadership.waits_for(target.session.node_id):
            return None
        return self.throttle

    def _data(
        self, target: ReplicaTarget, partition: Partition, *, diverging: tuple[int, int] | None = None
    ) -> PartitionData:
        partition_log = partition.log
        target.told_high_watermark = partition_log.high_watermark
        return PartitionData(
            target.index,
            0,
            partition_log.high_watermark,
            -1,
            partition_log.log_start_offset,
            diverging_epoch=diverging,
        )


def steady_ms() -> int:
    """The loop's time in milliseconds, for durations: how long a follower has been behind."""
    return int(asyncio.get_running_loop().time() * 1000)
