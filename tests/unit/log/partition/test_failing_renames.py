"""A rename that fails once, wherever it is: nothing that was deleted comes back, and nothing else is lost."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.errors import StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks
from tests.unit.log.support import (
    NOW_MS,
    OTHER_TOPIC_ID,
    PARTITION,
    TOPIC_ID,
    Disk,
    append,
    read_values,
)

D = TypeVar("D", Disk, Disks)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=-1)
RENAMES_MAX = 40
"""More than any of these take."""


@pytest.fixture
def disk(sim_volume: SimVolume) -> Iterator[Disk]:
    disk = Disk(sim_volume, "/data", CONFIG)
    yield disk
    disk.dispose()


def filled(disk: Disk, count: int = 40) -> PartitionLog:
    log = disk.log()
    for number in range(count):
        append(log, b"%d" % number)
    log.high_watermark = log.log_end_offset
    disk.run(log.flush())
    return log


class TestDeletion:
    def test_a_log_that_cannot_be_renamed_is_deleted_by_the_next_attempt(
        self, disk: Disk, sim_volume: SimVolume
    ) -> None:
        """It was forgotten first: the second attempt found nothing and confirmed, and the next start served
        the deleted records, as a topic of its own or in the one that had its name by then."""
        filled(disk)
        sim_volume.fail("rename", errno.EBUSY, path_contains="orders-0")
        with pytest.raises(StorageError):
            disk.directory.delete(PARTITION)
        assert PARTITION in disk.directory.logs
        disk.directory.delete(PARTITION)
        assert PARTITION not in disk.directory.logs
        disk.run(disk.directory.forget_deleted())
        disk.abandon()
        assert PARTITION not in disk.open().logs

    def test_a_deletion_that_breaks_off_is_not_confirmed_by_the_next_attempt(
        self, disk: Disk, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The new names counted as synced from the moment on when somebody set about it."""

        def no_thread(_volume: SimVolume, _path: str) -> None:
            raise RuntimeError("can't start new thread")

        filled(disk)
        disk.directory.delete(PARTITION)
        with monkeypatch.context() as broken:
            broken.setattr(SimVolume, "sync_directory", no_thread)
            with pytest.raises(RuntimeError):
                disk.run(disk.directory.forget_deleted())
        disk.run(disk.directory.forget_deleted())
        disk.abandon()
        sim_volume.crash()
        assert PARTITION not in disk.open().logs

    def test_a_new_topic_of_the_name_gets_nothing_of_a_log_that_cannot_be_renamed(
        self, disk: Disk, sim_volume: SimVolume
    ) -> None:
        filled(disk)
        sim_volume.fail("rename", errno.EBUSY, path_contains="orders-0", times=2)
        with pytest.raises(StorageError):
            disk.directory.delete(PARTITION)
        with pytest.raises(StorageError):
            disk.directory.create(PARTITION, OTHER_TOPIC_ID, CONFIG)
        log = disk.directory.create(PARTITION, OTHER_TOPIC_ID, CONFIG)
        append(log, b"new")
        disk.abandon()
        log = disk.open().logs[PARTITION]
        log.high_watermark = log.log_end_offset
        assert log.topic_id == OTHER_TOPIC_ID
        assert read_values(log) == [(0, b"new")]

    def test_files_that_nobody_knows_are_not_taken_into_a_new_log(
        self, disk: Disk, sim_volume: SimVolume
    ) -> None:
        filled(disk)
        disk.directory.give_up(PARTITION)
        log = disk.directory.create(PARTITION, OTHER_TOPIC_ID, CONFIG)
        append(log, b"new")
        disk.abandon()
        log = disk.open().logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (0, 1)
        assert any(name.endswith("-stray") for name in sim_volume.directories)

    @pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
    def test_a_deletion_lasts_only_when_the_disk_knows_it(
        self, disk: Disk, sim_volume: SimVolume, code: int
    ) -> None:
        filled(disk)
        disk.run(disk.directory.flush_dirty())
        disk.directory.delete(PARTITION)
        sim_volume.fail("sync", code, path_contains="/data")
        with pytest.raises(StorageError):
            disk.run(disk.directory.forget_deleted())
        assert disk.directory.offline_reason is None
        disk.run(disk.directory.forget_deleted())
        sim_volume.crash()
        assert PARTITION not in disk.open().logs

    def test_what_was_moved_before_it_was_deleted_does_not_come_back_where_it_was(self) -> None:
        """The original's new name was not on the disk yet."""
        volume = SimVolume(random.Random(1))
        disks = Disks(volume)
        log = disks.log()
        append(log, b"a")
        disks.run(disks.directories.all[0].flush_dirty())
        volume.fail("rename", errno.EIO, path_contains="-moved")
        disks.move("/b")
        disks.directories.delete(PARTITION)
        disks.run(disks.directories.forget_deleted())
        disks.lose_power()
        assert PARTITION not in disks.open().logs
        disks.dispose()


class Use(Protocol):
    def __call__(self, disk: D, /) -> D: ...


def at_every_rename(work: Callable[[int, Use], bool]) -> None:
    """Call it with the number of the rename that is to fail, until none is left to fail."""
    for number in range(RENAMES_MAX):
        with contextlib.ExitStack() as stack:

            def used(disk: D, stack: contextlib.ExitStack = stack) -> D:
                stack.callback(disk.dispose)
                return disk

            if not work(number, used):
                assert number > 2, "nothing was renamed"
                return
    raise AssertionError("there is no end to it")


def test_retention_that_is_broken_off_loses_nothing_and_brings_nothing_back() -> None:
    def work(number: int, used: Use) -> bool:
        volume = SimVolume(random.Random(1))
        disk = used(Disk(volume, "/data", CONFIG))
        log = filled(disk)
        values = read_values(log)
        volume.fail("rename", errno.EBUSY, path_contains=".", after=number)
        with contextlib.suppress(StorageError):
            disk.run(log.delete_records_before(25))
        has_failed = volume.faults[0].times == 0
        volume.faults.clear()
        start = log.log_start_offset
        assert read_values(log, start) == values[start:]
        disk.run(log.delete_records_before(25))
        assert read_values(log, 25) == values[25:]
        disk.run(disk.directory.remove_due())
        # Whatever is left of the others would be back where the log's start is not known.
        stored = sorted(name for name in volume.names if name.endswith(".log"))
        assert stored == [segment.file.path for segment in log.segments]
        disk.run(disk.directory.save_log_start_offsets())
        disk.abandon()
        log = disk.open().logs[PARTITION]
        log.high_watermark = log.log_end_offset
        assert log.log_start_offset == 25
        assert read_values(log, 25) == values[25:]
        return has_failed

    at_every_rename(work)


def test_a_cut_that_is_broken_off_leaves_a_log_without_a_gap() -> None:
    def work(number: int, used: Use) -> bool:
        volume = SimVolume(random.Random(1))
        disk = used(Disk(volume, "/data", CONFIG))
        log = filled(disk)
        values = read_values(log)
        log.high_watermark = 10
        volume.fail("rename", errno.EBUSY, after=number)
        with contextlib.suppress(StorageError):
            disk.run(log.truncate_to(10))
        has_failed = volume.faults[0].times == 0
        volume.faults.clear()
        assert 10 <= log.log_end_offset <= 40
        log.high_watermark = log.log_end_offset
        disk.run(disk.directory.remove_due())
        assert read_values(log) == values[: log.log_end_offset]
        disk.run(log.truncate_to(10))
        append(log, b"new")
        disk.abandon()
        log = disk.open().logs[PARTITION]
        log.high_watermark = log.log_end_offset
        assert read_values(log) == [*values[:10], (10, b"new")]
        return has_failed

    at_every_rename(work)


@pytest.mark.parametrize("is_undone", [True, False])
def test_segments_are_replaced_or_stay(is_undone: bool) -> None:
    """Half of them renamed, the log would miss records until the next start, or for good."""

    def work(number: int, used: Use) -> bool:
        volume = SimVolume(random.Random(1))
        disk = used(Disk(volume, "/data", CONFIG))
        log = filled(disk)
        values = read_values(log)
        first, second = log.segments[:2]
        records = volume.read_bytes(first.file.path) + volume.read_bytes(second.file.path)
        for suffix in (".log", ".index", ".timeindex"):
            file = volume.file(f"{first.path(suffix)}.cleaned", create=True)
            file.write_at(0, records) if suffix == ".log" else file.truncate(0)
            file.sync()
        volume.fail("rename", errno.EBUSY, after=number, times=1 if is_undone else 2**40)
        bases = [first.base_offset, second.base_offset]
        with contextlib.suppress(StorageError):
            disk.run(log.replace_segments(bases, [first.base_offset]))
        has_failed = volume.faults[0].times != (1 if is_undone else 2**40)
        volume.faults.clear()
        if disk.directory.offline_reason is None:
            assert read_values(log) == values
            disk.run(disk.directory.remove_due())
            assert read_values(log) == values
        else:
            assert not is_undone
        disk.abandon()
        log = disk.open().logs[PARTITION]
        log.high_watermark = log.log_end_offset
        assert read_values(log) == values
        return has_failed

    at_every_rename(work)


@pytest.mark.parametrize("times", [1, 2, 2**40])
def test_a_move_that_cannot_rename_loses_nothing(times: int) -> None:
    def work(number: int, used: Use) -> bool:
        volume = SimVolume(random.Random(1))
        disks = used(Disks(volume))
        log = disks.log()
        for each in range(30):
            append(log, b"%d" % each)
        disks.run(log.flush())
        disks.directories.move(PARTITION, disks.directories.at("/b"))
        copy = disks.directories.mover.moves[PARTITION].copy
        copy.prepare()
        disks.run(copy.copy_some(2**20))
        volume.fail("rename", errno.EBUSY, path_contains="orders-0", after=number, times=times)
        with contextlib.suppress(StorageError):
            disks.run(copy.take_over(lambda original, heir: None))
        has_failed = volume.faults[0].times != times
        volume.faults.clear()
        is_renamed = any(name.endswith("-moved") for name in volume.directories)
        if is_renamed and disks.home() == "/a":
            # The copy counts at the next start, so the original must take nothing more.
            assert disks.directories.at("/a").offline_reason is not None
        count = 30
        present = disks.directories.logs[PARTITION]
        with contextlib.suppress(Exception):
            append(present, b"30")
            count += 1
        disks.abandon()
        log = disks.open().logs[PARTITION]
        log.high_watermark = log.log_end_offset
        assert [value for _, value in read_values(log)] == [b"%d" % each for each in range(count)]
        return has_failed

    at_every_rename(work)


def test_retention_by_time_of_one_log_does_not_keep_others_from_theirs(
    disk: Disk, sim_volume: SimVolume
) -> None:
    logs = [disk.directory.create(TopicPartition(name, 0), TOPIC_ID, CONFIG) for name in ("a", "b")]
    for log in logs:
        for number in range(40):
            append(log, b"%d" % number)
        log.high_watermark = log.log_end_offset
        log.set_config(LogConfig(segment_bytes=600, retention_ms=1))
    sim_volume.fail("rename", errno.EBUSY, path_contains="/a-0/")
    disk.directory.enforce_retention(NOW_MS + 10)
    assert logs[1].log_start_offset == 40
    disk.directory.enforce_retention(NOW_MS + 10)
    assert [len(log.segments) for log in logs] == [1, 1]
