"""Power loss and disk errors at any step of a compaction: the newest record of each key is always there."""

from __future__ import annotations

import errno
import random

import pytest

from millrace.core.errors import MillraceError
from millrace.log.cleaning.cleaner import LogCleaner
from millrace.log.cleaning.cleaner_policy import CleanerConfig
from millrace.log.cleaning.compaction_runner import InlineRunner
from millrace.log.config import LogConfig
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.records import Record, build_batch, check_batch, read_records, split_batches
from tests.unit.log.support import NOW_MS, Disk

CONFIG = LogConfig(
    cleanup_compact=True,
    cleanup_delete=False,
    segment_bytes=700,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.1,
    segment_ms=2**60,
)


def cleaner_of(disk: Disk) -> LogCleaner:
    async def save(_: PartitionLog) -> None:
        await disk.directory.save_cleaner_offsets()

    return LogCleaner(
        disk.directory.logs.values, InlineRunner(disk.volume), disk.clock, CleanerConfig(), save
    )


def append(log: PartitionLog, rng: random.Random, count: int) -> None:
    for _ in range(count):
        sequence = log.log_end_offset
        records = [
            Record(number, NOW_MS, b"key-%d" % rng.randrange(6), b"%d" % rng.randrange(10**6))
            for number in range(rng.randrange(1, 4))
        ]
        batch = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(memoryview(bytearray(batch)), 0, NOW_MS)
    log.high_watermark = log.log_end_offset


def read_all(log: PartitionLog) -> dict[int, Record]:
    found: dict[int, Record] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        batches = split_batches(memoryview(log.read(offset, 1 << 20, log.log_end_offset, True).read()))
        assert batches, offset
        for batch in batches:
            found |= {record.offset: record for record in read_records(batch)}
            offset = check_batch(batch).next_offset
    return found


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_when_the_power_goes_during_a_compaction(seed: int) -> None:
    rng = random.Random(seed)
    volume = SimVolume(rng)
    disk = Disk(volume, "/data", CONFIG)
    try:
        log = disk.log()
        originals: dict[int, Record] = {}
        newest: dict[bytes | None, int] = {}
        for _ in range(3):
            append(log, rng, rng.randrange(10, 40))
            disk.run(log.flush())
            originals |= read_all(log)
            newest = {record.key: offset for offset, record in sorted(originals.items())}
            end_offset = log.log_end_offset

            operation = rng.choice(["write", "sync", "rename", "truncate", "open", "remove"])
            volume.fail(operation, rng.choice([errno.EIO, errno.ENOSPC]), after=rng.randrange(40), times=1)
            try:
                disk.run(cleaner_of(disk).clean_dirtiest())
            except MillraceError:
                pytest.fail("the cleaner lets errors of a disk through")
            disk.abandon()
            volume.crash(lose_everything=rng.random() < 0.5)
            disk.open()
            log = disk.log()
            log.high_watermark = log.log_end_offset

            left = read_all(log)
            assert log.log_end_offset == end_offset
            assert log.producers.entries[5].last_sequence == end_offset - 1
            assert all(originals[offset] == record for offset, record in left.items())
            assert {key: offset for key, offset in newest.items() if offset not in left} == {}
            names = [entry.name for entry in volume.list_directory(log.path)]
            assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        while disk.run(cleaner_of(disk).clean_dirtiest()):
            pass
        left = read_all(log)
        assert {key: offset for key, offset in newest.items() if offset not in left} == {}
        disk.close()
    finally:
        disk.dispose()
