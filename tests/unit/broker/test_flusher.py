"""With flush.messages=1 everything appended is committed in the end, whoever asked for the flush."""

from __future__ import annotations

import asyncio
import errno
import random

from millrace.broker.upkeep import Flusher
from millrace.log.config import LogConfig
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of


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
        async with asyncio.timeout(60):
            while log.high_watermark < log.log_end_offset:
                await asyncio.sleep(0.01)

    disk.run(append_during_a_flush())
    disk.dispose()


def test_what_a_full_disk_refused_to_flush_is_committed_when_it_is_on_disk_after_all() -> None:
    """Nobody appends meanwhile: whoever reads all of the log, as a coordinator does that starts over, waited
    for ever (found by the simulator, scenario random)."""
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data", LogConfig(flush_messages=1))
    partition = Partition(PARTITION, TOPIC_ID, disk.log(), TopicStats(), Flusher().wanted)
    partition.lead(1, 0)

    async def append_to_a_full_disk() -> None:
        log = partition.log
        partition.append(batch_of(b"first"), NOW_MS)
        while log.high_watermark < log.log_end_offset:
            await asyncio.sleep(0.01)
        partition.lead(1, 1)
        # The new epoch can be stored neither with the batch nor with the flush.
        volume.fail("write", errno.ENOSPC, path_contains="leader-epoch", times=2)
        partition.append(batch_of(b"second"), NOW_MS)
        refused: list[bool] = []
        partition.waiting_produces.add(log.log_end_offset, lambda is_there: refused.append(not is_there))
        async with asyncio.timeout(60):
            while log.high_watermark < log.log_end_offset:
                await asyncio.sleep(0.01)
        assert refused == [True], "the disk refused nothing: the test shows nothing"

    disk.run(append_to_a_full_disk())
    disk.dispose()
