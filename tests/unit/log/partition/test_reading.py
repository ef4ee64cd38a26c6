"""Reads of older batches with the help of the indexes, and what is known of a slice without reading it."""

from __future__ import annotations

import pytest

from millrace.log.errors import CorruptLog
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.reading import aborted_transactions, range_end, read_older
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker, read_records, split_batches
from tests.unit.log.support import NOW_MS, Disk, append, batch_of

END = 30


@pytest.fixture
def log(disk: Disk) -> PartitionLog:
    """Batches of two records in three segments: 0 to 9, 10 to 19, 20 to 29."""
    log = disk.log()
    for number in range(15):
        append(log, b"%d" % number, bytes(50))
        if number in (4, 9):
            log.roll()
    return log


def offsets(found: LogSlice) -> list[int]:
    batches = split_batches(memoryview(found.read()))
    return [record.offset for batch in batches for record in read_records(batch)]


@pytest.mark.parametrize("offset", range(END))
def test_a_read_begins_with_the_batch_that_holds_the_offset_and_ends_with_its_segment(
    log: PartitionLog, offset: int
) -> None:
    found = read_older(log, offset, 1 << 20, END, True)
    assert offsets(found) == list(range(offset - offset % 2, offset - offset % 10 + 10))


@pytest.mark.parametrize("limit, last", [(8, 7), (7, 7), (6, 5)])
def test_a_read_ends_before_the_batch_that_begins_at_the_limit(
    log: PartitionLog, limit: int, last: int
) -> None:
    assert offsets(read_older(log, 2, 1 << 20, limit, True)) == list(range(2, last + 1))


def test_nothing_at_or_behind_the_limit_is_read(log: PartitionLog) -> None:
    assert read_older(log, 4, 1 << 20, 4, True).size_bytes == 0
    assert read_older(log, END, 1 << 20, END + 5, True).size_bytes == 0


def test_a_read_has_as_many_whole_batches_as_fit_and_one_if_it_must(log: PartitionLog) -> None:
    size = log.segments[0].size_bytes // 5
    assert offsets(read_older(log, 0, 3 * size - 1, END, True)) == [0, 1, 2, 3]
    assert offsets(read_older(log, 0, size - 1, END, True)) == [0, 1]
    assert read_older(log, 0, size - 1, END, False).size_bytes == 0


def test_damage_is_refused_with_the_offset_that_is_good_again_and_the_rest_is_read(
    log: PartitionLog, sim_volume: SimVolume
) -> None:
    segment = log.segments[0]
    positions = [position for position, _ in segment.headers()]
    sim_volume.flip_bit(segment.file.path, positions[2] + 16, 3)
    with pytest.raises(CorruptLog) as refused:
        read_older(log, 5, 1 << 20, END, True)
    assert refused.value.next_offset == 6
    assert offsets(read_older(log, 0, 1 << 20, END, True)) == [0, 1, 2, 3]
    assert offsets(read_older(log, 6, 1 << 20, END, True)) == [6, 7, 8, 9]


def test_a_segment_that_lost_its_end_is_not_read_as_if_the_next_one_followed(log: PartitionLog) -> None:
    segment = log.segments[0]
    position = [position for position, _ in segment.headers()][4]
    segment.file.truncate(position)
    segment.forget_indexes()
    segment.size_bytes = position
    with pytest.raises(CorruptLog) as refused:
        read_older(log, 8, 1 << 20, END, True)
    assert refused.value.next_offset == 10
    assert segment.damage[-1].first_offset == 8


@pytest.mark.parametrize("offset", range(0, END, 2))
@pytest.mark.parametrize("max_bytes", [1, 400, 1 << 20])
def test_no_record_of_a_slice_reaches_its_range_end_which_stays_in_its_segment(
    log: PartitionLog, offset: int, max_bytes: int
) -> None:
    found = read_older(log, offset, max_bytes, END, True)
    last = offsets(found)[-1]
    assert last < range_end(log, found) <= offset - offset % 10 + 10


def test_aborted_transactions_are_those_that_touch_the_range(disk: Disk) -> None:
    log = disk.log()
    for _ in range(3):
        log.append_replicated(
            batch_of(b"v", producer_id=7, transactional=True, base_offset=log.log_end_offset)
        )
        marker = build_marker(
            ControlMarker(ControlType.ABORT, 0),
            offset=log.log_end_offset,
            timestamp=NOW_MS,
            producer_id=7,
            producer_epoch=0,
        )
        log.append_replicated(memoryview(bytearray(marker)))
        log.roll()
    every = [AbortedTransaction(7, first, first + 1, first + 2) for first in (0, 2, 4)]
    assert aborted_transactions(log, 0, 6) == every
    assert aborted_transactions(log, 2, 4) == every[1:2]
    assert aborted_transactions(log, 3, 5) == every[1:]
    assert aborted_transactions(log, 6, 9) == []
