"""Upkeep: with flush.messages=1 everything appended is committed in the end, whoever asked for the flush; and
retention comes round."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from typing import cast

import pytest

from millrace.broker import upkeep
from millrace.broker.upkeep import Flusher, RetentionPace, enforce_retention
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, FixedClock, batch_of
from tests.unit.metadata.virtual_time import run_virtually


async def committed(partition: Partition) -> bool:
    """Whether everything that is in the log now is committed, as soon as that is known."""
    log = partition.log
    if log.high_watermark >= log.log_end_offset:
        return True
    known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    partition.waiting_produces.add(log.log_end_offset, known.set_result)
    async with asyncio.timeout(60):
        return await known


def test_a_batch_that_the_periodic_flush_takes_along_is_committed_too() -> None:
    """It came while a flush was under way, and the next one was begun for somebody else: its producer waited
    for ever, until the next append (found by the simulator, scenario F32)."""
    disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig(flush_messages=1))
    flusher = Flusher()
    partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), flusher.wanted)
    partition.lead(1, 0)

    async def append_during_a_flush() -> None:
        log = partition.log
        partition.append(batch_of(b"first"), NOW_MS)
        partition.append(batch_of(b"second"), NOW_MS)
        periodic = log.wait_flushed(log.log_end_offset)
        assert periodic is not None
        await periodic
        assert await committed(partition)

    disk.run(append_during_a_flush())
    disk.dispose()


def test_what_a_full_disk_refused_to_flush_is_committed_when_it_is_on_disk_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody appends meanwhile: whoever reads all of the log, as a coordinator does that starts over, waited
    for ever (found by the simulator, scenario random)."""
    monkeypatch.setattr(upkeep, "RETRY_S", 0.01)
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data", LogConfig(flush_messages=1))
    partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), Flusher().wanted)
    partition.lead(1, 0)

    async def append_to_a_full_disk() -> None:
        log = partition.log
        partition.append(batch_of(b"first"), NOW_MS)
        assert await committed(partition)
        partition.lead(1, 1)
        # The new epoch can be stored neither with the batch nor with the flush.
        volume.fail("write", errno.ENOSPC, path_contains="leader-epoch", times=2)
        partition.append(batch_of(b"second"), NOW_MS)
        assert not await committed(partition), "the disk refused nothing: the test shows nothing"
        assert await committed(partition)
        assert log.high_watermark == log.log_end_offset

    disk.run(append_to_a_full_disk())
    disk.dispose()


def test_retention_waits_first_and_then_goes_on_at_the_pace_of_the_moment() -> None:
    pace = RetentionPace(first_delay_ms=5_000, interval_ms=60_000)
    times: list[float] = []

    class Directories:
        def enforce_retention(self, now_ms: int) -> int:
            assert now_ms == NOW_MS
            times.append(asyncio.get_running_loop().time())
            return 0

    async def main() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(70):
                await enforce_retention(cast("LogDirectories", Directories()), FixedClock(), lambda: pace)
        return started

    started = run_virtually(main())
    assert [round(time - started) for time in times] == [5, 65]
