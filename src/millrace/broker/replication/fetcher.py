"""Follows leaders: for each of them one connection and one fetch session over all partitions that it leads.

Answers are taken where they arrive, in the connection's callback, and the next request leaves at once:
nothing waits for a task to be scheduled. What takes longer than an append (cutting the log, waiting for the
disk) is done by a task, and only that partition waits for it.

A session between brokers of ours is a little leaner than KIP-227 asks: the leader sends a partition's records
once and then waits until the follower names the partition again, with its new end. So the follower simply
does not name a partition that is busy.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from millrace.broker.replication.followed import Followed
from millrace.broker.replication.peers import PeerConnection, Peers, PeerUnreachable
from millrace.broker.replication.throttles import FollowerThrottles
from millrace.core.background import Failures, StartTask, Tasks
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicId
from millrace.log.partition.partition_log import PartitionLog
from millrace.replica.following import Fetched, Position, out_of_range
from millrace.replica.partition import Partition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.replica_fetch_codec import VERSION, ReplicaData, ReplicaResponse, Wanted, encode_request

log = logging.getLogger(__name__)

NAMED_MAX: Final = 5_000
"""How many partitions one request may name; the next request names the rest."""
RECONNECT_MS: Final = 20
RECONNECT_MS_MAX: Final = 1_000
RETRY_MS: Final = 20
RETRY_MS_MAX: Final = 1_000
UNANSWERED_MAX: Final = 2
"""A request that waits at the leader, and one that has news for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """How this broker fetches from leaders."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1_048_576
    response_bytes_max: int = 10_485_760
    timeout_ms: int = 30_000


Key = tuple[TopicId, int]


class LeaderFetcher:
    """Everything that this broker follows from one leader."""

    def __init__(
        self,
        leader_id: NodeId,
        peers: Peers,
        *,
        node_id: NodeId,
        broker_epoch: Callable[[], int],
        settings: Callable[[], FetcherSettings],
        throttles: FollowerThrottles,
        chance: random.Random,
        start_task: StartTask,
    ) -> None:
        self.leader_id = leader_id
        self._peers = peers
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._throttles = throttles
        self._chance = chance
        self._start_task = start_task
        self._followed: dict[Key, Followed] = {}
        self._unnamed: dict[Key, None] = {}
        """The partitions that the next request names."""
        self._forgotten: dict[Key, None] = {}
        """The partitions that are in the leader's session, but are not followed from it any more."""
        self._connection: PeerConnection | None = None
        self._is_connecting = False
        self._session_id = 0
        self._session_epoch = 0
        self._unanswered = 0
        self._active_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._reconnect_ms = RECONNECT_MS
        self._hurry = asyncio.Event()
        """Set when there is a reason to believe that the leader can be reached now."""
        self._is_over = False
        self.fetched_bytes = 0
        self.answers_count = 0

    def __len__(self) -> int:
        return len(self._followed)

    # What to follow.

    def follow(self, partition: Partition) -> None:
        """Fetch a partition, in its present leader epoch."""
        key = (partition.topic_id, partition.index)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            if followed.leader_epoch == partition.leader_epoch:
                return
            followed.leader_epoch = partition.leader_epoch
            if followed.retry is not None:
                followed.retry.cancel()
                followed.retry = None
                followed.is_busy = False
        else:
            self._drop(key)
            followed = self._followed[key] = Followed(partition)
        self._reconnect_ms = RECONNECT_MS
        self._hurry.set()
        self._name(key, followed)

    def unfollow(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            self._drop(key)

    def stop(self) -> None:
        self._is_over = True
        for key in list(self._followed):
            self._drop(key)
        self._disconnect()

    def _drop(self, key: Key) -> None:
        followed = self._followed.pop(key, None)
        if followed is None:
            return
        self._unnamed.pop(key, None)
        self._throttles.forget(followed)
        followed.return_quota(0)
        if followed.retry is not None:
            followed.retry.cancel()
        if followed.is_named:
            self._forgotten[key] = None
        if not self._followed and not self._is_over:
            self._disconnect()

    def _name(self, key: Key, followed: Followed) -> None:
        """Have the partition's position told to the leader as soon as possible."""
        if followed.is_busy or self._is_over:
            return
        self._unnamed[key] = None
        self._forgotten.pop(key, None)
        if self._connection is None:
            self._connect()
        elif self._session_epoch and self._unanswered < UNANSWERED_MAX:
            # The request that waits at the leader is answered when this one arrives.
            self._send()

    # The connection.

    def _connect(self) -> None:
        if not self._is_connecting:
            self._is_connecting = True
            self._start_task(self._connect_until_done())

    async def _connect_until_done(self) -> None:
        try:
            while self._followed and not self._is_over and self._connection is None:
                try:
                    connection = await self._peers.open(self.leader_id)
                except PeerUnreachable as error:
                    log.info("%s", error)
                    await self._pause()
                    continue
                except Exception:
                    # Nobody but this task would try again.
                    log.exception("broker %d cannot be followed", self.leader_id)
                    await self._pause()
                    continue
                if self._is_over or not self._followed:
                    connection.abort()
                    return
                self._connection = connection
                connection.on_lost = self._lost
                self._begin_session()
        finally:
            self._is_connecting = False

    async def _pause(self) -> None:
        """Wait before another attempt, longer each time, unless somebody knows better."""
        self._hurry.clear()
        delay_ms = self._reconnect_ms * self._chance.uniform(0.5, 1.0)
        self._reconnect_ms = min(2 * self._reconnect_ms, RECONNECT_MS_MAX)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._hurry.wait()
        except TimeoutError:
            return

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_lost = None
            connection.abort()
        self._reset()

    def _lost(self, connection: PeerConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._reset()
        self._peers.suspect(self.leader_id)
        if self._followed and not self._is_over:
            self._connect()

    def _reset(self) -> None:
        self._unanswered = 0
        self._session_id = self._session_epoch = 0
        self._forgotten.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _begin_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._forgotten.clear()
        for key, followed in self._followed.items():
            followed.is_named = False
            followed.return_quota(0)
            if not followed.is_busy:
                self._unnamed[key] = None
        self._send()

    # Asking.

    def _send(self) -> None:
        connection = self._connection
        assert connection is not None
        settings = self._settings()
        body = encode_request(
            replica_id=self._node_id,
            replica_epoch=self._broker_epoch(),
            max_wait_ms=settings.wait_ms_max,
            min_bytes=settings.bytes_min,
            max_bytes=settings.response_bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            wanted=self._wanted(settings.partition_bytes_max),
            forgotten=self._forgotten,
        )
        self._forgotten.clear()
        session = self._session_epoch
        if session:
            self._session_epoch = 1 if session == 0x7FFF_FFFF else session + 1
        self._unanswered += 1
        if self._watch is None:
            self._watch_answers(settings)
        connection.send(ApiKey.FETCH, VERSION, body, lambda answer: self._answered(connection, answer))

    def _wanted(self, bytes_max: int) -> list[Wanted]:
        wanted = []
        is_throttling = self._throttles.is_on
        for key in list(self._unnamed)[:NAMED_MAX]:
            del self._unnamed[key]
            followed = self._followed[key]
            partition_log = followed.partition.log
            if partition_log.commits_on_flush and _is_ahead_of_its_disk(partition_log):
                self._do(key, followed, _flush(partition_log))
                continue
            try:
                last_epoch = partition_log.last_record_epoch()
            except MillraceError as error:
                self._failed(key, followed, error)
                continue
            offset, start = partition_log.log_end_offset, partition_log.log_start_offset
            most: int | None = bytes_max
            if is_throttling:
                most = self._allowed(key, followed, offset, bytes_max)
            if most is None:
                continue
            followed.ask(Position(offset, last_epoch, start))
            wanted.append(Wanted(key[0], key[1], followed.leader_epoch, offset, last_epoch, start, most))
        return wanted

    def _allowed(self, key: Key, followed: Followed, offset: int, bytes_max: int) -> int | None:
        """How many bytes of a partition may be asked for at this moment; None if it has to wait for quota."""
        if 0 <= followed.leader_high_watermark <= offset:
            return bytes_max
        throttle = self._throttles.of(followed.partition)
        if throttle is None:
            return bytes_max
        followed.return_quota(0)
        available = throttle.available()
        if available == 0:
            throttle.wait(followed, partial(self._go_on, key, followed))
            return None
        most = min(bytes_max, available)
        throttle.take(most)
        followed.reserved = (throttle, most)
        return most

    def _go_on(self, key: Key, followed: Followed) -> None:
        if self._followed.get(key) is followed:
            self._name(key, followed)

    def _watch_answers(self, settings: FetcherSettings) -> None:
        """Look now and then whether answers come, instead of a timer for every request."""
        loop = asyncio.get_running_loop()
        self._active_at = loop.time()
        self._watch = loop.call_later((settings.wait_ms_max + settings.timeout_ms) / 1000, self._look)

    def _look(self) -> None:
        self._watch = None
        settings = self._settings()
        silent_ms = (asyncio.get_running_loop().time() - self._active_at) * 1000
        if self._connection is None or not self._unanswered:
            return
        if silent_ms >= settings.wait_ms_max + settings.timeout_ms:
            log.warning("broker %d does not answer fetches", self.leader_id)
            self._connection.abort()
        else:
            self._watch_answers(settings)

    # Taking.

    def _answered(self, connection: PeerConnection, answer: memoryview | None) -> None:
        if connection is not self._connection or answer is None:
            return
        self._unanswered -= 1
        self._active_at = asyncio.get_running_loop().time()
        response = ReplicaResponse(answer, 0, len(answer))
        if response.error_code or response.session_id == 0:
            self._session_refused(response.error_code)
            return
        self._reconnect_ms = RECONNECT_MS
        self.answers_count += 1
        if self._session_id == 0:
            self._session_id, self._session_epoch = response.session_id, 1
        for data in response.partitions():
            key = (data.topic_id, data.partition)
            followed = self._followed.get(key)
            if followed is not None and not followed.is_busy and key not in self._unnamed:
                self._take(key, followed, data)
        if self._unanswered == 0 or (self._unnamed and self._unanswered < UNANSWERED_MAX):
            self._send()

    def _session_refused(self, error_code: int) -> None:
        """The leader has forgotten the session, or does not know this broker yet: begin anew."""
        log.info("broker %d refuses the fetch session: error %d", self.leader_id, error_code)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_lost = None
            connection.abort()
        self._reset()
        if not self._is_connecting:
            self._is_connecting = True
            self._start_task(self._reconnect_later())

    async def _reconnect_later(self) -> None:
        try:
            await self._pause()
        finally:
            self._is_connecting = False
        if self._followed and not self._is_over and self._connection is None:
            self._connect()

    def _take(self, key: Key, followed: Followed, data: ReplicaData) -> None:
        partition = followed.partition
        if partition.leader_epoch != followed.leader_epoch or partition.is_leader:
            # The broker that answered speaks for a term that is over; the reconciler says what comes next.
            return
        if followed.reserved is not None and (data.records is not None or data.error_code or data.diverging):
            followed.return_quota(0 if data.records is None else len(data.records))
        if data.error_code:
            self._refused(key, followed, data)
            return
        followed.leader_high_watermark = data.high_watermark
        fetched = Fetched(data.high_watermark, data.log_start_offset, data.records, data.diverging)
        try:
            repair = partition.take_from_leader(followed.asked.offset, fetched)
        except MillraceError as error:
            # The records were damaged on the way, or this disk does not take them: none counts, so ask again.
            self._failed(key, followed, error)
            return
        partition_log = partition.log
        if data.records is not None:
            self.fetched_bytes += len(data.records)
        if repair is not None:
            self._do(key, followed, followed.carry_out(repair))
            return
        if data.records is not None and partition_log.log_end_offset == followed.asked.offset:
            self._answered_in_vain(key, followed)
            return
        followed.failures = followed.repairs_count = 0
        if partition_log.commits_on_flush and _is_ahead_of_its_disk(partition_log):
            self._do(key, followed, _flush(partition_log))
        elif data.records is not None:
            self._unnamed[key] = None

    def _refused(self, key: Key, followed: Followed, data: ReplicaData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset >= 0:
            repair = out_of_range(followed.partition.log, data.log_start_offset)
            self._do(key, followed, followed.carry_out(repair))
            return
        # The leader's image and ours differ for a moment, or its disk fails: ask again a little later.
        self._failed(key, followed, None)

    def _failed(self, key: Key, followed: Followed, error: MillraceError | None) -> None:
        if self._followed.get(key) is not followed:
            # The partition was let go meanwhile. If another `Followed` has its place, that has named the
            # partition, and the leader must not forget it.
            return
        if error is not None:
            log.warning("%s cannot follow: %s", followed.partition.topic_partition, error)
        delay_ms = min(RETRY_MS << min(followed.failures, 10), RETRY_MS_MAX)
        followed.failures += 1
        followed.is_busy = True
        if followed.is_named:
            # Until then the leader's session goes without the partition, or the leader would answer at once
            # without end.
            followed.is_named = False
            self._forgotten[key] = None
        loop = asyncio.get_running_loop()
        followed.retry = loop.call_later(delay_ms / 1000, self._ready, key, followed)

    def _answered_in_vain(self, key: Key, followed: Followed) -> None:
        """Ask again later: the same request would get the same answer, and if sent at once, both brokers
        would do nothing else."""
        log.warning("%s: the leader's answer changes nothing", followed.partition.topic_partition)
        self._failed(key, followed, None)

    def _do(self, key: Key, followed: Followed, work: Coroutine[Any, Any, bool]) -> None:
        followed.is_busy = True
        self._start_task(self._busy(key, followed, work))

    async def _busy(self, key: Key, followed: Followed, work: Coroutine[Any, Any, bool]) -> None:
        """Do work that says whether the leader may be asked again at once."""
        try:
            is_news = await work
        except MillraceError as error:
            self._failed(key, followed, error)
            return
        except Exception:
            # Nobody but this task would name the partition again.
            log.exception("%s cannot follow", followed.partition.topic_partition)
            self._failed(key, followed, None)
            return
        if is_news:
            self._ready(key, followed)
        else:
            self._answered_in_vain(key, followed)

    def _ready(self, key: Key, followed: Followed) -> None:
        followed.is_busy = False
        followed.retry = None
        if self._followed.get(key) is followed:
            self._name(key, followed)


def _is_ahead_of_its_disk(partition_log: PartitionLog) -> bool:
    """Whether the end of this log must not be named yet. A follower that names it says that the records are
    safe here: where they count only on the disk, they have to be there before."""
    return partition_log.flushed_offset < partition_log.log_end_offset


async def _flush(partition_log: PartitionLog) -> bool:
    await partition_log.flush()
    return True


class Fetchers:
    """All that this broker follows, with one fetcher for each leader."""

    def __init__(
        self,
        peers: Peers,
        *,
        node_id: NodeId,
        broker_epoch: Callable[[], int],
        settings: Callable[[], FetcherSettings],
        throttles: FollowerThrottles,
        chance: random.Random,
        failures: Failures | None = None,
    ) -> None:
        self._fetchers: dict[NodeId, LeaderFetcher] = {}
        self._leader_of: dict[Partition, NodeId] = {}
        self._tasks = Tasks(failures)
        self._is_running = False
        self._new_fetcher = partial(
            LeaderFetcher,
            peers=peers,
            node_id=node_id,
            broker_epoch=broker_epoch,
            settings=settings,
            throttles=throttles,
            chance=chance,
            start_task=self._tasks.starter("follow-leader"),
        )

    def start(self) -> None:
        """Begin to fetch, also the partitions that were given to follow before."""
        self._is_running = True
        for partition, leader_id in self._leader_of.items():
            self._fetcher(leader_id).follow(partition)

    def stop(self) -> None:
        self._is_running = False
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._tasks.cancel()

    @property
    def fetchers(self) -> tuple[LeaderFetcher, ...]:
        return tuple(self._fetchers.values())

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from the leader that it has now."""
        leader_id = NodeId(partition.leader_id)
        before = self._leader_of.get(partition)
        if before is not None and before != leader_id and before in self._fetchers:
            self._fetchers[before].unfollow(partition)
        self._leader_of[partition] = leader_id
        if self._is_running:
            self._fetcher(leader_id).follow(partition)

    def unfollow(self, partition: Partition) -> None:
        leader_id = self._leader_of.pop(partition, None)
        if leader_id is not None and leader_id in self._fetchers:
            self._fetchers[leader_id].unfollow(partition)

    def _fetcher(self, leader_id: NodeId) -> LeaderFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = self._new_fetcher(leader_id)
        return fetcher
