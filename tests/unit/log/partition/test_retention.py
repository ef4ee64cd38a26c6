"""Deletion from the front: by time, size and the log's start, never beyond the high watermark, offsets
untouched.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, Disk, append, read_values


def filled(disk: Disk, count: int = 60) -> PartitionLog:
    log = disk.log()
    for number in range(count):
        append(log, b"%d" % number + bytes(50), timestamp=NOW_MS + number)
    return log


def test_old_segments_go_and_offsets_stay(disk: Disk) -> None:
    log = filled(disk)
    second = log.segments[1].base_offset
    log.set_config(replace(log.config, retention_ms=1000))
    # The first segment's youngest record is just too old, the second's is not.
    assert log.delete_old_segments(NOW_MS + second - 1 + 1001) == 1
    assert log.log_start_offset == second
    assert read_values(log)[0] == (second, b"%d" % second + bytes(50))
    with pytest.raises(OffsetOutOfRange) as refused:
        log.read(second - 1, 1000, 60, True)
    assert refused.value.log_start_offset == second


def test_when_all_is_old_the_log_goes_on_where_it_was(disk: Disk) -> None:
    log = filled(disk)
    log.delete_old_segments(NOW_MS + 10**12)
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    append(log, b"next")
    assert read_values(log) == [(60, b"next")]
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset) == (60, 61)


def test_size_retention_keeps_at_least_that_much(disk: Disk) -> None:
    log = filled(disk)
    log.set_config(replace(log.config, retention_bytes=3000))
    log.delete_old_segments(NOW_MS)
    assert 3000 <= log.size_bytes < 3000 + 2000


def test_nothing_beyond_the_high_watermark_goes(disk: Disk) -> None:
    log = filled(disk)
    log.high_watermark = log.segments[1].base_offset + 1
    log.delete_old_segments(NOW_MS + 10**12)
    assert log.log_start_offset == log.segments[0].base_offset <= log.high_watermark


def test_unlimited_retention_deletes_nothing(disk: Disk) -> None:
    log = filled(disk)
    log.set_config(replace(log.config, retention_ms=-1, retention_bytes=-1))
    assert log.delete_old_segments(NOW_MS + 10**12) == 0
    log.set_config(replace(log.config, retention_ms=1, cleanup_delete=False))
    assert log.delete_old_segments(NOW_MS + 10**12) == 0


def test_deleted_files_wait_for_their_delay(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk)
    log.set_config(replace(log.config, file_delete_delay_ms=60_000))
    log.delete_old_segments(NOW_MS + 10**12)
    disk.run(disk.directory.remove_due())
    assert [name for name in sim_volume.names if name.endswith(".log.deleted")]
    disk.reopen()
    assert not [name for name in sim_volume.names if name.endswith(".deleted")]


def test_a_reader_keeps_what_it_was_given(disk: Disk) -> None:
    log = filled(disk)
    records = log.read(0, 500, 60, True)
    before = records.read()
    log.delete_old_segments(NOW_MS + 10**12)
    disk.run(disk.directory.remove_due())
    assert records.read() == before


def test_records_can_be_deleted_up_to_an_offset(disk: Disk) -> None:
    log = filled(disk)
    assert disk.run(log.delete_records_before(25)) == 25
    assert read_values(log)[0][0] == 25
    assert log.segments[0].base_offset <= 25
    assert disk.run(log.delete_records_before(10)) == 25
    with pytest.raises(OffsetOutOfRange):
        disk.run(log.delete_records_before(61))
    disk.abandon()
    disk.open()
    assert disk.log().log_start_offset == 25


def test_epochs_follow_the_logs_start(disk: Disk) -> None:
    log = disk.log()
    for epoch in range(5):
        log.start_epoch(epoch)
        append(log, b"a")
        append(log, b"b")
    disk.run(log.delete_records_before(5))
    assert [tuple(start) for start in log.epochs.starts] == [(2, 5), (3, 6), (4, 8)]
    assert log.epoch_end_offset(2) == (2, 6)


@pytest.mark.parametrize("emptied_by", ["retention", "deletion of records", "a roll"])
def test_a_log_that_was_emptied_rolls_by_time_as_before(disk: Disk, emptied_by: str) -> None:
    """Else its only segment lasts for ever, with all that `retention.ms` should have deleted."""
    log = filled(disk, 5)
    log.set_config(replace(log.config, segment_ms=1000, retention_ms=2000))
    if emptied_by == "retention":
        log.delete_old_segments(NOW_MS + 10**12)
    elif emptied_by == "deletion of records":
        disk.run(log.delete_records_before(5))
    else:
        log.roll()
    start = NOW_MS + 10_000
    append(log, b"first", timestamp=start)
    append(log, b"in time", timestamp=start + 999)
    base = log.segments[-1].base_offset
    assert base == 5
    append(log, b"late", timestamp=start + 1001)
    assert [segment.base_offset for segment in log.segments][-2:] == [5, 7]
    log.delete_old_segments(start + 3000)
    assert read_values(log) == [(7, b"late")]
