"""A partition on its leader: what readers see and when, what is refused, and that nobody waits for
nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.log.batches.thinning import thin
from millrace.log.config import LogConfig
from millrace.log.partition.appending import STAGED
from millrace.replica.partition import (
    FencedLeaderEpoch,
    NotLeader,
    Partition,
    TopicStats,
    UnknownLeaderEpoch,
)
from millrace.replica.partitions import Partitions
from millrace.replica.waiting import NEWEST_BYTES_MAX, Newest
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of


class Waiter:
    def __init__(self) -> None:
        self.more_bytes = 0
        self.newest: list[Newest | None] = []
        self.changes = 0

    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        self.more_bytes += size_bytes
        self.newest.append(newest)

    def changed(self) -> None:
        self.changes += 1

    def permissions_changed(self) -> None:
        self.changes += 1


class Led:
    """A partition of a single broker, and what it asked to be flushed."""

    def __init__(self, config: LogConfig) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", config)
        self.flushes = 0
        self.partition = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), self._flush_wanted)
        self.partition.lead(1, 3)

    def _flush_wanted(self, partition: Partition) -> None:
        self.flushes += 1

    def flush(self) -> None:
        self.disk.run(self.partition.log.flush())
        self.partition.flushed()


@pytest.fixture
def led() -> Iterator[Led]:
    led = Led(LogConfig())
    yield led
    led.disk.dispose()


@pytest.fixture
def flushing() -> Iterator[Led]:
    led = Led(LogConfig(flush_messages=1))
    yield led
    led.disk.dispose()


def test_a_sole_replica_commits_at_once_and_wakes_its_readers(led: Led) -> None:
    waiter = Waiter()
    led.partition.fetch_waiters[waiter] = None
    batch = batch_of(b"a", b"b")
    appended = led.partition.append(batch, NOW_MS)
    assert led.partition.is_acknowledged(appended)
    assert led.partition.log.high_watermark == 2
    assert waiter.more_bytes == len(batch)
    assert led.partition.stats.messages_in == 2


def test_with_a_flush_for_every_message_nothing_is_shown_before_it_is_on_disk(flushing: Led) -> None:
    partition = flushing.partition
    told: list[bool] = []
    appended = partition.append(batch_of(b"a"), NOW_MS)
    partition.waiting_produces.add(appended.last_offset + 1, told.append)
    assert flushing.flushes == 1
    assert not partition.is_acknowledged(appended)
    assert partition.log.read(0, 1000, partition.log.high_watermark, True).size_bytes == 0
    flushing.flush()
    assert told == [True]
    assert partition.log.read(0, 1000, partition.log.high_watermark, True).size_bytes > 0


def test_leading_again_acknowledges_nothing_that_is_not_on_disk(flushing: Led) -> None:
    """The metadata may tell a leader of its office at any time, also while the disk is busy."""
    partition = flushing.partition
    told: list[bool] = []
    appended = partition.append(batch_of(b"a"), NOW_MS)
    partition.waiting_produces.add(appended.last_offset + 1, told.append)
    partition.lead(1, 3)
    partition.lead(1, 4)
    assert told == []
    assert partition.log.high_watermark == 0
    flushing.flush()
    assert told == [True]


def test_an_office_that_comes_back_asks_for_the_flush_that_nobody_waited_for_meanwhile(flushing: Led) -> None:
    partition = flushing.partition
    appended = partition.append(batch_of(b"a"), NOW_MS)
    partition.follow(-1, 3)
    flushes = flushing.flushes
    partition.lead(1, 3)
    assert flushing.flushes == flushes + 1
    assert not partition.is_acknowledged(appended)
    flushing.flush()
    assert partition.is_acknowledged(appended)


def test_a_failed_flush_acknowledges_nothing(flushing: Led) -> None:
    told: list[bool] = []
    appended = flushing.partition.append(batch_of(b"a"), NOW_MS)
    flushing.partition.waiting_produces.add(appended.last_offset + 1, told.append)
    flushing.partition.flush_failed()
    assert told == [False]
    assert flushing.partition.log.high_watermark == 0


def test_a_duplicate_wakes_nobody_and_counts_nothing(led: Led) -> None:
    first = led.partition.append(batch_of(b"a", producer_id=7), NOW_MS)
    waiter = Waiter()
    led.partition.fetch_waiters[waiter] = None
    again = led.partition.append(batch_of(b"a", producer_id=7), NOW_MS)
    assert again.duplicate
    assert again.base_offset == first.base_offset
    assert waiter.more_bytes == 0
    assert led.partition.stats.messages_in == 1


def test_requests_for_another_leaders_term_are_refused(led: Led) -> None:
    led.partition.check_epoch(-1)
    led.partition.check_epoch(3)
    with pytest.raises(FencedLeaderEpoch):
        led.partition.check_epoch(2)
    with pytest.raises(UnknownLeaderEpoch):
        led.partition.check_epoch(4)


def test_a_sole_replica_is_enough_whatever_the_settings_ask_for(led: Led) -> None:
    """A setting for the whole cluster must not close the topics that were made with one replica; Kafka
    counts in the same way."""
    led.partition.require_replicas(min_insync=2)
    led.partition.refuse_if_too_few_replicas()
    assert led.partition.has_enough_replicas
    led.partition.follow(2, 4)
    with pytest.raises(NotLeader):
        led.partition.refuse_if_too_few_replicas()


def test_the_current_epoch_ends_where_the_log_ends(led: Led) -> None:
    led.partition.append(batch_of(b"a", b"b"), NOW_MS)
    assert led.partition.epoch_end_offset(3) == (3, 2)
    assert led.partition.epoch_end_offset(9) == (-1, -1)
    led.partition.lead(1, 5)
    led.partition.append(batch_of(b"c"), NOW_MS)
    assert led.partition.epoch_end_offset(3) == (3, 2)
    assert led.partition.epoch_end_offset(5) == (5, 3)


def test_a_removed_partition_answers_all_who_wait(flushing: Led) -> None:
    partitions = Partitions()
    partitions.add(flushing.partition)
    waiter = Waiter()
    told: list[bool] = []
    flushing.partition.fetch_waiters[waiter] = None
    appended = flushing.partition.append(batch_of(b"a"), NOW_MS)
    flushing.partition.waiting_produces.add(appended.last_offset + 1, told.append)
    partitions.remove(PARTITION)
    assert told == [False]
    assert waiter.changes == 1
    assert partitions.find("orders", 0) is None
    assert TOPIC_ID not in partitions.by_id


def test_who_waits_is_handed_small_batches_as_they_are_in_the_log(led: Led) -> None:
    partition, waiter = led.partition, Waiter()
    partition.append(batch_of(b"nobody waits"), NOW_MS)
    partition.fetch_waiters[waiter] = None
    partition.append(batch_of(b"a", b"b"), NOW_MS)
    assert waiter.newest == [(1, partition.log.read(1, 1000, partition.log.high_watermark, True).read())]


def test_who_waits_is_handed_staged_batches_together(led: Led) -> None:
    partition, waiter = led.partition, Waiter()
    partition.answer_staged = lambda *_outcome: None
    partition.append(batch_of(b"opens the log"), NOW_MS)
    partition.fetch_waiters[waiter] = None
    for value in (b"a", b"b"):
        assert partition.append(batch_of(value), NOW_MS, token=object()) is STAGED
    assert waiter.newest == []
    partition.log.write_staged()
    assert waiter.newest == [(1, partition.log.read(1, 1000, partition.log.high_watermark, True).read())]


def test_large_batches_are_left_to_the_log(led: Led) -> None:
    partition, waiter = led.partition, Waiter()
    partition.fetch_waiters[waiter] = None
    partition.append(batch_of(bytes(NEWEST_BYTES_MAX)), NOW_MS)
    assert waiter.newest == [None]


def test_a_thinned_batch_is_shown_like_any_other(led: Led) -> None:
    waiter = Waiter()
    led.partition.fetch_waiters[waiter] = None
    left = memoryview(bytearray(thin(batch_of(b"a", b"b", producer_id=4), {0}, limit_bytes=1_000)))
    assert led.partition.append_thinned(left, NOW_MS).last_offset == 1
    assert (led.partition.log.high_watermark, waiter.more_bytes) == (2, len(left))
    assert led.partition.append_thinned(left, NOW_MS).duplicate
    assert waiter.more_bytes == len(left)
    led.partition.follow(2, 4)
    with pytest.raises(NotLeader):
        led.partition.append_thinned(left, NOW_MS)
