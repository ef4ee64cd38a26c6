"""From offsets, timestamps and epochs to places in the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.log.config import LogConfig
from millrace.log.disk.volume import DiskVolume
from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.time_lookup import TimestampedOffset
from millrace.log.segments.detached_segment import detached
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.time_index import TimeIndex
from millrace.log.state.epochs import LeaderEpochs
from millrace.log.state.transactions import read_marker
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker
from tests.unit.log.support import NOW_MS, Disk, append, batch_of, read_values

MakeDisk = Callable[[LogConfig], Disk]


def timed(disk: Disk) -> PartitionLog:
    log = disk.log()
    for number in range(60):
        append(log, b"%02d" % number + bytes(50), timestamp=NOW_MS + 10 * number)
    return log


@pytest.mark.parametrize("reopened", [False, True])
def test_the_first_record_not_older_than_a_timestamp(disk: Disk, reopened: bool) -> None:
    log = timed(disk)
    if reopened:
        log = disk.reopen()
    for number in range(60):
        for timestamp in (NOW_MS + 10 * number, NOW_MS + 10 * number - 9):
            found = disk.run(log.find_offset_by_timestamp(timestamp))
            assert found is not None
            assert (found.offset, found.timestamp) == (number, NOW_MS + 10 * number)
    assert disk.run(log.find_offset_by_timestamp(NOW_MS + 591)) is None
    youngest = disk.run(log.find_max_timestamp())
    assert youngest is not None
    assert (youngest.offset, youngest.timestamp, youngest.leader_epoch) == (59, NOW_MS + 590, 0)


def test_a_timestamp_is_found_inside_a_batch_and_above_the_logs_start(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b", b"c")
    append(log, b"d", timestamp=NOW_MS + 5)
    append(log, b"e", timestamp=NOW_MS + 3)
    disk.run(log.delete_records_before(1))
    found = disk.run(log.find_offset_by_timestamp(NOW_MS))
    assert found is not None
    assert found.offset == 1
    youngest = disk.run(log.find_max_timestamp())
    assert youngest is not None
    assert youngest.offset == 3


def test_an_empty_log_has_no_timestamps(disk: Disk) -> None:
    assert disk.run(disk.log().find_offset_by_timestamp(0)) is None
    assert disk.run(disk.log().find_max_timestamp()) is None


def test_a_lookup_in_a_thread_leaves_the_logs_own_segments_alone(
    make_disk: MakeDisk, sim_volume: SimVolume
) -> None:
    """The thread searched in the indexes that appends write to, and made anew what it found missing."""
    disk = make_disk(LogConfig(segment_bytes=1200, index_interval_bytes=100))
    timed(disk)
    log = disk.reopen()
    sim_volume.remove(log.segments[1].path(".index"))
    sealed = log.segments[:-1]
    assert len(sealed) > 3
    names = dict.fromkeys(sim_volume.names)
    for number in range(60):
        found = disk.run(log.find_offset_by_timestamp(NOW_MS + 10 * number))
        assert found is not None
        assert found.offset == number
    assert [segment.opened_indexes() for segment in sealed] == [(None, None)] * len(sealed)
    assert dict.fromkeys(sim_volume.names) == names
    # What was read once about the ages of segments is not read again.
    assert all(segment.max_timestamp > NOW_MS for segment in sealed)


def test_a_detached_segment_shares_nothing_that_changes(disk: Disk) -> None:
    log = timed(disk)
    segment = log.segments[-1]
    twin = detached(segment, disk.volume)
    pairs: list[tuple[Any, Any]] = [(segment, twin)]
    pairs += zip(segment.opened_indexes(), twin.opened_indexes(), strict=True)
    assert None not in segment.opened_indexes()
    for original, copy in pairs:
        slots = [name for each in type(original).__mro__ for name in getattr(each, "__slots__", ())]
        for name in slots:
            theirs, own = getattr(original, name), getattr(copy, name)
            if not isinstance(theirs, int | str | bytes | tuple | Callable | SimVolume | None):
                assert theirs is not own, (type(original).__name__, name)


def test_a_lookup_begins_again_when_the_files_have_changed(make_disk: MakeDisk) -> None:
    disk = make_disk(LogConfig(segment_bytes=1200, retention_ms=-1))
    log = timed(disk)

    async def look_up_while_the_oldest_go() -> TimestampedOffset | None:
        looking = asyncio.ensure_future(log.find_offset_by_timestamp(NOW_MS))
        await asyncio.sleep(0)
        log.high_watermark = log.log_end_offset
        await log.delete_records_before(40)
        return await looking

    found = disk.run(look_up_while_the_oldest_go())
    assert found is not None
    assert found.offset == 40


def test_reads_stop_at_the_limits(disk: Disk) -> None:
    log = timed(disk)
    size = log.read(59, 1, 60, True).size_bytes
    for offset in (0, 13, 58):
        assert log.read(offset, size - 1, 60, False).size_bytes == 0
        assert log.read(offset, size - 1, 60, True).size_bytes == size
        assert log.read(offset, 1 << 20, offset + 1, True).size_bytes == size
        assert log.read(offset, 1 << 20, offset, True).size_bytes == 0
    assert log.read(60, 1 << 20, 60, True).size_bytes == 0
    for offset in (-1, 61):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1 << 20, 60, True)


def test_the_tail_is_found_without_reading(disk: Disk) -> None:
    log = timed(disk)
    assert log.read(59, 1 << 20, 60, True).is_hot
    assert not log.read(0, 1 << 20, 60, True).is_hot


def test_a_small_pool_of_open_files_serves_many_segments(tmp_path: Path) -> None:
    disk = Disk(
        DiskVolume(open_files_max=2), str(tmp_path), LogConfig(segment_bytes=500, index_interval_bytes=100)
    )
    log = disk.log()
    for number in range(100):
        append(log, b"%d" % number)
    assert [value for _, value in read_values(log, max_bytes=200)] == [
        b"%d" % number for number in range(100)
    ]
    disk.close()
    disk.dispose()


@pytest.mark.parametrize("seed", range(5))
def test_an_index_finds_what_a_scan_finds(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    volume = DiskVolume()
    index = OffsetIndex(volume.file(f"{tmp_path}/i", create=True), base_offset=1000, stored_size_bytes=0)
    entries: list[tuple[int, int]] = []
    offset = position = 0
    for _ in range(3000):
        offset += draw.randrange(1, 50)
        position += draw.randrange(1, 5000)
        entries.append((offset, position))
        index.append(1000 + offset, position=position)
        if draw.random() < 0.002:
            index.store()
    for _ in range(500):
        asked = draw.randrange(offset + 100)
        assert index.find(0, asked) == max((entry for entry in entries if entry[0] <= asked), default=None)
        asked = draw.randrange(position + 100)
        assert index.find(1, asked) == max((entry for entry in entries if entry[1] <= asked), default=None)
    index.truncate_to(1000 + entries[1500][0])
    assert index.entries() == entries[:1500]
    index.trim_file()
    size = volume.file(f"{tmp_path}/i").size_bytes()
    again = OffsetIndex(volume.file(f"{tmp_path}/i"), base_offset=1000, stored_size_bytes=size)
    assert again.entries() == entries[:1500]


def test_a_time_index_takes_only_new_maxima(tmp_path: Path) -> None:
    index = TimeIndex(DiskVolume().file(f"{tmp_path}/t", create=True), base_offset=0, stored_size_bytes=0)
    for timestamp, offset in ((10, 1), (10, 2), (5, 3), (20, 4)):
        index.append(timestamp, offset)
    assert index.entries() == [(10, 1), (20, 4)]
    assert index.offset_before(15) == 1


def test_epochs_end_where_the_next_begins() -> None:
    epochs = LeaderEpochs()
    assert epochs.end_offset_of(0, 10) == (-1, -1)
    for epoch, start in ((2, 0), (4, 10), (5, 10), (7, 30)):
        epochs.assign(epoch, start)
    # Nothing was written in epoch 4: it left no trace.
    assert [tuple(start) for start in epochs.starts] == [(2, 0), (5, 10), (7, 30)]
    assert epochs.end_offset_of(1, 50) == (1, 0)
    assert epochs.end_offset_of(2, 50) == (2, 10)
    assert epochs.end_offset_of(6, 50) == (5, 30)
    assert epochs.end_offset_of(7, 50) == (7, 50)
    assert epochs.end_offset_of(8, 50) == (-1, -1)
    assert (epochs.epoch_at(9), epochs.epoch_at(10), epochs.epoch_at(99)) == (2, 5, 7)
    epochs.truncate_from_end(30)
    assert epochs.latest == 5


def test_truncation_forgets_epochs_producers_and_segments(disk: Disk) -> None:
    log = disk.log()
    for epoch in range(3):
        log.start_epoch(epoch)
        for number in range(10):
            append(log, bytes(100), producer_id=5, sequence=10 * epoch + number)
    disk.run(log.truncate_to(15))
    assert (log.log_end_offset, log.latest_epoch) == (15, 1)
    assert log.producers.entries[5].last_sequence == 14
    assert append(log, bytes(100), producer_id=5, sequence=14).duplicate
    append(log, bytes(100), producer_id=5, sequence=15)
    disk.run(log.truncate_fully_and_start_at(100))
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (100, 100, -1)
    assert not log.producers.entries
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)


def test_a_truncation_takes_whole_batches(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a")
    append(log, b"b", b"c", b"d")
    disk.run(log.truncate_to(2))
    assert log.log_end_offset == 1


def test_aborted_transactions_are_told_to_readers(disk: Disk) -> None:
    log = disk.log()
    for producer_id, outcome in ((5, ControlType.ABORT), (6, ControlType.COMMIT)):
        append(log, b"in it", producer_id=producer_id, sequence=0, transactional=True)
        marker = build_marker(
            ControlMarker(outcome, 3),
            offset=log.log_end_offset,
            timestamp=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            leader_epoch=0,
        )
        assert read_marker(marker) == (outcome == ControlType.COMMIT, 3)
        log.append_replicated(memoryview(bytearray(marker)))
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == 4
    for _ in range(2):
        (aborted,) = log.aborted_transactions(0, 4)
        assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (5, 0, 1)
        assert log.aborted_transactions(2, 4) == []
        disk.abandon()
        disk.open()
        log = disk.log()


def test_a_read_in_a_gap_begins_behind_it(disk: Disk) -> None:
    """Or a reader with a small limit would get the batch before the gap again and again."""
    log = disk.log()
    for offset in (0, 1, 10, 11):
        log.append_replicated(batch_of(b"%d" % offset, base_offset=offset, leader_epoch=0))
    for _ in range(2):
        log.high_watermark = log.log_end_offset
        assert read_values(log, 5, max_bytes=1) == [(10, b"10"), (11, b"11")]
        assert read_values(log, 0, max_bytes=1) == [(offset, b"%d" % offset) for offset in (0, 1, 10, 11)]
        log = disk.reopen()
