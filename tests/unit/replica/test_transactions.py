"""Markers, the last stable offset and the lists of aborted transactions, as a partition keeps them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.errors import CoordinatorFenced, ProducerFenced, TransactionOpen, UnverifiedTransaction
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.state.transactions import EndMarker
from millrace.replica.following import Fetched, take
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from millrace.wire.records import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    build_marker,
    check_batch,
    split_batches,
)
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk

PRODUCER = 7


@pytest.fixture
def partition() -> Iterator[Partition]:
    disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
    led = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), lambda _: None)
    led.lead(1, 3)
    yield led
    disk.dispose()


def batch(
    producer_id: int = PRODUCER,
    *,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    transactional: bool = True,
) -> memoryview:
    records = [Record(number, NOW_MS, b"k", b"v" * 50) for number in range(count)]
    return memoryview(
        bytearray(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
        )
    )


def end(
    partition: Partition, *, commit: bool, producer_id: int = PRODUCER, epoch: int = 1, version: int = 2
) -> None:
    marker = EndMarker(producer_id, epoch, commit, 0, version)
    if partition.needs_marker(marker):
        partition.append_marker(marker, NOW_MS)


def aborted(partition: Partition, offset: int) -> list[tuple[int, int]]:
    found = partition.log.read(offset, 2**20, partition.last_stable_offset, True)
    return partition.aborted_transactions(offset, found)


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(partition: Partition) -> None:
    log = partition.log
    partition.append_transactional(batch(count=2), NOW_MS)
    partition.append_transactional(batch(8), NOW_MS)
    partition.append(memoryview(bytearray(build_batch([Record(0, NOW_MS, None, b"plain")]))), NOW_MS)
    assert (log.last_stable_offset, log.high_watermark) == (0, 4)
    end(partition, commit=True)
    assert log.last_stable_offset == 2
    end(partition, commit=False, producer_id=8)
    assert log.last_stable_offset == log.high_watermark == 6


def test_readers_are_told_of_the_aborted_transactions_in_what_they_fetch(partition: Partition) -> None:
    partition.append_transactional(batch(), NOW_MS)
    end(partition, commit=False)
    partition.append_transactional(batch(epoch=1), NOW_MS)
    end(partition, commit=True, epoch=2)
    partition.append_transactional(batch(epoch=2), NOW_MS)
    end(partition, commit=False, epoch=3)
    assert aborted(partition, 0) == [(PRODUCER, 0), (PRODUCER, 4)]
    assert aborted(partition, 2) == [(PRODUCER, 4)]
    first = partition.log.read(0, 1, partition.last_stable_offset, True)
    assert partition.aborted_transactions(0, first) == [(PRODUCER, 0)], "not those behind the fetched range"


def test_a_record_of_an_ended_transaction_is_refused(partition: Partition) -> None:
    """F15."""
    partition.append_transactional(batch(), NOW_MS)
    end(partition, commit=False)
    with pytest.raises(ProducerFenced):
        partition.append_transactional(batch(sequence=1), NOW_MS)
    assert partition.log.last_stable_offset == partition.log.high_watermark


def test_a_late_marker_does_not_end_a_later_transaction(partition: Partition) -> None:
    """F16, seen from the partition."""
    partition.append_transactional(batch(), NOW_MS)
    end(partition, commit=True)
    end_offset = partition.log.log_end_offset
    end(partition, commit=True)
    assert partition.log.log_end_offset == end_offset, "sent again by a coordinator that was restarted"
    partition.append_transactional(batch(epoch=1), NOW_MS)
    with pytest.raises(ProducerFenced):
        end(partition, commit=True)
    assert partition.log.last_stable_offset == end_offset


def test_a_replaced_coordinator_cannot_write_markers(partition: Partition) -> None:
    partition.append_marker(EndMarker(PRODUCER, 1, True, 5, 0), NOW_MS)
    with pytest.raises(CoordinatorFenced):
        partition.needs_marker(EndMarker(PRODUCER, 1, True, 4, 0))


def test_only_who_knows_the_transaction_may_write_in_it(partition: Partition) -> None:
    """S14."""
    with pytest.raises(UnverifiedTransaction):
        partition.append(batch(), NOW_MS)
    partition.append_transactional(batch(), NOW_MS)
    with pytest.raises(TransactionOpen):
        partition.append(batch(sequence=1, transactional=False), NOW_MS)
    assert partition.has_open_transaction(PRODUCER, 0)
    assert not partition.has_open_transaction(PRODUCER, 1)


def test_older_producers_go_on_with_their_epoch_and_sequence(partition: Partition) -> None:
    partition.append_transactional(batch(), NOW_MS)
    end(partition, commit=True, epoch=0, version=0)
    partition.append_transactional(batch(sequence=1), NOW_MS)
    assert partition.log.last_stable_offset == 2
    end(partition, commit=False, epoch=0, version=0)
    assert aborted(partition, 0) == [(PRODUCER, 2)]


def test_a_marker_counts_only_when_it_is_committed(partition: Partition) -> None:
    """What a reader has seen as committed must not become open again when the leader is lost."""
    log = partition.log
    partition.append_transactional(batch(), NOW_MS)
    high_watermark = log.high_watermark
    partition.append_marker(EndMarker(PRODUCER, 1, True, 0, 2), NOW_MS)
    log.high_watermark = high_watermark
    assert log.last_stable_offset == 0
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == 2


@pytest.mark.parametrize("seed", range(5))
def test_no_fetch_misses_an_aborted_transaction_in_its_range(seed: int) -> None:
    """Over several segments, with fetches of any size from anywhere: what is listed is at least what is
    there, and nothing that ended before."""
    chance = random.Random(seed)
    config = LogConfig(segment_bytes=3_000, index_interval_bytes=200)
    disk = Disk(SimVolume(random.Random(1)), "/data", config)
    led = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), lambda _: None)
    led.lead(1, 3)
    epochs = dict.fromkeys(range(3), 0)
    open_since: dict[int, list[int]] = {}
    gone: list[tuple[int, int, int]] = []
    for _ in range(150):
        producer_id = chance.randrange(3)
        if producer_id in open_since and chance.random() < 0.4:
            is_commit = chance.random() < 0.5
            end(led, commit=is_commit, producer_id=producer_id, epoch=epochs[producer_id] + 1)
            epochs[producer_id] += 1
            first, _sequence = open_since.pop(producer_id)
            if not is_commit:
                gone.append((producer_id, first, led.log.log_end_offset - 1))
        else:
            began = open_since.setdefault(producer_id, [led.log.log_end_offset, 0])
            led.append_transactional(batch(producer_id, epoch=epochs[producer_id], sequence=began[1]), NOW_MS)
            began[1] += 1
    assert len(led.log.segments) > 3
    for offset in range(led.log.last_stable_offset):
        found = led.log.read(offset, chance.choice([1, 300, 5_000]), led.last_stable_offset, True)
        last = [header.last_offset for header in map(check_batch, split_batches(memoryview(found.read())))][
            -1
        ]
        listed = led.aborted_transactions(offset, found)
        needed = [(who, first) for who, first, marker in gone if first <= last and marker >= offset]
        assert [each for each in needed if each not in listed] == []
        assert all(marker >= offset for who, first, marker in gone if (who, first) in listed)
    disk.dispose()


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_ended_transactions_leave_no_trace_where_nobody_reads(partition: Partition, commit: bool) -> None:
    """On a leader whose records nobody reads, and on its follower: both would grow without end."""
    disk = Disk(SimVolume(random.Random(2)), "/data", LogConfig())
    follower = disk.log()
    sizes = []
    for count in (10, 200):
        for _ in range(count):
            epoch = partition.log.producers.entries[PRODUCER].epoch if partition.log.log_end_offset else 0
            asked = partition.log.log_end_offset
            partition.append_transactional(batch(epoch=epoch), NOW_MS)
            end(partition, commit=commit, epoch=epoch + 1)
            records = partition.log.read(asked, 1 << 20, partition.log.log_end_offset, True).read()
            fetched = Fetched(partition.log.high_watermark, 0, memoryview(bytearray(records)))
            assert take(follower, asked, fetched) is None
        assert follower.high_watermark == follower.log_end_offset == partition.log.log_end_offset
        sizes.append((len(partition.log.producers.ended), len(follower.producers.ended)))
    assert sizes[1] == sizes[0] <= (1, 1)
    assert follower.last_stable_offset == follower.high_watermark
    disk.dispose()


def test_a_transaction_is_not_stable_before_its_marker_is_committed_however_many_end(
    partition: Partition,
) -> None:
    log = partition.log
    log.append_replicated(_replica_of(batch(PRODUCER), log.log_end_offset))
    first_end = log.log_end_offset
    for number in range(3):
        log.append_replicated(_replica_of(batch(100 + number), log.log_end_offset))
        _mark(log, 100 + number)
    _mark(log, PRODUCER)
    log.high_watermark = log.log_end_offset - 1
    assert log.last_stable_offset == first_end - 1
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == log.log_end_offset


def _replica_of(records: memoryview, base_offset: int) -> memoryview:
    records[:8] = base_offset.to_bytes(8, "big")
    return records


def _mark(log: PartitionLog, producer_id: int) -> None:
    marker = build_marker(
        ControlMarker(ControlType.COMMIT, 0),
        offset=log.log_end_offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=1,
    )
    log.append_replicated(memoryview(bytearray(marker)))
