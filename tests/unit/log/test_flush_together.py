"""Many logs are flushed by one sync of the disk, and nobody is told too early."""

from __future__ import annotations

import asyncio
import threading

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.errors import DiskFailed, LogDirectoryOffline
from millrace.log.partition_log import PartitionLog
from millrace.sim.volume import SimHandle, SimVolume
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
