"""One partition on the broker that leads it: what may be appended, read and acknowledged, and who waits
for it.

No I/O beside the log's own and no timers: disks are flushed and deadlines kept by the shell around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, TopicPartition
from millrace.log.log_files import StagedBatch
from millrace.log.partition_log import Appended, PartitionLog
from millrace.log.segment import LogSlice
from millrace.log.transactions import EndMarker, check_marker
from millrace.replica.waiting import FetchWaiter, OffsetWaiters
from millrace.wire.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from millrace.wire.records import ControlMarker, ControlType, build_marker

NOT_WITHOUT_TRANSACTION: Final = CONTROL_BIT | TRANSACTIONAL_BIT


class FencedLeaderEpoch(MillraceError):
    def __init__(self, partition: TopicPartition, *, asked: int, current: int) -> None:
        super().__init__(f"{partition}: the request knows leader epoch {asked}, the current one is {current}")


class UnknownLeaderEpoch(MillraceError):
    def __init__(self, partition: TopicPartition, *, asked: int, current: int) -> None:
        super().__init__(f"{partition}: the request knows leader epoch {asked}, this broker only {current}")


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
        self.produces = 0
        self.produces_failed = 0
        self.fetches = 0
        self.fetches_failed = 0


class Partition:
    __slots__ = (
        "_fetch_waiters",
        "answer_staged",
        "flush_wanted",
        "has_enough_replicas",
        "in_sync_count",
        "index",
        "leader_epoch",
        "leader_id",
        "log",
        "may_stage",
        "min_insync_replicas",
        "stats",
        "topic",
        "topic_id",
        "topic_partition",
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
        self.in_sync_count = 1
        self.min_insync_replicas = 1
        self.has_enough_replicas = True
        """Whether acks=all can be promised: `min.insync.replicas` of them are in sync."""
        self.may_stage = True
        """Whether a batch is committed as soon as it is written, so that it may wait for others to be written
        with."""
        self.answer_staged: Callable[[Partition, list[StagedBatch], MillraceError | None], None] | None = None
        """Told what became of staged batches; set by whoever stages."""
        self._fetch_waiters: dict[FetchWaiter, None] = {}
        self.waiting_produces = OffsetWaiters()
        log.settled = self._settled

    @property
    def fetch_waiter_count(self) -> int:
        return len(self._fetch_waiters)

    def lead(self, leader_id: int, leader_epoch: int) -> None:
        """Take up office for an epoch. A sole replica's whole log is committed."""
        assert leader_epoch >= self.leader_epoch, (leader_epoch, self.leader_epoch)
        # The log learns of the epoch with the first batch: reading its files now would slow the start of
        # thousands.
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        if self.log.high_watermark < self.log.log_end_offset:
            self._advance_high_watermark(self.log.log_end_offset, 0)

    def require_replicas(self, *, in_sync_count: int | None = None, min_insync: int | None = None) -> None:
        """Take over how many replicas are in sync, or how many must be for acks=all."""
        if in_sync_count is not None:
            self.in_sync_count = in_sync_count
        if min_insync is not None:
            self.min_insync_replicas = min_insync
        self.has_enough_replicas = self.in_sync_count >= self.min_insync_replicas

    def refuse_if_too_few_replicas(self) -> None:
        """For acks=all: rather refuse than acknowledge what too few replicas have."""
        if not self.has_enough_replicas:
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

        Transactional ones only from callers that know the transaction: see `append_transactional`. With a
        token the answer may be STAGED: `answer_staged` gets it back once the batch is written."""
        log = self.log
        appended = log.append_as_leader(records, self.leader_epoch, now_ms, refused_bits, token)
        if appended.duplicate:
            # Or staged.
            return appended
        size_bytes = len(records)
        stats = self.stats
        stats.bytes_in += size_bytes
        stats.messages_in += appended.last_offset - appended.base_offset + 1
        if log.flush_is_due:
            self.flush_wanted(self)
        # With flush.messages=1, what a reader has seen must not vanish with the power: it is shown when it
        # is on disk.
        if not log.commits_on_flush:
            self._advance_high_watermark(log.log_end_offset, size_bytes)
        return appended

    def _settled(self, staged: list[StagedBatch], error: MillraceError | None) -> None:
        log, stats = self.log, self.stats
        if error is None:
            size_bytes = 0
            for batch in staged:
                size_bytes += len(batch[0])
            stats.bytes_in += size_bytes
            stats.messages_in += staged[-1][2] - staged[0][1] + 1
            if log.flush_is_due:
                self.flush_wanted(self)
            self._advance_high_watermark(log.log_end_offset, size_bytes)
        else:
            stats.produces_failed += len(staged)
        assert self.answer_staged is not None
        self.answer_staged(self, staged, error)

    def append_transactional(self, records: memoryview, now_ms: int) -> Appended:
        """Append records of a transaction that its coordinator knows to be open in this partition."""
        return self.append(records, now_ms, CONTROL_BIT)

    def append_own(self, batch: memoryview, now_ms: int) -> Appended:
        """Append what this broker itself wrote into a producer's transaction, or at its end."""
        log = self.log
        appended = log.append_own(batch, self.leader_epoch)
        self.stats.bytes_in += len(batch)
        if log.flush_is_due:
            self.flush_wanted(self)
        if not log.commits_on_flush:
            self._advance_high_watermark(log.log_end_offset, len(batch))
        return appended

    def needs_marker(self, marker: EndMarker) -> bool:
        """Whether a marker has to be written still; raises if a newer epoch forbids it."""
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
        return self.append_own(memoryview(bytearray(batch)), now_ms)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has written in its transaction here before, so that it is known to be open."""
        entry = self.log.producers.entries.get(producer_id)
        return entry is not None and entry.epoch == epoch and entry.current_txn_first_offset >= 0

    def is_acknowledged(self, appended: Appended) -> bool:
        """Whether a produce with acks=all can be answered now; else wait in `waiting_produces`."""
        return self.log.high_watermark > appended.last_offset

    def flushed(self) -> None:
        """More of the log is on disk."""
        offset = self.log.flushed_offset
        if offset > self.log.high_watermark:
            self._advance_high_watermark(offset, 1)

    def flush_failed(self) -> None:
        """What was not yet acknowledged never will be by this log."""
        self.waiting_produces.fail()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a request that was made for another leader's term; -1 means that the client does not know
        one."""
        if current_leader_epoch in (-1, self.leader_epoch):
            return
        error = FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch
        raise error(self.topic_partition, asked=current_leader_epoch, current=self.leader_epoch)

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, min_one: bool) -> LogSlice:
        """Whole batches that a consumer may see, as a slice of a file."""
        log = self.log
        if committed_only:
            log.producers  # noqa: B018 - the last stable offset is right only once open transactions are known
            return log.read(offset, max_bytes, log.last_stable_offset, min_one)
        return log.read(offset, max_bytes, log.high_watermark, min_one)

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
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        if epoch > self.leader_epoch:
            return -1, -1
        return self.log.epoch_end_offset(epoch)

    def await_records(self, waiter: FetchWaiter) -> None:
        self._fetch_waiters[waiter] = None

    def stop_waiting(self, waiter: FetchWaiter) -> None:
        self._fetch_waiters.pop(waiter, None)

    def changed(self) -> None:
        """Leadership, the log's start or its existence changed: nobody should go on waiting for what was."""
        for waiter in list(self._fetch_waiters):
            waiter.changed()

    def retire(self) -> None:
        """This broker no longer leads the partition, or the partition is deleted."""
        self.log.settle()
        self.waiting_produces.fail()
        self.changed()

    def _advance_high_watermark(self, offset: int, size_bytes: int) -> None:
        self.log.high_watermark = offset
        if self.waiting_produces:
            self.waiting_produces.reached(offset)
        if self._fetch_waiters:
            for waiter in list(self._fetch_waiters):
                waiter.more_records(size_bytes)
