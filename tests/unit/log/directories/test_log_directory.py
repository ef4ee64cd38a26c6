"""A data directory: its identity, its lock, its checkpoints, thousands of logs in it, and how one leaves
it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import tracemalloc
from pathlib import Path

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.errors import DirectoryLocked, DirectoryMismatch, LogClosed
from millrace.log.partition.layout import deleted_directory_name, parse_directory_name
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments import checkpoints
from millrace.log.segments.checkpoints import read_offsets
from millrace.sim.volume import SimVolume
from tests.unit.log.support import (
    NOW_MS,
    OTHER_TOPIC_ID,
    PARTITION,
    TOPIC_ID,
    AtOnce,
    CountingIds,
    Disk,
    FixedClock,
    append,
    read_values,
)
from tests.unit.log.unsynced import UnsyncedVolume
from tests.unit.metadata.virtual_time import run_virtually


def test_an_identity_is_made_once_and_checked_after(disk: Disk, sim_volume: SimVolume) -> None:
    directory = disk.directory
    assert directory.read_identity() is None
    directory_id = directory.ensure_identity(node_id=3, cluster_id="one")
    assert directory.ensure_identity(node_id=3, cluster_id="one") == directory_id
    assert directory.read_identity() == {
        "version": "1",
        "cluster.id": "one",
        "node.id": "3",
        "directory.id": directory_id,
    }
    with pytest.raises(DirectoryMismatch, match=r"cluster\.id=one"):
        directory.ensure_identity(node_id=3, cluster_id="other")
    with pytest.raises(DirectoryMismatch, match=r"node\.id=3"):
        directory.ensure_identity(node_id=4, cluster_id="one")


def test_kafkas_identity_is_taken_over(disk: Disk, sim_volume: SimVolume) -> None:
    sim_volume.write_bytes(
        "/data/meta.properties",
        b"#\n#Sun Nov 15 20:25:34 UTC 2026\nnode.id=1\ndirectory.id=J1_JB-c3Q\nversion=1\ncluster.id=MkU\n",
    )
    assert disk.directory.ensure_identity(node_id=1, cluster_id="MkU") == "J1_JB-c3Q"


def test_two_brokers_cannot_share_a_directory(disk: Disk) -> None:
    with pytest.raises(DirectoryLocked):
        disk.open()


def test_an_orderly_end_is_believed_and_used_up(disk: Disk, sim_volume: SimVolume) -> None:
    append(disk.log(), b"a")
    disk.close()
    assert sim_volume.read_bytes("/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
    disk.open()
    assert disk.directory.progress.is_clean
    assert not disk.directory.recovered
    assert not sim_volume.exists("/data/.kafka_cleanshutdown")


def test_checkpoints_say_where_the_logs_are(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for _ in range(10):
        append(log, b"a")
    disk.run(log.flush())
    append(log, b"not flushed")
    disk.run(log.delete_records_before(4))
    log.first_dirty_offset = 7
    disk.run(disk.directory.save_checkpoints())
    found = {
        name: read_offsets(sim_volume, f"/data/{name}-offset-checkpoint")
        for name in ("recovery-point", "log-start", "replication", "cleaner")
    }
    assert found == {
        "recovery-point": {PARTITION: 10},
        "log-start": {PARTITION: 4},
        "replication": {PARTITION: 11},
        "cleaner": {PARTITION: 7},
    }


def test_a_deleted_log_is_gone_at_once_and_its_files_later(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"a")
    disk.directory.delete(PARTITION)
    assert disk.directory.get(PARTITION) is None
    with pytest.raises(LogClosed):
        append(log, b"b")
    assert disk.log().log_end_offset == 0
    disk.run(disk.directory.remove_due())
    assert sorted(entry.name for entry in sim_volume.list_directory("/data") if entry.is_directory) == [
        "orders-0"
    ]


def test_directory_names() -> None:
    assert parse_directory_name("a-b.c_1-12") == TopicPartition("a-b.c_1", 12)
    for name in ("plain", "-1", "a-", "a-b", "a-1.0123-delete", "a-1.0123-future", "a-1.9-stray", "a b-1"):
        assert parse_directory_name(name) is None, name
    long = deleted_directory_name(TopicPartition("t" * 249, 12345), "0" * 32)
    assert len(long) == 255
    assert long.endswith("-12345." + "0" * 32 + "-delete")


def test_the_background_flushes_removes_and_saves(sim_volume: SimVolume) -> None:
    directory = LogDirectory(
        sim_volume,
        "/data",
        clock=FixedClock(),
        ids=CountingIds(),
        chance=random.Random(1),
        settings=DirectorySettings(
            flush_interval_ms=10, checkpoint_interval_ms=20, high_watermark_interval_ms=10
        ),
    )

    async def work() -> None:
        await directory.open()
        await directory.load(lambda partition: LogConfig())
        background = asyncio.ensure_future(directory.run())
        log = directory.create(PARTITION, TOPIC_ID, LogConfig(file_delete_delay_ms=0))
        append(log, b"a")
        log.delete_old_segments(NOW_MS + 10**12)
        async with asyncio.timeout(5):
            while read_offsets(sim_volume, "/data/recovery-point-offset-checkpoint") != {PARTITION: 1}:
                await asyncio.sleep(0.01)
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        assert log.flushed_offset == 1
        assert not [name for name in sim_volume.names if name.endswith(".deleted")]

    asyncio.run(work())


def test_the_background_sleeps_while_nothing_happens(
    sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle broker woke up every second for each data directory, and rewrote what had not changed. What is
    written then is flushed as soon as before."""
    rounds: list[float] = []
    written: list[str] = []
    directory = LogDirectory(
        sim_volume,
        "/data",
        clock=FixedClock(),
        ids=CountingIds(),
        chance=random.Random(1),
        settings=DirectorySettings(
            flush_interval_ms=10, checkpoint_interval_ms=200, high_watermark_interval_ms=400
        ),
    )
    flush_dirty, write_offsets = directory.flush_dirty, checkpoints.write_offsets

    async def counted_flush() -> None:
        rounds.append(asyncio.get_running_loop().time())
        await flush_dirty()

    def counted_write(volume: SimVolume, path: str, offsets: dict[TopicPartition, int]) -> None:
        written.append(path)
        write_offsets(volume, path, offsets)

    monkeypatch.setattr(directory, "flush_dirty", counted_flush)
    monkeypatch.setattr(checkpoints, "write_offsets", counted_write)

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        await directory.open()
        await directory.load(lambda partition: LogConfig())
        log = directory.create(PARTITION, TOPIC_ID, LogConfig())
        background = asyncio.ensure_future(directory.run())
        await asyncio.sleep(0.5)
        rounds.clear()
        written.clear()
        await asyncio.sleep(0.5)
        assert len(rounds) <= 5, rounds
        assert not written
        async with asyncio.timeout(5):
            append(log, b"a")
            while log.flushed_offset < 1:
                await asyncio.sleep(0.005)
            while read_offsets(sim_volume, "/data/recovery-point-offset-checkpoint") != {PARTITION: 1}:
                await asyncio.sleep(0.005)
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)

    run_virtually(work())


def test_thousands_of_idle_logs_cost_little(tmp_path: Path) -> None:
    """Few bytes each, no open file, and a start that reads none of them."""
    count = 300
    config = LogConfig()
    loop = asyncio.new_event_loop()

    def directory(volume: UnsyncedVolume) -> LogDirectory:
        found = LogDirectory(
            volume, str(tmp_path), clock=FixedClock(), ids=CountingIds(), chance=random.Random(1)
        )
        loop.run_until_complete(found.open())
        loop.run_until_complete(found.load(lambda partition: config))
        return found

    volume = UnsyncedVolume(open_files_max=50)
    first = directory(volume)
    for number in range(count):
        log = first.create(TopicPartition("many", number), TOPIC_ID, config)
        append(log, b"one")
        assert volume.pool.open_count <= 50
    loop.run_until_complete(first.close())
    volume = UnsyncedVolume(open_files_max=50)

    gc.collect()
    tracemalloc.start()
    second = directory(volume)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(second.logs) == count
    assert second.progress.is_clean
    assert volume.pool.open_count == 0
    assert used / count < 4000, used / count
    assert read_values(second.logs[TopicPartition("many", 7)]) == [(0, b"one")]
    loop.run_until_complete(second.close())
    loop.close()


class TestSameNameAgain:
    """A topic is deleted and made again before the checkpoints were written by their timer."""

    def recreated(self, disk: Disk) -> PartitionLog:
        old = disk.log()
        for _ in range(20):
            append(old, b"old")
        disk.run(old.delete_records_before(15))
        disk.run(disk.directory.flush_dirty())
        disk.run(disk.directory.save_checkpoints())
        disk.directory.delete(PARTITION)
        disk.run(disk.directory.forget_deleted())
        log = disk.directory.create(PARTITION, OTHER_TOPIC_ID, disk.config)
        for number in range(5):
            append(log, b"new %d" % number)
        return log

    def test_a_killed_process_loses_nothing_of_the_new_one(self, disk: Disk) -> None:
        self.recreated(disk)
        disk.abandon()
        disk.open()
        log = disk.directory.logs[PARTITION]
        assert (log.log_start_offset, log.log_end_offset) == (0, 5)
        log.high_watermark = log.log_end_offset
        assert read_values(log) == [(number, b"new %d" % number) for number in range(5)]

    def test_what_was_not_flushed_of_the_new_one_is_checked_after_a_power_loss(
        self, disk: Disk, sim_volume: SimVolume
    ) -> None:
        log = self.recreated(disk)
        path = log.segments[0].file.path
        disk.abandon()
        # The process is gone; in its last batch a byte never got to the disk.
        sim_volume.names[path].content[-1] ^= 1
        disk.open()
        assert disk.directory.logs[PARTITION].log_end_offset == 4

    def test_the_start_after_a_crash_forgets_logs_that_are_gone(self, disk: Disk) -> None:
        log = disk.log()
        append(log, b"old")
        disk.run(disk.directory.flush_dirty())
        disk.run(disk.directory.save_checkpoints())
        disk.directory.delete(PARTITION)
        disk.abandon()
        disk.open()
        path = f"{disk.path}/{checkpoints.RECOVERY_POINTS}"
        assert checkpoints.read_offsets(disk.volume, path) == {}

    def test_a_full_disk_does_not_keep_a_deletion_from_ending(
        self, disk: Disk, sim_volume: SimVolume
    ) -> None:
        append(disk.log(), b"old")
        disk.run(disk.directory.save_checkpoints())
        disk.directory.delete(PARTITION)
        sim_volume.fail("write", errno.ENOSPC, path_contains="checkpoint")
        disk.run(disk.directory.forget_deleted())
        assert disk.directory.offline_reason is None
