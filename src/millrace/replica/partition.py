"""One partition on one broker, its leader or a follower: what may be appended, read and acknowledged, and who
waits for it.

It does no I/O beside the log's own and has no timers: the shell around it flushes disks and keeps deadlines.
A partition with a single replica has a shorter path: what is appended is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, TopicPartition
from millrace.log.errors import LogDirectoryOffline, StorageError
from millrace.log.partition.appending import Appended, append_thinned
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.staging import StagedBatch
from millrace.log.state.transactions import EndMarker, check_marker
from millrace.replica.following import Fetched, Repair, take
from millrace.replica.leadership import Leadership
from millrace.replica.waiting import (
    NEWEST_BYTES_MAX,
    FetchWaiter,
    Newest,
    OffsetWaiters,
    ReplicaReader,
)
from millrace.wire.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from millrace.wire.records import ControlMarker, ControlType, build_marker

NOT_WITHOUT_TRANSACTION: Final = CONTROL_BIT | TRANSACTIONAL_BIT


class FencedLeaderEpoch(MillraceError):
    def __init__(self, partition: TopicPartition, *, asked: int, current: int) -> None:
        super().__init__(f"{partition}: the request knows leader epoch {asked}, the current one is {current}")


class UnknownLeaderEpoch(MillraceError):
    def __init__(self, partition: TopicPartition, *, asked: int, current: int) -> None:
        super().__init__(f"{partition}: the request knows leader epoch {asked}, this broker only {current}")


class NotLeader(MillraceError):
    def __init__(self, partition: TopicPartition, *, leader_id: int) -> None:
        leader = "nobody" if leader_id < 0 else f"broker {leader_id}"
        super().__init__(f"{partition}: this broker does not lead it, {leader} does")
        self.leader_id = leader_id


class NotEnoughReplicas(MillraceError):
    def __init__(self, partition: TopicPartition, *, in_sync: int, required: int) -> None:
        super().__init__(
            f"{partition}: {in_sync} replicas are in sync, min.insync.replicas asks for {required}"
        )


class TopicStats:
    """What has gone in and out of a topic on this broker; plain numbers, because every batch adds to them."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "deduplicated",
        "fetches",
        "fetches_failed",
        "messages_in",
        "produces",
        "produces_failed",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.deduplicated = 0
        self.produces = 0
        self.produces_failed = 0
        self.fetches = 0
        self.fetches_failed = 0


class Partition:
    """One partition on this broker, leader or follower: who may append and read, what is committed, who
    waits."""

    __slots__ = (
        "_replica_readers",
        "_start_watchers",
        "_uncommitted_bytes",
        "answer_staged",
        "fetch_waiters",
        "flush_wanted",
        "has_enough_replicas",
        "in_sync_count",
        "index",
        "is_throttled_as_follower",
        "is_throttled_as_leader",
        "isr_wanted",
        "leader_epoch",
        "leader_id",
        "leaders_count",
        "leadership",
        "leads_alone",
        "log",
        "markers_count",
        "min_insync_replicas",
        "stats",
        "topic",
        "topic_id",
        "topic_partition",
        "transaction_owners",
        "waiting_produces",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        stats: TopicStats,
        flush_wanted: Callable[[Partition], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.topic, self.index = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.stats = stats
        self.flush_wanted = flush_wanted
        self.leader_epoch = 0
        self.leader_id = -1
        self.leads_alone = False
        """Whether this broker leads the only replica: what is written is committed, so appends take the short
        path, and batches may be staged to be written with others."""
        self.leadership: Leadership | None = None
        """What this broker knows of its followers while it leads several replicas."""
        self.in_sync_count = 1
        self.min_insync_replicas = 1
        self.has_enough_replicas = False
        """Whether this broker can promise acks=all: it leads, and `min.insync.replicas` are in sync."""
        self.is_throttled_as_leader = False
        """Whether the topic's settings hold followers of this replica to the broker's rate."""
        self.is_throttled_as_follower = False
        self.isr_wanted: Callable[[Partition], None] = _nobody_keeps_the_isr
        """Called when a follower has caught up or lost records, so that the metadata may hear of it."""
        self.leaders_count = 0
        """Grows whenever this broker begins or ceases to lead: what was found out before may be wrong."""
        self.markers_count = 0
        """How many markers were written here: a verification from before the last one no longer holds."""
        self.transaction_owners: dict[int, str] = {}
        """By producer id: in whose name its open transaction was verified, while this broker leads."""
        self._uncommitted_bytes = 0
        self.answer_staged: Callable[[Partition, list[StagedBatch], MillraceError | None], None] | None = None
        """Called with the outcome of staged batches; set by whoever stages them."""
        self.fetch_waiters: dict[FetchWaiter, None] = {}
        """Told when there is more to read. Who waits enters itself here, and takes itself out."""
        self._replica_readers: dict[ReplicaReader, None] = {}
        self._start_watchers: dict[Callable[[], None], None] = {}
        self.waiting_produces = OffsetWaiters()
        log.staged_written = self._staged_written

    @property
    def is_leader(self) -> bool:
        return self.leads_alone or self.leadership is not None

    def lead(self, leader_id: int, leader_epoch: int) -> None:
        """Lead for an epoch as the sole replica, whose whole log is committed, as far as it is on disk where
        that is asked for."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        # The log learns of the epoch with the first batch: to read its files now would slow the start of
        # thousands.
        if not self.leads_alone:
            self.leaders_count += 1
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.leads_alone = True
        self.leadership = None
        self.log.expect_readers()
        self.require_replicas()
        log = self.log
        # This call may be repeated while the disk is busy, or lead again after a while: also then nothing is
        # shown that is not on disk where it must be.
        committed = log.flushed_offset if log.commits_on_flush else log.log_end_offset
        if log.high_watermark < committed:
            self._advance_high_watermark(committed, 0)
        if committed < log.log_end_offset:
            self.flush_wanted(self)
        self._tell_start_watchers()

    def lead_replicas(self, leadership: Leadership) -> None:
        """Lead for an epoch with followers, or take over what the metadata says of them now."""
        assert leadership.leader_epoch >= self.leader_epoch, (leadership.leader_epoch, self.leader_epoch)
        is_new_term = self.leadership is not leadership
        if is_new_term:
            was_leader = self.is_leader
            # What was staged by a sole replica is committed as such.
            self.log.write_staged()
            self.leader_id = leadership.node_id
            self.leader_epoch = leadership.leader_epoch
            self.leads_alone = False
            self.leadership = leadership
            self.log.expect_readers()
            if not was_leader:
                self.leaders_count += 1
            # Readers here knew a follower, or a leader of an older epoch.
            self.changed()
        leadership.min_insync = self.min_insync_replicas
        self.in_sync_count = len(leadership.isr)
        self.has_enough_replicas = leadership.has_enough_replicas
        if not is_new_term or self.in_sync_count == 1:
            # At the beginning of a term, followers have not yet said how far they are.
            self.commit_what_is_replicated()
        self._tell_start_watchers()

    def follow(self, leader_id: int, leader_epoch: int) -> None:
        """Follow another leader, or nobody (-1). This broker will never commit what waits for that here."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        self.log.write_staged()
        was_leader = self.is_leader
        is_news = was_leader or leader_id != self.leader_id or leader_epoch != self.leader_epoch
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.leads_alone = False
        self.leadership = None
        self.has_enough_replicas = False
        self._uncommitted_bytes = 0
        if was_leader:
            self.leaders_count += 1
            self.transaction_owners.clear()
            self.waiting_produces.fail()
        if is_news:
            self.log.expect_no_readers()
            self.changed()

    def replace_log(self, log: PartitionLog) -> None:
        """Go on with the same log in another place: nobody who reads or waits here notices."""
        assert log.log_end_offset == self.log.log_end_offset, (log, self.log)
        self.log.staged_written = None
        self.log = log
        log.staged_written = self._staged_written
        if not self.is_leader:
            log.expect_no_readers()

    def require_replicas(self, *, min_insync: int | None = None) -> None:
        """Find out whether enough replicas are in sync for acks=all; take over how many that are."""
        if min_insync is not None:
            self.min_insync_replicas = min_insync
        leadership = self.leadership
        if leadership is not None:
            leadership.min_insync = self.min_insync_replicas
            self.has_enough_replicas = leadership.has_enough_replicas
        else:
            # A partition cannot ask for more replicas than it has, as in Kafka.
            self.has_enough_replicas = self.leads_alone

    @property
    def knows_its_end(self) -> bool:
        """Whether the high watermark has reached what may have been committed before this leader's term."""
        leadership = self.leadership
        return leadership is None or self.log.high_watermark >= leadership.epoch_start_offset

    def refuse_unless_leader(self) -> None:
        if not self.is_leader:
            home = self.log.home
            if self.leader_id < 0 and home.offline_reason is not None:
                raise LogDirectoryOffline(home.path, home.offline_reason)
            raise NotLeader(self.topic_partition, leader_id=self.leader_id)

    def refuse_if_too_few_replicas(self) -> None:
        """Refuse a produce with acks=all if too few replicas would have the records."""
        if not self.has_enough_replicas:
            self.refuse_unless_leader()
            raise NotEnoughReplicas(
                self.topic_partition, in_sync=self.in_sync_count, required=self.min_insync_replicas
            )

    def append(
        self,
        records: memoryview,
        now_ms: int,
        refused_bits: int = NOT_WITHOUT_TRANSACTION,
        token: object = None,
    ) -> Appended:
        """Append a producer's records; readers see them when they are committed.

        Transactional records need a caller that knows the transaction: see `append_transactional`. With a
        token the answer of a sole replica may be STAGED: `answer_staged` gets the token back once the batch
        is written."""
        if not self.leads_alone and self.leadership is None:
            self.refuse_unless_leader()
        log = self.log
        appended = log.append_as_leader(records, self.leader_epoch, now_ms, refused_bits, token)
        if appended.duplicate:
            # The batch is a duplicate, or staged.
            return appended
        size_bytes = len(records)
        stats = self.stats
        stats.messages_in += appended.last_offset - appended.base_offset + 1
        if not self.leads_alone:
            self._await_followers(size_bytes)
            return appended
        stats.bytes_in += size_bytes
        if log.flush_is_due:
            self.flush_wanted(self)
        # With flush.messages=1, records are shown once they are on disk: what was seen must not vanish.
        if not log.commits_on_flush:
            if self.fetch_waiters or self.waiting_produces:
                newest = (appended.base_offset, bytes(records)) if size_bytes <= NEWEST_BYTES_MAX else None
                self._advance_high_watermark(log.log_end_offset, size_bytes, newest)
            else:
                log.high_watermark = log.log_end_offset
        return appended

    def _staged_written(self, staged: list[StagedBatch], error: MillraceError | None) -> None:
        try:
            self._show_staged(staged, error)
        finally:
            # Whatever may be wrong with readers, those who wrote wait for an answer.
            assert self.answer_staged is not None
            self.answer_staged(self, staged, error)

    def _show_staged(self, staged: list[StagedBatch], error: MillraceError | None) -> None:
        log, stats = self.log, self.stats
        if error is None:
            size_bytes = 0
            for data, _, _, _, _, _, _, _ in staged:
                size_bytes += len(data)
            _, first_offset, _, _, _, _, _, _ = staged[0]
            stats.bytes_in += size_bytes
            stats.messages_in += log.log_end_offset - first_offset
            if log.flush_is_due:
                self.flush_wanted(self)
            newest = None
            if self.fetch_waiters and size_bytes <= NEWEST_BYTES_MAX:
                newest = (first_offset, b"".join([data for data, _, _, _, _, _, _, _ in staged]))
            self._advance_high_watermark(log.log_end_offset, size_bytes, newest)
        else:
            stats.produces_failed += len(staged)

    def _await_followers(self, size_bytes: int) -> None:
        """Note that something is in the log that followers have to fetch before it is committed."""
        self.stats.bytes_in += size_bytes
        self._uncommitted_bytes += size_bytes
        if self.log.flush_is_due:
            self.flush_wanted(self)
        for reader in self._replica_readers:
            reader.appended()
        assert self.leadership is not None
        if len(self.leadership.isr) == 1:
            self.commit_what_is_replicated()

    def append_transactional(self, records: memoryview, now_ms: int) -> Appended:
        """Append records of a transaction that its coordinator knows to be open in this partition."""
        return self.append(records, now_ms, CONTROL_BIT)

    def append_own(self, batch: memoryview, now_ms: int) -> Appended:
        """Append what this broker itself wrote into a producer's transaction, or at its end."""
        self.refuse_unless_leader()
        return self._shown(self.log.append_own(batch, self.leader_epoch), len(batch))

    def append_thinned(self, batch: memoryview, now_ms: int) -> Appended:
        """Append a producer's batch of which records were taken out: see `appending.append_thinned`."""
        self.refuse_unless_leader()
        return self._shown(append_thinned(self.log, batch, self.leader_epoch, now_ms), len(batch))

    def _shown(self, appended: Appended, size_bytes: int) -> Appended:
        """Let followers have what was just written, or readers if there are no followers."""
        log = self.log
        if not appended.duplicate:
            if self.leadership is not None:
                self._await_followers(size_bytes)
                return appended
            self.stats.bytes_in += size_bytes
            if log.flush_is_due:
                self.flush_wanted(self)
            if not log.commits_on_flush:
                self._advance_high_watermark(log.log_end_offset, size_bytes)
        return appended

    def needs_marker(self, marker: EndMarker) -> bool:
        """Whether a marker still has to be written; raises if a newer epoch forbids it."""
        return check_marker(self.log.producers, marker)

    def append_marker(self, marker: EndMarker, now_ms: int) -> Appended:
        """End a producer's transaction here. Readers of committed records get to see what it wrote."""
        kind = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
        batch = build_marker(
            ControlMarker(kind, marker.coordinator_epoch),
            offset=0,
            timestamp=now_ms,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
        )
        appended = self.append_own(memoryview(bytearray(batch)), now_ms)
        self.markers_count += 1
        self.transaction_owners.pop(marker.producer_id, None)
        return appended

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has written in its transaction here before, so that it is known to be open."""
        try:
            entry = self.log.producers.entries.get(producer_id)
        except StorageError:
            # Not known: the caller has the transaction verified, and the append reports the disk's error.
            return False
        return entry is not None and entry.epoch == epoch and entry.current_txn_first_offset >= 0

    def is_acknowledged(self, appended: Appended) -> bool:
        """Whether a produce with acks=all can be answered now; else wait in `waiting_produces`."""
        return self.log.high_watermark > appended.last_offset

    def flushed(self) -> None:
        """Commit what may be committed now that more of the log is on disk."""
        if not self.leads_alone:
            self.commit_what_is_replicated()
            return
        offset = self.log.flushed_offset
        if offset > self.log.high_watermark:
            self._advance_high_watermark(offset, 1)

    def flush_failed(self) -> None:
        """Fail those who wait: this log will never acknowledge what it has not yet."""
        self.waiting_produces.fail()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a request that was made for another leader's term; -1 means that the client does not know
        one."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        error = FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch
        raise error(self.topic_partition, asked=current_leader_epoch, current=self.leader_epoch)

    @property
    def last_stable_offset(self) -> int:
        """Up to where a reader of committed records may see them; others see them up to the high
        watermark."""
        self.log.producers  # noqa: B018 - it is right only once open transactions are known
        return self.log.last_stable_offset

    def aborted_transactions(self, offset: int, found: LogSlice) -> list[tuple[int, int]]:
        """(producer id, first offset) of transactions whose records are among those found at `offset`: a
        reader of committed records must skip them."""
        log = self.log
        end_offset = min(log.range_end(found), log.last_stable_offset)
        return [
            (aborted.producer_id, aborted.first_offset)
            for aborted in log.aborted_transactions(offset, end_offset)
        ]

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to the one asked for and where it ends; (-1, -1) if unknown."""
        log = self.log
        if epoch == self.leader_epoch:
            return epoch, log.log_end_offset
        if epoch > self.leader_epoch or epoch < 0:
            return -1, -1
        latest = log.latest_epoch
        if epoch > latest:
            # Nothing is written in the present epoch yet, which begins at the end of the log.
            return (latest if latest >= 0 else epoch), log.log_end_offset
        return log.epoch_end_offset(epoch)

    def divergence(self, last_epoch: int, end_offset: int) -> tuple[int, int] | None:
        """Where a log that ends with this epoch at this offset leaves our history, if it does: the largest
        epoch that both may have, and where it ends here."""
        epoch, own_end_offset = self.epoch_end_offset(last_epoch)
        if epoch < last_epoch or own_end_offset < end_offset:
            return epoch, own_end_offset
        return None

    # Followers.

    def replica_fetched(
        self,
        node_id: int,
        *,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        now_ms: int,
        is_leaving: bool = False,
    ) -> bool:
        """Note that a follower with our history has everything below `offset`. False if it is no replica."""
        leadership = self.leadership
        log = self.log
        if leadership is None or not leadership.fetched(
            node_id,
            broker_epoch=broker_epoch,
            offset=offset,
            log_start_offset=log_start_offset,
            log_end_offset=log.log_end_offset,
            now_ms=now_ms,
            is_leaving=is_leaving,
        ):
            return False
        if log.high_watermark < log.log_end_offset:
            self.commit_what_is_replicated()
        if leadership.note_high_watermark(node_id, log.high_watermark):
            self.isr_wanted(self)
        if self._start_watchers:
            self._tell_start_watchers()
        return True

    def replica_lost(self, node_id: int) -> None:
        """Note that a follower has stopped fetching; it may come back."""
        if self.leadership is not None:
            self.leadership.lost(node_id)
            self.commit_what_is_replicated()

    def commit_what_is_replicated(self) -> None:
        """Move the high watermark to where all replicas that count have the records."""
        leadership = self.leadership
        if leadership is None:
            return
        log = self.log
        offset = leadership.committed_up_to(
            log.flushed_offset if log.commits_on_flush else log.log_end_offset
        )
        if offset > log.high_watermark:
            # Producers first: they wait for nothing else.
            log.high_watermark = offset
            self.waiting_produces.reached(offset)
            for waiter in list(self.fetch_waiters):
                waiter.more_records(max(self._uncommitted_bytes, 1))
            if offset == log.log_end_offset:
                self._uncommitted_bytes = 0
            for reader in self._replica_readers:
                reader.high_watermark_moved()

    def low_watermark(self, is_alive: Callable[[int], bool]) -> int:
        """The first offset that any replica with a live broker still has; -1 if not all have said so."""
        start_offset = self.log.log_start_offset
        leadership = self.leadership
        return start_offset if leadership is None else leadership.low_watermark(start_offset, is_alive)

    def watch_start(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever a replica may have deleted records, or this broker leads no more."""
        self._start_watchers[watcher] = None

    def stop_watching_start(self, watcher: Callable[[], None]) -> None:
        self._start_watchers.pop(watcher, None)

    def add_replica_reader(self, reader: ReplicaReader) -> None:
        self._replica_readers[reader] = None

    def remove_replica_reader(self, reader: ReplicaReader) -> None:
        self._replica_readers.pop(reader, None)

    # Following.

    def take_from_leader(self, asked_offset: int, fetched: Fetched) -> Repair | None:
        """Append what the leader of the present epoch sent, and show readers here what is committed."""
        log = self.log
        high_watermark = log.high_watermark
        repair = take(log, asked_offset, fetched)
        if fetched.records is not None and log.flush_is_due:
            self.flush_wanted(self)
        if log.high_watermark > high_watermark and self.fetch_waiters:
            for waiter in list(self.fetch_waiters):
                waiter.more_records(1 if fetched.records is None else len(fetched.records))
        return repair

    # Waiting.

    def changed(self) -> None:
        """Tell all who wait that leadership, the log's start or its existence has changed."""
        for waiter in list(self.fetch_waiters):
            waiter.changed()
        for reader in self._replica_readers:
            reader.changed()
        self._tell_start_watchers()

    def retire(self) -> None:
        """End the partition here, because it is deleted or lives on other brokers only."""
        self.log.write_staged()
        self.leads_alone = False
        self.leadership = None
        self.has_enough_replicas = False
        self.leaders_count += 1
        self.waiting_produces.fail()
        self.changed()

    def _tell_start_watchers(self) -> None:
        for watcher in list(self._start_watchers):
            watcher()

    def _advance_high_watermark(self, offset: int, size_bytes: int, newest: Newest | None = None) -> None:
        self.log.high_watermark = offset
        if self.waiting_produces:
            self.waiting_produces.reached(offset)
        if self.fetch_waiters:
            for waiter in list(self.fetch_waiters):
                waiter.more_records(size_bytes, newest)


def _nobody_keeps_the_isr(_partition: Partition) -> None:
    """Stands in until the assembly says who does."""
