"""Many logs are flushed by one sync of the disk, and nobody is told too early."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.disk.volume import DiskVolume
from millrace.log.errors import DiskFailed, LogDirectoryOffline, TooManyOpenFiles
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import Fault, SimHandle, SimVolume
from tests.unit.log.support import Disk, append, read_values

MANY = 200


def _logs(disk: Disk, count: int = MANY) -> list[PartitionLog]:
    return [disk.log(TopicPartition("orders", number)) for number in range(count)]


def test_many_logs_take_one_sync(disk: Disk, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _logs(disk)
    for number, log in enumerate(logs):
        append(log, b"%d" % number)

    def refuse(handle: SimHandle) -> None:
        raise AssertionError(f"{handle.path} was synced by itself")

    monkeypatch.setattr(SimHandle, "sync", refuse)
    before = sim_volume.synced_count
    disk.run(disk.directory.flush_dirty())
    assert sim_volume.synced_count == before + 1
    assert all(log.flushed_offset == log.log_end_offset == 1 for log in logs)
    # Nothing is dirty any more.
    disk.run(disk.directory.flush_dirty())
    assert sim_volume.synced_count == before + 1


def test_few_logs_leave_the_rest_of_the_disk_alone(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _logs(disk, 3)
    for log in logs:
        append(log, b"value")

    def refuse(volume: SimVolume, path: str) -> None:
        raise AssertionError("everything was synced for three files")

    monkeypatch.setattr(SimVolume, "sync_everything", refuse)
    disk.run(disk.directory.flush_dirty())
    assert all(log.flushed_offset == 1 for log in logs)


def test_what_was_flushed_together_survives_a_power_loss(disk: Disk, sim_volume: SimVolume) -> None:
    for number, log in enumerate(_logs(disk)):
        append(log, b"%d" % number)
    disk.run(disk.directory.flush_dirty())
    for log in disk.directory.logs.values():
        append(log, b"not flushed")
    disk.abandon()
    sim_volume.crash()
    disk.open()
    for number, log in enumerate(_logs(disk)):
        log.high_watermark = log.log_end_offset
        assert read_values(log) == [(0, b"%d" % number)]


def test_who_waits_is_told_when_the_disk_has_it(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _logs(disk)
    original = SimVolume.sync_everything
    has_begun, may_end = threading.Event(), threading.Event()

    def sync(volume: SimVolume, path: str) -> None:
        has_begun.set()
        assert may_end.wait(timeout=10)
        original(volume, path)

    monkeypatch.setattr(SimVolume, "sync_everything", sync)

    async def work() -> None:
        for log in logs:
            append(log, b"early")
        flushing = disk.loop.create_task(disk.directory.flush_dirty())
        while not has_begun.is_set():
            await asyncio.sleep(0.001)
        early = [log.wait_flushed(1) for log in logs]
        append(logs[0], b"late")
        late = logs[0].wait_flushed(2)
        await asyncio.sleep(0.01)
        assert late is not None
        assert not any(waiting is None or waiting.done() for waiting in (*early, late))
        assert all(log.flushed_offset == 0 for log in logs)
        may_end.set()
        await flushing
        assert all(waiting is not None and waiting.done() for waiting in early)
        # The round had begun before: it must not answer for what came later.
        assert not late.done()
        await late
        assert logs[0].flushed_offset == 2

    disk.run(work())


def test_a_sync_that_fails_fences_the_directory(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = _logs(disk)
    for log in logs:
        append(log, b"value")

    def fail(volume: SimVolume, path: str) -> None:
        raise DiskFailed("sync", path, "Input/output error")

    monkeypatch.setattr(SimVolume, "sync_everything", fail)
    disk.run(disk.directory.flush_dirty())
    assert disk.directory.offline_reason is not None
    assert all(log.flushed_offset == 0 for log in logs)
    with pytest.raises(LogDirectoryOffline):
        append(logs[0], b"more")


def test_an_error_that_somebody_else_was_told_of_is_noticed(disk: Disk, sim_volume: SimVolume) -> None:
    """The system tells of what it could not write to each open file once. A directory that was opened afresh
    for each sync heard nothing of an error that another program's sync had met: what was lost counted as
    stored."""
    logs = _logs(disk)
    for log in logs:
        append(log, b"value")
    sim_volume.write_errors += 1
    with pytest.raises(DiskFailed):
        sim_volume.whole_disk("/data").sync()
    # Whoever comes now begins with a clean sheet.
    sim_volume.whole_disk("/data").sync()
    disk.run(disk.directory.flush_dirty())
    assert disk.directory.offline_reason is not None
    assert all(log.flushed_offset == 0 for log in logs)


def test_a_disk_is_synced_without_opening_anything(tmp_path: Path) -> None:
    """When no descriptor is left, flushing many logs works all the same."""
    volume = DiskVolume()
    disk = volume.whole_disk(str(tmp_path))
    if disk is None:
        pytest.skip("needs Linux 5.8 or newer")
    (tmp_path / "a").write_bytes(b"value")
    with no_descriptors():
        with pytest.raises(TooManyOpenFiles):
            volume.sync_directory(str(tmp_path))
        disk.sync()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_directory_that_is_closed_lets_go_of_its_disk(tmp_path: Path) -> None:
    """It is held open for a broker's whole life. Afterwards it would keep the disk from being unmounted."""
    path = tmp_path.resolve() / "data"
    disk = Disk(DiskVolume(), str(path))

    def is_open() -> bool:
        links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return any(entry.readlink() == path for entry in links)

    assert is_open()
    disk.close()
    is_closed = not is_open()
    disk.dispose()
    assert is_closed


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open("/dev/null", os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("count", [1, 40])
def test_a_shortage_of_descriptors_is_no_failed_disk(disk: Disk, sim_volume: SimVolume, count: int) -> None:
    """One that could not be opened for its sync took the directory offline until a restart. Nothing counts as
    stored meanwhile, and the next flush brings it to the disk."""
    logs = _logs(disk, count)
    for log in logs:
        append(log, b"value")
    sim_volume.faults.append(Fault("sync", errno.EMFILE, path_ends="/data"))
    if count == 1:
        with pytest.raises(TooManyOpenFiles):
            disk.run(logs[0].flush())
    else:
        disk.run(disk.directory.flush_dirty())
    assert disk.directory.offline_reason is None
    assert all(log.flushed_offset == 0 for log in logs)
    disk.run(disk.directory.flush_dirty())
    assert all(log.flushed_offset == 1 for log in logs)
    disk.abandon()
    sim_volume.crash()
    disk.open()
    assert [log.log_end_offset for log in _logs(disk, count)] == [1] * count


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_flush_that_breaks_off_forgets_no_file(
    disk: Disk, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """When the broker stopped in the midst of one, or no thread was to be had, the names of new files were
    taken for synced: the next flush brought the bytes to the disk, and a power loss took the files."""
    logs = _logs(disk, 40)
    for log in logs:
        append(log, b"value")

    async def break_off() -> None:
        flushing = disk.loop.create_task(disk.directory.flush_dirty())
        await asyncio.sleep(0)
        if is_cancelled:
            flushing.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else RuntimeError):
            await flushing

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(SimVolume, "sync_everything", no_thread)
        disk.run(break_off())
    for log in logs:
        disk.run(log.flush())
        assert log.flushed_offset == 1
    disk.abandon()
    sim_volume.crash()
    disk.open()
    assert [log.log_end_offset for log in _logs(disk, 40)] == [1] * 40
