"""Group commit: one fsync for all who wait, and nobody is told too early."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture

import pytest

from millrace.log.config import LogConfig
from millrace.log.errors import DiskFull, LogClosed, LogDirectoryOffline, StorageError, TooManyOpenFiles
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments import checkpoints
from millrace.sim.volume import SimHandle, SimVolume
from tests.unit.log.support import Disk, append, batch_of, read_values

MakeDisk = Callable[[LogConfig], Disk]


class Gate:
    """Holds every fsync of a log file until it is opened, before or after the disk has done its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, holds_after: bool = False) -> None:
        self.opened: ThreadFuture[None] = ThreadFuture()
        self.syncs = 0
        original = SimHandle.sync

        def sync(handle: SimHandle) -> None:
            is_held = handle.path.endswith(".log")
            self.syncs += is_held
            if is_held and not holds_after:
                self.opened.result(timeout=5)
            original(handle)
            if is_held and holds_after:
                self.opened.result(timeout=5)

        monkeypatch.setattr(SimHandle, "sync", sync)


def test_one_fsync_serves_all_who_wait(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk.log()
    gate = Gate(monkeypatch)

    async def work() -> None:
        append(log, b"first")
        first = log.wait_flushed(log.log_end_offset)
        assert first is not None
        waiting = []
        for _ in range(20):
            append(log, b"more")
            waiting.append(log.wait_flushed(log.log_end_offset))
        gate.opened.set_result(None)
        await first
        # The first round began before the others' batches: it must not answer for them.
        assert not any(future is None or future.done() for future in waiting)
        assert log.flushed_offset == 1
        await asyncio.gather(*(future for future in waiting if future is not None))
        assert gate.syncs == 2
        assert log.flushed_offset == 21
        assert log.wait_flushed(21) is None

    disk.run(work())


def test_what_was_flushed_survives_a_power_loss(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for number in range(40):
        append(log, b"%d" % number + bytes(60))
    disk.run(log.flush())
    append(log, b"not flushed")
    disk.abandon()
    sim_volume.crash()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(40))


def test_a_file_made_after_a_restart_is_flushed_with_its_name(disk: Disk, sim_volume: SimVolume) -> None:
    """An empty partition has no file; what was flushed to it must not vanish because its name does."""
    disk.log().start_epoch(1)
    log = disk.reopen()
    append(log, b"first")
    disk.run(log.flush())
    disk.abandon()
    sim_volume.crash()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(0, b"first")]


def test_an_emptied_log_goes_on_where_it_began_after_two_power_losses(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"first")
    disk.run(log.delete_records_before(1))
    for _ in range(2):
        disk.abandon()
        sim_volume.crash()
        disk.open()
        log = disk.log()
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)


def test_a_truncation_voids_the_flush_under_way(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk.log()
    for _ in range(5):
        append(log, b"old")
    gate = Gate(monkeypatch)

    async def work() -> None:
        waiting = log.wait_flushed(5)
        assert waiting is not None
        cut = asyncio.ensure_future(log.truncate_to(2))
        await asyncio.sleep(0)
        for _ in range(3):
            append(log, b"new")
        gate.opened.set_result(None)
        await waiting
        await cut
        assert gate.syncs >= 2
        assert log.flushed_offset == 5

    disk.run(work())
    assert [value for _, value in read_values(log)] == [b"old"] * 2 + [b"new"] * 3


def test_closing_tells_those_who_wait(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk.log()
    append(log, b"a")
    gate = Gate(monkeypatch)

    async def work() -> None:
        waiting = log.wait_flushed(1)
        assert waiting is not None
        log.discard()
        gate.opened.set_result(None)
        with pytest.raises(LogClosed):
            await waiting

    disk.run(work())


def test_deleting_a_topic_during_its_flush_does_not_take_the_disk_for_broken(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush finds the directory's name gone. Were that a failed disk, every other topic would stop
    too."""
    log = disk.log()
    append(log, b"a")
    gate = Gate(monkeypatch)

    async def work() -> None:
        waiting = log.wait_flushed(1)
        assert waiting is not None
        disk.directory.delete(log.topic_partition)
        gate.opened.set_result(None)
        with pytest.raises(LogClosed):
            await waiting
        for _ in range(10):
            await asyncio.sleep(0.01)

    disk.run(work())
    assert disk.directory.offline_reason is None


def due_after(log: PartitionLog, appends: int) -> list[bool]:
    found = []
    for _ in range(appends):
        append(log, b"a")
        found.append(log.flush_is_due)
    return found


def test_flush_messages_says_when_a_flush_is_due(make_disk: MakeDisk) -> None:
    disk = make_disk(LogConfig(flush_messages=3))
    log = disk.log()
    assert not log.commits_on_flush
    assert due_after(log, 4) == [False, False, True, True]
    disk.run(log.flush())
    assert due_after(log, 3) == [False, False, True]


def test_with_flush_messages_1_every_append_waits_for_the_disk(make_disk: MakeDisk) -> None:
    disk = make_disk(LogConfig(flush_messages=1))
    log = disk.log()
    assert log.commits_on_flush
    assert due_after(log, 2) == [True, True]
    disk.run(log.flush())
    assert not log.flush_is_due


def test_the_background_flushes_only_what_is_dirty(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"a")
    disk.run(disk.directory.flush_dirty())
    assert log.flushed_offset == 1
    synced = sim_volume.synced_count
    disk.run(disk.directory.flush_dirty())
    assert sim_volume.synced_count == synced
    append(log, b"b")
    disk.run(disk.directory.flush_dirty())
    assert log.flushed_offset == 2


def test_a_directory_that_goes_offline_tells_those_who_wait_for_the_next_flush() -> None:
    """They waited for ever, and the error went nowhere (found by the simulator, scenario random)."""
    disk = Disk(SimVolume(random.Random(1)), "/data")
    log = disk.log()

    async def go_offline_during_a_flush() -> None:
        append(log, b"1")
        first = log.wait_flushed(log.log_end_offset)
        append(log, b"2")
        second = log.wait_flushed(log.log_end_offset)
        assert first is not None
        assert second is not None
        disk.directory.fence("the disk is gone")
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(outcomes[1], LogDirectoryOffline), outcomes

    disk.run(go_offline_during_a_flush())
    disk.dispose()


@pytest.mark.parametrize(
    "operation, code", [("write", errno.ENOSPC), ("write", errno.EMFILE), ("open", errno.EMFILE)]
)
@pytest.mark.parametrize("file", ["index", "checkpoint"])
def test_a_flush_that_cannot_begin_forgets_no_file(
    make_disk: MakeDisk, sim_volume: SimVolume, operation: str, code: int, file: str
) -> None:
    """A power loss would take what the next flush, which succeeded, answered for: the file's name."""
    disk = make_disk(LogConfig(index_interval_bytes=0))
    log = disk.log()
    for _ in range(3):
        append(log, b"first")
    log.start_epoch(1)
    log.state.are_epochs_saved = False
    sim_volume.fail(operation, code, path_contains=file, times=1)
    with contextlib.suppress(StorageError):
        disk.run(log.flush())
    sim_volume.faults.clear()
    disk.run(log.flush())
    assert log.flushed_offset == 3
    disk.abandon()
    sim_volume.crash()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == [0, 1, 2]


@pytest.mark.parametrize("operation", ["open", "sync"])
def test_a_flush_that_lacks_descriptors_leaves_all_it_was_to_sync_to_the_next(
    disk: Disk, sim_volume: SimVolume, operation: str
) -> None:
    """The log's own name in the data directory, the small file with the topic's id, and the files' names."""
    log = disk.log()
    append(log, b"first")
    files, directories = list(log.flushing._files or ()), list(log.flushing._directories or ())
    assert f"{log.path}/{checkpoints.PARTITION_METADATA}" in files
    assert sorted(directories) == [disk.path, log.path]
    sim_volume.fail(operation, errno.EMFILE, path_contains=".log", times=1)
    with pytest.raises(TooManyOpenFiles):
        disk.run(log.flush())
    assert log.flushed_offset == 0
    assert set(files) <= set(log.flushing._files or ())
    assert sorted(log.flushing._directories or ()) == sorted(directories)
    disk.run(log.flush())
    assert log.flushed_offset == 1
    assert not log.flushing._files
    assert not log.flushing._directories


def test_a_truncation_returns_when_its_cut_is_on_the_disk(
    disk: Disk, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush under way began before the cut. Its end says nothing about the file that was cut."""
    log = disk.log()
    for number in range(5):
        append(log, b"%d" % number)
    disk.run(log.flush())
    gate = Gate(monkeypatch, holds_after=True)

    async def work() -> None:
        append(log, b"uncommitted")
        under_way = log.wait_flushed(6)
        assert under_way is not None
        while not gate.syncs:
            await asyncio.sleep(0)
        cut = asyncio.ensure_future(log.truncate_to(5))
        await asyncio.sleep(0)
        gate.opened.set_result(None)
        await under_way
        await cut
        path = log.segments[-1].file.path
        assert sim_volume.names[path].pending == [], "the cut is not on the disk"

    disk.run(work())


def test_a_flush_waits_for_files_that_another_one_has_taken_along(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orderly end must not be marked while the files of the last flush are still being synced."""
    log = disk.log()
    append(log, b"a")
    disk.run(log.flush())
    gate = Gate(monkeypatch)

    async def work() -> None:
        log.sync_later(log.segments[-1].file.path)
        first = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(log.flush())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not second.done()
        gate.opened.set_result(None)
        await asyncio.gather(first, second)

    disk.run(work())
    assert gate.syncs == 1


def test_what_was_stored_of_a_leaders_records_before_one_failed_is_flushed(
    disk: Disk, sim_volume: SimVolume
) -> None:
    """Each leader's batches are written by themselves. If the second write failed, nobody flushed the first
    one's before the next append."""
    log = disk.log()
    disk.run(disk.directory.flush_dirty())
    batches = [batch_of(b"a", base_offset=epoch, leader_epoch=epoch) for epoch in range(2)]
    sim_volume.fail("write", errno.ENOSPC, path_contains=".log", after=1)
    with pytest.raises(DiskFull):
        log.append_replicated(memoryview(b"".join(batches)))
    assert log.log_end_offset == 1
    disk.run(disk.directory.flush_dirty())
    assert log.flushed_offset == 1


def test_a_cut_that_cannot_be_flushed_lowers_the_recovery_point_all_the_same(
    disk: Disk, sim_volume: SimVolume
) -> None:
    """A start believes what lies below it, and other records take the place of those that were cut."""
    log = disk.log()
    for number in range(10):
        append(log, b"%d" % number)
    disk.run(log.flush())
    disk.run(disk.directory.save_checkpoints())
    sim_volume.fail("sync", errno.EMFILE, path_contains=".log")
    with pytest.raises(TooManyOpenFiles):
        disk.run(log.truncate_to(5))
    assert log.log_end_offset == 5
    points = checkpoints.read_offsets(sim_volume, f"/data/{checkpoints.RECOVERY_POINTS}")
    assert points[log.topic_partition] <= 5
