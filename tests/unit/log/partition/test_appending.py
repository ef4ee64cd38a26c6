"""What may enter a log, what it becomes there, and when a new segment begins."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c

from millrace.core.errors import MillraceError
from millrace.log.batches.thinning import thin
from millrace.log.config import LogConfig
from millrace.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    ProducerFenced,
    UnsupportedBatchFormat,
)
from millrace.log.partition.appending import append_thinned
from millrace.log.segments.header_walk import RELATIVE_OFFSET_MAX
from millrace.log.state.producer_state import SEQUENCE_MAX
from millrace.wire.batch_header import read_header
from millrace.wire.records import read_records
from tests.unit.log.support import NOW_MS, Disk, append, batch_of, read_values

MakeDisk = Callable[[LogConfig], Disk]


def altered(at: int, layout: str, value: int, *, fix_crc: bool = True) -> memoryview:
    batch = batch_of(b"value")
    struct.pack_into(layout, batch, at, value)
    if fix_crc:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


@pytest.mark.parametrize(
    "batch, error",
    [
        (memoryview(bytearray(b"short")), InvalidRecord),
        (altered(70, ">b", 1, fix_crc=False), CorruptBatch),
        (altered(8, ">i", 2**31 - 1), InvalidRecord),
        (altered(8, ">i", -1), CorruptBatch),
        (altered(16, ">b", 1), UnsupportedBatchFormat),
        (altered(16, ">b", 3), CorruptBatch),
        (altered(0, ">q", 5), InvalidRecord),
        (altered(21, ">h", 0x05), InvalidRecord),
        (altered(21, ">h", 0x20), InvalidRecord),
        (altered(21, ">h", 0x08), InvalidRecord),
        (altered(23, ">i", 5), InvalidRecord),
        (altered(23, ">i", 2**31 - 1), InvalidRecord),
        (altered(57, ">i", 0), InvalidRecord),
        (altered(57, ">i", -1), InvalidRecord),
        (memoryview(bytearray(batch_of(b"a")) + bytearray(batch_of(b"b"))), InvalidRecord),
        (batch_of(b"a", timestamp=NOW_MS + 3_600_001), InvalidTimestamp),
        (batch_of(b"x" * 2000), BatchTooLarge),
        (batch_of(b"a", producer_id=1, sequence=-1), InvalidRecord),
        (batch_of(b"a", producer_id=1, epoch=-1), InvalidRecord),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(
    make_disk: MakeDisk, batch: memoryview, error: type[MillraceError]
) -> None:
    log = make_disk(LogConfig(max_message_bytes=1000)).log()
    append(log, b"before")
    size = log.size_bytes
    with pytest.raises(error):
        log.append_as_leader(batch, 0, NOW_MS)
    assert (log.log_end_offset, log.size_bytes) == (1, size)
    append(log, b"after")
    assert read_values(log) == [(0, b"before"), (1, b"after")]


def test_offsets_and_epoch_are_written_into_the_batch(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b")
    batch = batch_of(b"c")
    appended = log.append_as_leader(batch, 4, NOW_MS)
    assert appended == (2, 2, -1, False)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2, 4)
    read_records(batch)


def test_the_brokers_time_replaces_the_clients(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(timestamp_log_append=True)).log()
    batch = batch_of(b"a", timestamp=5)
    assert log.append_as_leader(batch, 0, NOW_MS).log_append_time_ms == NOW_MS
    assert [record.timestamp for record in read_records(batch)] == [NOW_MS]


def test_records_without_a_timestamp_are_taken(disk: Disk) -> None:
    append(disk.log(), b"a", timestamp=-1)


def test_old_timestamps_are_refused_if_a_limit_says_so(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(timestamp_before_max_ms=1000)).log()
    append(log, b"a", timestamp=NOW_MS - 1000)
    with pytest.raises(InvalidTimestamp):
        append(log, b"a", timestamp=NOW_MS - 1001)


def test_a_segment_is_full_by_size(disk: Disk) -> None:
    log = disk.log()
    for number in range(50):
        append(log, b"%d" % number + bytes(50))
    assert len(log.segments) > 2
    assert all(segment.size_bytes <= 2000 for segment in log.segments)
    assert [offset for offset, _ in read_values(log)] == list(range(50))


def test_a_segment_is_full_by_time_between_records(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(segment_ms=1000, timestamp_after_max_ms=10**9)).log()
    append(log, b"a", timestamp=NOW_MS)
    append(log, b"b", timestamp=NOW_MS + 1000)
    assert len(log.segments) == 1
    append(log, b"c", timestamp=NOW_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_only_makes_it_earlier(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(segment_ms=1000, segment_jitter_ms=500, timestamp_after_max_ms=10**9)).log()
    append(log, b"a", timestamp=NOW_MS)
    append(log, b"b", timestamp=NOW_MS + 499)
    append(log, b"c", timestamp=NOW_MS + 1001)
    assert len(log.segments) == 2


def test_a_segment_is_full_when_its_index_is(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(segment_index_bytes=60, index_interval_bytes=1)).log()
    for _ in range(20):
        append(log, b"a")
    assert len(log.segments) > 3
    assert all(segment.offset_index.count <= 4 for segment in log.segments)


def test_a_segment_ends_before_relative_offsets_overflow(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a")
    far = RELATIVE_OFFSET_MAX + 1
    log.append_replicated(batch_of(b"far", base_offset=far, leader_epoch=0))
    log.high_watermark = log.log_end_offset
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert read_values(log) == [(0, b"a"), (far, b"far")]


def test_a_batch_that_no_segment_can_hold_is_refused(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(segment_bytes=200)).log()
    with pytest.raises(BatchTooLarge):
        append(log, bytes(300))


def test_new_settings_count_from_the_next_append(disk: Disk) -> None:
    log = disk.log()
    append(log, bytes(100))
    log.set_config(replace(log.config, segment_bytes=200, max_message_bytes=180))
    append(log, bytes(60))
    assert len(log.segments) == 2
    with pytest.raises(BatchTooLarge):
        append(log, bytes(150))


def test_a_repeated_batch_is_answered_with_its_first_offset(disk: Disk) -> None:
    log = disk.log()
    for sequence in range(7):
        append(log, b"%d" % sequence, producer_id=5, sequence=sequence)
    for sequence in range(2, 7):
        again = append(log, b"%d" % sequence, producer_id=5, sequence=sequence)
        assert again == (sequence, sequence, -1, True)
    with pytest.raises(OutOfOrderSequence):
        append(log, b"1", producer_id=5, sequence=1)
    assert log.log_end_offset == 7


def test_a_gap_and_an_old_epoch_are_refused(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b", producer_id=5, sequence=0, epoch=1)
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        append(log, b"d", producer_id=5, sequence=3, epoch=1)
    with pytest.raises(ProducerFenced):
        append(log, b"c", producer_id=5, sequence=2, epoch=0)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        append(log, b"c", producer_id=5, sequence=2, epoch=2)
    append(log, b"c", producer_id=5, sequence=0, epoch=2)
    with pytest.raises(ProducerFenced):
        append(log, b"c", producer_id=5, sequence=2, epoch=1)


def test_sequences_wrap_around(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b", producer_id=5, sequence=SEQUENCE_MAX - 1)
    append(log, b"c", producer_id=5, sequence=0)
    again = append(log, b"a", b"b", producer_id=5, sequence=SEQUENCE_MAX - 1)
    assert again.duplicate


def test_a_batch_may_wrap_around_in_its_middle(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b", b"c", producer_id=5, sequence=SEQUENCE_MAX)
    append(log, b"d", producer_id=5, sequence=2)
    assert append(log, b"a", b"b", b"c", producer_id=5, sequence=SEQUENCE_MAX).duplicate


def test_an_unknown_or_expired_producer_may_start_anywhere(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", producer_id=5, sequence=1234)
    append(log, b"b", producer_id=5, sequence=1235)
    assert log.expire_producers(NOW_MS + log.config.producer_id_expiration_ms) == 1
    append(log, b"c", producer_id=5, sequence=9999)


def test_old_record_timestamps_do_not_make_a_producer_expire(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", producer_id=5, sequence=0, timestamp=1)
    assert log.expire_producers(NOW_MS + 1000) == 0
    assert append(log, b"a", producer_id=5, sequence=0, timestamp=1).duplicate


def test_an_open_transaction_holds_the_last_stable_offset(disk: Disk) -> None:
    log = disk.log()
    append(log, b"plain")
    append(log, b"open", producer_id=5, sequence=0, transactional=True)
    append(log, b"plain")
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    log = disk.reopen()
    log.high_watermark = 3
    assert log.last_stable_offset == 1


def test_a_thinned_batch_takes_the_offsets_and_sequences_of_the_whole(make_disk: MakeDisk) -> None:
    disk = make_disk(LogConfig())
    log = disk.log()
    sent = batch_of(b"a", b"b", b"c", producer_id=5, sequence=0)
    left = memoryview(bytearray(thin(sent, {0, 2}, limit_bytes=1_000)))
    empty = memoryview(bytearray(thin(batch_of(b"d", producer_id=5, sequence=3), {0}, limit_bytes=1_000)))
    assert append_thinned(log, left, 2, NOW_MS) == (0, 2, -1, False)
    assert append_thinned(log, empty, 2, NOW_MS) == (3, 3, -1, False)
    assert append_thinned(log, left, 2, NOW_MS) == (0, 2, -1, True)
    with pytest.raises(OutOfOrderSequence):
        append_thinned(log, memoryview(bytearray(batch_of(b"f", producer_id=5, sequence=9))), 2, NOW_MS)
    assert log.append_as_leader(batch_of(b"e", producer_id=5, sequence=4), 2, NOW_MS).base_offset == 4
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(1, b"b"), (4, b"e")]
    again = disk.reopen()
    assert again.log_end_offset == 5
    assert append_thinned(again, left, 3, NOW_MS).duplicate, "the producers' state has both"


def test_a_thinned_batch_gets_the_time_of_its_arrival_where_the_topic_says_so(make_disk: MakeDisk) -> None:
    log = make_disk(LogConfig(timestamp_log_append=True)).log()
    left = memoryview(bytearray(thin(batch_of(b"a", b"b", timestamp=5), {0}, limit_bytes=1_000)))
    assert append_thinned(log, left, 2, NOW_MS).log_append_time_ms == NOW_MS
    (record,) = read_records(log.read(0, 1_000, 2, True).read())
    assert (record.offset, record.timestamp, record.value) == (1, NOW_MS, b"b")
