"""Thousands of logs come and go while all background work runs, in real threads that are switched as often as
Python allows."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.core.ids import TopicId, TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.disk.volume import DiskVolume
from tests.harness.background import background
from tests.unit.log.support import NOW_MS, CountingIds, FixedClock, append

TOPICS = 30
PARTITIONS = 50
ALL_THE_TIME = DirectorySettings(flush_interval_ms=1, checkpoint_interval_ms=1, high_watermark_interval_ms=1)


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("impatient_threads")
def test_creating_thousands_of_logs_disturbs_no_background_work(tmp_path: Path) -> None:
    """A thread entered new logs into the tables that the loop walked through: `dictionary changed size during
    iteration` in checkpoints, flushes, retention or metrics, and the broker ended."""
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    directories = LogDirectories(
        DiskVolume(),
        paths,
        clock=FixedClock(),
        ids=CountingIds(),
        chance=random.Random(1),
        settings=ALL_THE_TIME,
    )
    config = LogConfig(file_delete_delay_ms=0, retention_ms=1)
    walks = 0

    async def walk() -> None:
        """What timers and requests do on the loop."""
        nonlocal walks
        while True:
            directories.enforce_retention(NOW_MS + 10)
            assert directories.size_bytes >= 0
            assert len(directories.all_logs()) == len(directories.logs)
            walks += 1
            await asyncio.sleep(0)

    async def come_and_go(number: int) -> None:
        topic_id = TopicId(number.to_bytes(16, "big"))
        names = [TopicPartition(f"topic-{number}", partition) for partition in range(PARTITIONS)]
        await directories.create_missing(names, topic_id, config)
        logs = [directories.logs[name] for name in names]
        for log in logs[::5]:
            append(log, b"one")
            log.high_watermark = log.log_end_offset
        for name in names[::2]:
            directories.delete(name)
        await directories.forget_deleted()

    async def work() -> None:
        await directories.open()
        await directories.load(lambda _: config)
        async with background() as owner:
            loops = [*directories.start(owner), owner.start("walk", walk())]
            for number in range(0, TOPICS, 3):
                await asyncio.gather(*(come_and_go(each) for each in range(number, number + 3)))
                assert not any(loop.done() for loop in loops), loops
        await directories.close()

    asyncio.run(work())
    assert walks > TOPICS
    assert [len(directory.logs) for directory in directories.all] == [TOPICS * PARTITIONS // 4] * 2
    assert directories.offline_reason is None
