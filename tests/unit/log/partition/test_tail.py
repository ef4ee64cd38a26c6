"""The end of a log's newest file: opened once, mended after a failed write, rolled as a whole."""

from __future__ import annotations

import errno

import pytest

from millrace.log.errors import DiskFull, LogClosed
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk, append, batch_of, read_values


def test_the_file_is_read_before_the_first_append_only(disk: Disk) -> None:
    append(disk.log(), b"one")
    log = disk.reopen()
    opened = [log.tail.is_open]
    log.require_writable_tail()
    opened.append(log.tail.is_open)
    assert opened == [False, True]
    active = log.segments[-1]
    active.recent_offsets.clear()
    log.require_writable_tail()
    assert active.recent_offsets == [], "an open tail was read again"


def test_bytes_of_a_write_that_failed_are_cut_off_before_the_next_one(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"kept")
    path = log.segments[0].file.path
    size_bytes = log.size_bytes
    sim_volume.fail("write", errno.ENOSPC, path_contains=".log")
    sim_volume.fail("truncate", errno.ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        append(log, b"torn")
    # What the failed write has left behind the last batch, as nobody could cut it off.
    sim_volume.names[path].content[size_bytes:] = b"torn"
    append(log, b"next")
    assert read_values(log) == [(0, b"kept"), (1, b"next")]
    assert len(sim_volume.names[path].content) == log.size_bytes


def test_a_roll_that_fails_leaves_the_log_as_it_was(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"one")
    segments = log.segments
    sim_volume.fail("truncate", errno.ENOSPC, path_contains="00000000000000000001.log")
    with pytest.raises(DiskFull):
        log.roll()
    assert log.segments == segments
    assert not sim_volume.exists(f"{log.path}/00000000000000000001.log")
    append(log, b"two")
    assert read_values(log) == [(0, b"one"), (1, b"two")]


def test_a_roll_begins_a_segment_at_the_end_and_an_empty_one_is_not_followed_by_another(disk: Disk) -> None:
    log = disk.log()
    append(log, b"one")
    new = log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert log.roll() is new
    assert len(log.segments) == 2


def test_staged_batches_stay_before_a_new_segment(disk: Disk) -> None:
    log = disk.log()
    append(log, b"one")
    log.append_as_leader(batch_of(b"staged"), log.latest_epoch, disk.clock.now_ms, token=object())
    assert log.log_end_offset == 1
    assert log.roll().base_offset == 2


def test_nothing_is_rolled_in_a_closed_log(disk: Disk) -> None:
    log = disk.log()
    append(log, b"one")
    log.discard()
    with pytest.raises(LogClosed):
        log.roll()
