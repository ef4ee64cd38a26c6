"""What the checkpoints of a data directory say, and when they are written."""

from __future__ import annotations

import errno

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.directories.directory_checkpoints import DirectoryCheckpoints
from millrace.log.errors import StorageError
from millrace.log.segments import checkpoints
from millrace.sim.volume import SimVolume
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk, append

OTHER = TopicPartition("orders", 1)


@pytest.fixture
def written(disk: Disk) -> DirectoryCheckpoints:
    """Of a directory with two logs, the first of which has five records, three of them flushed."""
    log = disk.log()
    for _ in range(3):
        append(log, b"v")
    disk.run(log.flush())
    append(log, b"v", b"v")
    disk.directory.create(OTHER, TOPIC_ID, disk.config)
    return DirectoryCheckpoints(disk.volume, disk.path, disk.directory.logs)


def offsets(disk: Disk, name: str) -> dict[TopicPartition, int]:
    return checkpoints.read_offsets(disk.volume, f"{disk.path}/{name}")


def test_each_checkpoint_says_its_number_of_every_log(disk: Disk, written: DirectoryCheckpoints) -> None:
    disk.run(written.save_all())
    assert offsets(disk, checkpoints.RECOVERY_POINTS) == {PARTITION: 3, OTHER: 0}
    assert offsets(disk, checkpoints.HIGH_WATERMARKS) == {PARTITION: 5, OTHER: 0}
    assert offsets(disk, checkpoints.LOG_START_OFFSETS) == {}
    assert offsets(disk, checkpoints.CLEANER_OFFSETS) == {}


def test_the_start_of_a_log_is_told_where_its_first_file_does_not_tell_it(
    disk: Disk, written: DirectoryCheckpoints
) -> None:
    disk.log().log_start_offset = 2
    disk.log().first_dirty_offset = 4
    disk.run(written.save_log_start_offsets())
    disk.run(written.save_cleaner_offsets())
    assert offsets(disk, checkpoints.LOG_START_OFFSETS) == {PARTITION: 2}
    assert offsets(disk, checkpoints.CLEANER_OFFSETS) == {PARTITION: 4}


def test_a_log_that_begins_with_a_file_which_was_never_flushed_tells_its_start(
    disk: Disk, written: DirectoryCheckpoints
) -> None:
    log = disk.log()
    log.roll()
    log.set_segments([log.segments[-1]])
    log.log_start_offset = log.segments[0].base_offset
    assert log.log_start_offset >= log.flushed_offset > 0
    disk.run(written.save_log_start_offsets())
    assert offsets(disk, checkpoints.LOG_START_OFFSETS) == {PARTITION: 5}


def test_what_has_not_changed_is_not_written_again(disk: Disk, written: DirectoryCheckpoints) -> None:
    disk.run(written.save_high_watermarks())
    path = f"{disk.path}/{checkpoints.HIGH_WATERMARKS}"
    disk.volume.remove(path)
    disk.run(written.save_high_watermarks())
    assert not disk.volume.exists(path)
    append(disk.log(), b"v")
    disk.run(written.save_high_watermarks())
    assert offsets(disk, checkpoints.HIGH_WATERMARKS)[PARTITION] == 6


def test_a_write_that_failed_is_tried_again(
    disk: Disk, written: DirectoryCheckpoints, sim_volume: SimVolume
) -> None:
    sim_volume.fail("rename", errno.EIO, path_contains=checkpoints.HIGH_WATERMARKS)
    with pytest.raises(StorageError):
        disk.run(written.save_high_watermarks())
    disk.run(written.save_high_watermarks())
    assert offsets(disk, checkpoints.HIGH_WATERMARKS)[PARTITION] == 5


def test_checkpoints_that_speak_of_a_log_that_is_gone_are_written_again(
    disk: Disk, written: DirectoryCheckpoints
) -> None:
    disk.run(written.save_all())
    disk.directory.delete(OTHER)
    disk.run(written.forget_deleted())
    assert offsets(disk, checkpoints.RECOVERY_POINTS) == {PARTITION: 3}
    assert offsets(disk, checkpoints.HIGH_WATERMARKS) == {PARTITION: 5}


def test_after_a_cut_the_recovery_point_is_lowered_and_else_left_alone(
    disk: Disk, written: DirectoryCheckpoints
) -> None:
    log = disk.log()
    disk.run(written.save_all())
    append(log, b"v")
    log.flushed_offset = 6
    disk.run(written.lower_recovery_point(log))
    assert offsets(disk, checkpoints.RECOVERY_POINTS)[PARTITION] == 3, "what it says is true"
    log.flushed_offset = 1
    disk.run(written.lower_recovery_point(log))
    assert offsets(disk, checkpoints.RECOVERY_POINTS)[PARTITION] == 1


def test_if_no_checkpoint_was_written_yet_the_file_may_say_anything_and_is_written(
    disk: Disk, written: DirectoryCheckpoints
) -> None:
    path = f"{disk.path}/{checkpoints.RECOVERY_POINTS}"
    checkpoints.write_offsets(disk.volume, path, {PARTITION: 4711})
    disk.run(written.lower_recovery_point(disk.log()))
    assert offsets(disk, checkpoints.RECOVERY_POINTS)[PARTITION] == 3
