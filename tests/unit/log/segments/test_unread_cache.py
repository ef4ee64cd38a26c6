"""A log that nobody reads leaves the page cache but for its end; one that is read stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.log.config import LogConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.disk.volume import DiskVolume
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.segment import Segment
from millrace.log.segments.unread_cache import STEP_BYTES
from tests.unit.log.support import Disk, append, read_values

KEPT_BYTES = 256 * 1024
BATCH_BYTES = 64 * 1024
PAGE_BYTES = 4096
LOOK_STEP_BYTES = 64 * 1024


@pytest.fixture
def real_disk(tmp_path: Path) -> Iterator[Disk]:
    if not _can_drop(tmp_path / "probe"):
        pytest.skip("the file system of temporary files keeps everything in memory")
    disk = Disk(DiskVolume(), str(tmp_path / "data"), LogConfig(segment_bytes=4 * STEP_BYTES))
    disk.directory.unread_cache_bytes = KEPT_BYTES
    yield disk
    disk.abandon()
    disk.dispose()


def _can_drop(path: Path) -> bool:
    path.write_bytes(bytes(STEP_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    handle = DiskVolume().file(str(path)).handle()
    return not handle.is_cached(0, PAGE_BYTES)


def _write(disk: Disk, log: PartitionLog, size_bytes: int) -> None:
    for _ in range(size_bytes // BATCH_BYTES):
        append(log, os.urandom(BATCH_BYTES))
    disk.run(disk.directory.flush_dirty())


def _is_cached(segment: Segment, position: int) -> bool:
    """Looked at by a descriptor of its own: on a usual one, a look at a page that is gone brings in megabytes
    behind it, and the next look would find those."""
    number = os.open(segment.file.path, os.O_RDONLY)
    try:
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_RANDOM)
        os.preadv(number, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(number)
    return True


def _is_gone(segment: Segment, start: int, size_bytes: int = STEP_BYTES) -> bool:
    """Whether it has left, but for pages that the kernel keeps: it takes a hint, no more."""
    if not all(_is_cached(segment, start + at) for at in range(0, size_bytes, LOOK_STEP_BYTES)):
        return True
    _skip_if_nothing_goes(Path(segment.file.path).parent)
    return False


def _skip_if_nothing_goes(directory: Path) -> None:
    """There are moments in which the kernel lets no file go: then it says nothing about ours."""
    if not all(_can_drop(directory / f"control-{number}") for number in range(5)):
        pytest.skip("the kernel keeps what it is told to drop at present")


def test_all_but_the_end_leaves_the_cache(real_disk: Disk) -> None:
    log = real_disk.log()
    log.expect_no_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    (segment,) = log.segments
    assert _is_gone(segment, 0)
    assert _is_gone(segment, 2 * STEP_BYTES, STEP_BYTES - KEPT_BYTES)
    assert _is_cached(segment, segment.size_bytes - KEPT_BYTES // 2)
    assert segment.cached_from == segment.size_bytes - KEPT_BYTES


def test_so_it_is_when_many_logs_are_flushed_together(real_disk: Disk) -> None:
    topic = real_disk.log().topic_partition
    logs = [real_disk.log(topic._replace(partition=number)) for number in range(40)]
    for log in logs:
        log.expect_no_readers()
        for _ in range(2 * STEP_BYTES // BATCH_BYTES):
            append(log, os.urandom(BATCH_BYTES))
    real_disk.run(real_disk.directory.flush_dirty())
    assert all(_is_gone(log.segments[0], 0) for log in logs)


def test_closed_segments_leave_it_as_a_whole(real_disk: Disk) -> None:
    log = real_disk.log()
    log.expect_no_readers()
    _write(real_disk, log, 9 * STEP_BYTES)
    assert len(log.segments) > 2
    _write(real_disk, log, 2 * STEP_BYTES)
    for segment in log.segments[:-1]:
        assert _is_gone(segment, 0)
        assert _is_gone(segment, segment.size_bytes - STEP_BYTES)


def test_a_log_that_is_read_stays(real_disk: Disk) -> None:
    log = real_disk.log()
    log.expect_no_readers()
    log.expect_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    assert _is_cached(log.segments[0], 0)


def test_a_compacted_log_stays_because_compaction_reads_it(real_disk: Disk) -> None:
    log = real_disk.log()
    log.set_config(LogConfig(cleanup_compact=True))
    log.expect_no_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    assert _is_cached(log.segments[0], 0)


def test_no_limit_leaves_it_to_the_system(real_disk: Disk) -> None:
    real_disk.directory.unread_cache_bytes = DirectorySettings().unread_cache_bytes
    log = real_disk.log()
    log.expect_no_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    assert _is_cached(log.segments[0], 0)


def test_what_was_dropped_is_read_from_the_disk_and_known_to_be_cold(real_disk: Disk) -> None:
    log = real_disk.log()
    log.expect_no_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    log.expect_readers()
    file = log.segments[0].file.handle()
    # Before anything is read, since the system reads ahead; and from the end, since a look does so, too.
    places = (2 * STEP_BYTES, STEP_BYTES, STEP_BYTES // 2)
    if not any(LogSlice(file, place, BATCH_BYTES, False).is_cold() for place in places):
        _skip_if_nothing_goes(Path(log.segments[0].file.path).parent)
        pytest.fail("what was dropped is not known to be cold")
    assert not log.read(0, BATCH_BYTES, log.high_watermark, True).is_hot
    assert not log.read(log.log_end_offset - 1, BATCH_BYTES, log.high_watermark, True).is_cold()
    assert [offset for offset, _ in read_values(log)] == list(range(log.log_end_offset))


def test_a_cut_log_forgets_what_was_dropped_behind_the_cut(real_disk: Disk) -> None:
    log = real_disk.log()
    log.expect_no_readers()
    _write(real_disk, log, 3 * STEP_BYTES)
    real_disk.run(log.truncate_to(4))
    assert log.segments[0].cached_from == log.segments[0].size_bytes
    _write(real_disk, log, 3 * STEP_BYTES)
    assert _is_gone(log.segments[0], STEP_BYTES)
