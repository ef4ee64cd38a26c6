"""A disk that is full, failing or read-only: nothing acknowledged, nothing torn, reads go on (F10)."""

from __future__ import annotations

import errno

import pytest

from millrace.log.errors import (
    DiskFailed,
    DiskFull,
    LogDirectoryOffline,
    OutOfOrderSequence,
    ReadOnlyDisk,
)
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, Disk, append, batch_of, read_values


def test_a_full_disk_refuses_writes_and_takes_them_again_without_a_restart(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"before", producer_id=5, sequence=0)
    sim_volume.capacity_bytes = 300
    for _ in range(3):
        with pytest.raises(DiskFull):
            append(log, bytes(200), producer_id=5, sequence=1)
    assert read_values(log) == [(0, b"before")]
    assert disk.directory.offline_reason is None

    sim_volume.capacity_bytes = 2**40
    assert append(log, b"after", producer_id=5, sequence=1) == (1, 1, -1, False)
    assert read_values(log) == [(0, b"before"), (1, b"after")]
    disk.abandon()
    disk.open()
    assert disk.directory.recovered[PARTITION].truncated_bytes == 0
    assert disk.log().log_end_offset == 2


def test_a_torn_write_that_cannot_be_cut_at_once_is_cut_before_the_next(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"before")
    sim_volume.fail("write", errno.ENOSPC, path_contains=".log")
    sim_volume.fail("truncate", errno.ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        append(log, bytes(500))
    append(log, b"x")
    assert sim_volume.file(log.segments[0].file.path).size_bytes() == log.size_bytes
    assert [value for _, value in read_values(log)] == [b"before", b"x"]


def test_a_full_disk_during_a_roll_changes_nothing(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    while len(log.segments) == 1 and log.size_bytes < 1900:
        append(log, bytes(40))
    end, segments = log.log_end_offset, len(log.segments)
    sim_volume.capacity_bytes = 0
    for _ in range(2):
        with pytest.raises(DiskFull):
            append(log, bytes(400))
        assert (log.log_end_offset, len(log.segments)) == (end, segments)
    sim_volume.capacity_bytes = 2**40
    append(log, bytes(400))
    assert len(read_values(log)) == end + 1


def test_a_full_disk_lets_retention_make_room(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for _ in range(60):
        append(log, bytes(60))
    sim_volume.capacity_bytes = 0
    deleted = log.delete_old_segments(disk.clock.now_ms + 8 * 24 * 3600 * 1000)
    assert deleted == len(log.segments) + deleted - 1 > 0
    disk.run(disk.directory.remove_due())
    assert not [name for name in sim_volume.names if name.endswith(".deleted")]


def test_an_io_error_takes_the_whole_directory_offline_for_writes(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"before")
    sim_volume.fail("write", errno.EIO, path_contains=".log")
    with pytest.raises(DiskFailed):
        append(log, b"lost")
    assert disk.directory.offline_reason is not None
    with pytest.raises(LogDirectoryOffline):
        append(log, b"refused")
    with pytest.raises(LogDirectoryOffline):
        disk.log(PARTITION._replace(topic="new"))
    assert read_values(log) == [(0, b"before")]
    # Without the clean mark: the next start has a look at every log.
    disk.close()
    disk.open()
    assert not disk.directory.progress.is_clean
    log = disk.log()
    assert log.log_end_offset == 1
    append(log, b"works again")


def test_a_failed_fsync_is_told_to_all_who_wait_and_never_retried(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"a")
    sim_volume.fail("sync", errno.EIO, path_contains=".log")
    with pytest.raises(DiskFailed):
        disk.run(log.flush())
    assert log.flushed_offset == 0
    assert disk.directory.offline_reason is not None
    with pytest.raises(LogDirectoryOffline):
        disk.run(log.flush())
    assert read_values(log) == [(0, b"a")]


def test_a_read_only_file_system_refuses_writes_until_it_is_writable(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"before")
    sim_volume.is_read_only = True
    with pytest.raises(ReadOnlyDisk):
        append(log, b"refused")
    assert read_values(log) == [(0, b"before")]
    sim_volume.is_read_only = False
    append(log, b"after")
    assert read_values(log) == [(0, b"before"), (1, b"after")]


def test_a_full_disk_does_not_stop_the_background_work(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"a")
    sim_volume.fail("sync", errno.ENOSPC, path_contains=".log")
    disk.run(disk.directory.flush_dirty())
    if disk.directory.offline_reason is None:
        disk.run(disk.directory.flush_dirty())
        assert log.flushed_offset == 1


@pytest.mark.parametrize("staged", [False, True], ids=["alone", "staged"])
def test_a_refused_first_batch_is_not_overtaken_by_those_in_flight_behind_it(
    disk: Disk, sim_volume: SimVolume, staged: bool
) -> None:
    """Of a producer that is not known any sequence may come first: the second batch would be taken for its
    first, and the first one, sent again, for a gap (found by the simulator, scenario F10-refused-calls)."""
    log = disk.log()
    append(log, b"other")

    def send(sequence: int) -> None:
        batch = batch_of(b"%d" % sequence, producer_id=5, sequence=sequence)
        log.append_as_leader(batch, 0, NOW_MS, token=sequence if staged else None)
        failure = log.write_staged()
        log.high_watermark = log.log_end_offset
        if failure is not None:
            raise failure

    sim_volume.fail("write", errno.ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        send(0)
    with pytest.raises(OutOfOrderSequence):
        send(1)
    send(0)
    send(1)
    assert [value for _, value in read_values(log)] == [b"other", b"0", b"1"]
