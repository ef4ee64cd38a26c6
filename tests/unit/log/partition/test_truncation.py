"""Cutting a log's end: what is left, on the disk as well, and when the disk refuses in between."""

from __future__ import annotations

import errno

import pytest

from millrace.log.errors import StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.truncation import truncate_fully_and_start_at, truncate_to
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.state.producer_snapshots import snapshot_offsets
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk, append, read_values


@pytest.fixture
def log(disk: Disk) -> PartitionLog:
    """Batches of two records in three segments: 0 to 9, 10 to 19, 20 to 29."""
    log = disk.log()
    for number in range(15):
        append(log, b"%d" % number, b"second", producer_id=7, sequence=2 * number)
        if number in (4, 9):
            log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 10, 20]
    return log


def offsets(log: PartitionLog) -> list[int]:
    return [offset for offset, _ in read_values(log)]


@pytest.mark.parametrize("offset, left", [(26, 26), (27, 26), (20, 20), (19, 18), (10, 10), (3, 2)])
def test_everything_from_an_offset_on_is_forgotten_with_the_batch_that_holds_it(
    disk: Disk, log: PartitionLog, offset: int, left: int
) -> None:
    truncate_to(log, offset)
    assert (log.log_end_offset, log.high_watermark) == (left, left)
    assert offsets(log) == list(range(left))
    again = disk.reopen()
    assert (again.log_end_offset, offsets(again)) == (left, list(range(left)))


def test_appends_go_on_where_the_log_was_cut_and_producers_know_it(log: PartitionLog) -> None:
    truncate_to(log, 14)
    append(log, b"new", b"second", producer_id=7, sequence=14)
    assert read_values(log)[-2:] == [(14, b"new"), (15, b"second")]


def test_a_cut_behind_the_end_changes_nothing(log: PartitionLog) -> None:
    truncate_to(log, 30)
    truncate_to(log, 99)
    assert log.log_end_offset == 30
    assert len(log.segments) == 3


def test_snapshots_and_epochs_behind_the_cut_are_removed(disk: Disk, log: PartitionLog) -> None:
    log.start_epoch(5)
    append(log, b"of epoch 5", producer_id=7, sequence=30)
    assert log.latest_epoch == 5
    assert snapshot_offsets(disk.volume, log.path) == [10, 20]
    truncate_to(log, 12)
    assert snapshot_offsets(disk.volume, log.path) == [10]
    assert log.latest_epoch == 0


def test_a_log_that_is_emptied_begins_where_it_is_told(disk: Disk, log: PartitionLog) -> None:
    truncate_fully_and_start_at(log, 100)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (100, 100, 0)
    assert log.latest_epoch == -1
    append(log, b"first")
    assert read_values(disk.reopen()) == [(100, b"first")]


def test_a_cut_at_or_before_the_first_segment_empties_the_log(log: PartitionLog) -> None:
    log.set_segments(list(log.segments[1:]))
    log.log_start_offset = 10
    truncate_to(log, 5)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)


def test_files_go_from_the_newest_on_so_that_a_refusal_leaves_a_longer_log_and_no_gap(
    log: PartitionLog, sim_volume: SimVolume
) -> None:
    sim_volume.fail("rename", errno.EACCES, path_contains=f"{10:020}.log")
    with pytest.raises(StorageError):
        truncate_to(log, 3)
    assert log.log_end_offset == 20
    assert offsets(log) == list(range(20))


def test_damage_that_would_be_the_last_thing_goes_as_well(log: PartitionLog) -> None:
    segment = log.segments[2]
    positions = [position for position, _ in segment.headers()]
    segment.set_damage((DamagedRange(positions[1], positions[2] - positions[1], 22, 24),))
    truncate_to(log, 24)
    assert log.log_end_offset == 22
    assert log.segments[-1].damage == ()


def test_damage_before_the_cut_stays_known(disk: Disk, log: PartitionLog) -> None:
    segment = log.segments[2]
    positions = [position for position, _ in segment.headers()]
    damaged = DamagedRange(positions[1], positions[2] - positions[1], 22, 24)
    segment.set_damage((damaged,))
    truncate_to(log, 28)
    assert log.log_end_offset == 28
    assert disk.reopen().segments[-1].damage == (damaged,)
