"""With flush.messages=1 everything appended is committed in the end, whoever asked for the flush."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from millrace.broker import upkeep
from millrace.broker.upkeep import Flusher
from millrace.log.config import LogConfig
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of


async def committed(partition: Partition) -> int:
    """Return when all of the log is committed; how often that was refused before."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refusals = 0

    def told(is_there: bool) -> None:
        nonlocal refusals
        if is_there:
            done.set_result(None)
        else:
            refusals += 1
            partition.waiting_produces.add(partition.log.log_end_offset, told)

    if partition.log.high_watermark < partition.log.log_end_offset:
        partition.waiting_produces.add(partition.log.log_end_offset, told)
        async with asyncio.timeout(60):
            await done
    return refusals


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
        assert await committed(partition) == 0

    disk.run(append_during_a_flush())
    disk.dispose()


def test_what_a_full_disk_refused_to_flush_is_committed_when_it_is_on_disk_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody appends meanwhile: whoever reads all of the log, as a coordinator does that starts over, waited
    for ever (found by the simulator, scenario random)."""
    monkeypatch.setattr(upkeep, "RETRY_S", 0.0)
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data", LogConfig(flush_messages=1))
    partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), Flusher().wanted)
    partition.lead(1, 0)

    async def append_to_a_full_disk() -> None:
        partition.append(batch_of(b"first"), NOW_MS)
        assert await committed(partition) == 0
        partition.lead(1, 1)
        # The new epoch can be stored neither with the batch nor with the flush.
        volume.fail("write", errno.ENOSPC, path_contains="leader-epoch", times=2)
        partition.append(batch_of(b"second"), NOW_MS)
        assert await committed(partition) == 1, "the disk refused nothing: the test shows nothing"

    disk.run(append_to_a_full_disk())
    disk.dispose()
