"""The cleaner around real logs: what it picks, how far it goes, what it does when things go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.core.clock import SystemIdSource
from millrace.core.ids import TopicId, TopicPartition
from millrace.log.cleaning.cleaner import DEATHS_MAX, LogCleaner
from millrace.log.cleaning.cleaner_policy import CleanerConfig, assess, most_worth_cleaning, plan_job
from millrace.log.cleaning.compaction import CompactionJob, CompactionResult, compact
from millrace.log.cleaning.compaction_runner import CompactionRunner, InlineRunner, WorkerRunner
from millrace.log.cleaning.worker_messages import (
    JobFailed,
    WorkerDied,
    decode_job,
    decode_reply,
    encode_failure,
    encode_job,
    encode_result,
)
from millrace.log.config import LogConfig
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.disk.volume import Volume
from millrace.log.errors import CorruptLog, DiskFull
from millrace.log.partition.isolation import isolate_in
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import mend
from millrace.wire.records import Record, build_batch, read_records, split_batches
from tests.unit.log.unsynced import UnsyncedVolume

CONFIG = LogConfig(
    cleanup_compact=True,
    cleanup_delete=False,
    segment_bytes=400,
    min_cleanable_dirty_ratio=0.5,
    segment_ms=2**60,
)
START = 1_700_000_000_000


class FixedClock:
    def __init__(self) -> None:
        self.now_ms = START

    def wall_ms(self) -> int:
        return self.now_ms


class Broker:
    """A log directory and a cleaner, as the assembly would join them."""

    def __init__(self, path: Path, runner: CompactionRunner | None = None) -> None:
        self.clock = FixedClock()
        self.volume = UnsyncedVolume()
        self.directory = LogDirectory(
            self.volume,
            str(path),
            clock=self.clock,
            ids=SystemIdSource(),
            chance=random.Random(1),
        )
        self.runner = runner or InlineRunner(self.volume)
        self.cleaner = LogCleaner(self._logs, self.runner, self.clock, CleanerConfig(), self._save)

    def _logs(self) -> list[PartitionLog]:
        return list(self.directory.logs.values())

    async def _save(self, log: PartitionLog) -> None:
        await self.directory.save_cleaner_offsets()

    async def open(self, config: LogConfig = CONFIG) -> None:
        await self.directory.open()
        await self.directory.load(lambda _: config)

    def create(self, name: str = "t", config: LogConfig = CONFIG) -> PartitionLog:
        return self.directory.create(TopicPartition(name, 0), TopicId(os.urandom(16)), config)


def fill(
    log: PartitionLog, count: int, *, keys: int = 3, producer_id: int = -1, timestamp: int = START
) -> None:
    for number in range(count):
        record = Record(0, timestamp, b"key-%d" % (number % keys), b"value-%d" % number)
        epoch, sequence = (0, number) if producer_id >= 0 else (-1, -1)
        batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        log.append_as_leader(memoryview(bytearray(batch)), 0, timestamp)
    log.high_watermark = log.log_end_offset


def read_all(log: PartitionLog) -> list[Record]:
    records: list[Record] = []
    offset = header_end = log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, log.log_end_offset, True)
        batches = split_batches(memoryview(part.read()))
        if not batches:
            break
        for batch in batches:
            found = read_records(batch)
            records += [record for record in found if record.offset >= offset]
            header_end = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
        offset = header_end
    return records


@contextlib.asynccontextmanager
async def broker_in(path: Path, runner: CompactionRunner | None = None) -> AsyncIterator[Broker]:
    broker = Broker(path, runner)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.runner.rest()
        await broker.directory.close()


def remove_snapshots(path: Path) -> None:
    for snapshot in path.glob("*/*.snapshot"):
        snapshot.unlink()


def damage(path: str) -> bytes:
    with Path(path).open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff\xff")
    return content_of(path)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


def unfinished_in(path: Path) -> list[Path]:
    return [*path.glob("*/*.cleaned"), *path.glob("*/*.swap")]


def is_alive(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came true")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_a_log_is_cleaned_up_to_its_active_segment(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 60)
            originals = {record.offset: record for record in read_all(log)}
            active = log.segments[-1].base_offset
            assert await broker.cleaner.clean_dirtiest()
            assert log.first_dirty_offset == active
            left = read_all(log)
            assert all(originals[record.offset] == record for record in left)
            closed = [record for record in left if record.offset < active]
            assert [record.key for record in sorted(closed, key=lambda r: r.key or b"")] == [
                b"key-0",
                b"key-1",
                b"key-2",
            ]
            assert [record.offset for record in left if record.offset >= active] == list(range(active, 60))
            # Every offset can still be asked for, and gives the next record that is there.
            for offset in range(60):
                first = split_batches(memoryview(log.read(offset, 1, 60, True).read()))[0]
                assert int.from_bytes(first[:8], "big") + int.from_bytes(first[23:27], "big") >= offset
            assert not await broker.cleaner.clean_dirtiest()
            metrics = broker.cleaner.metrics
            assert (metrics.passes_count, metrics.failures_count) == (1, 0)
            assert metrics.records_removed == active - 3
            fill(log, 5)
            assert log.log_end_offset == 65

    run(main())


def test_cleaning_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            fill(broker.create(), 60, producer_id=7)
            await broker.cleaner.clean_dirtiest()
            before = read_all(broker.directory.logs[TopicPartition("t", 0)])
            first_dirty = broker.directory.logs[TopicPartition("t", 0)].first_dirty_offset
        async with broker_in(tmp_path) as broker:
            log = broker.directory.logs[TopicPartition("t", 0)]
            assert log.first_dirty_offset == first_dirty > 0
            assert read_all(log) == before
            assert log.producers.entries[7].last_sequence == 59

    run(main())


def test_a_crash_after_cleaning_keeps_sequences_and_offsets(tmp_path: Path) -> None:
    # The producer's newest batch is emptied by compaction; its sequence must be found all the same.
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 30, keys=1, producer_id=7)
            fill(log, 30, keys=1)
            log.roll()
            fill(log, 1, keys=1)
            assert await broker.cleaner.clean_dirtiest()
            assert log.producers.entries[7].last_sequence == 29
            await log.flush()
            remove_snapshots(tmp_path)
            broker.directory.logs.clear()
        (tmp_path / ".kafka_cleanshutdown").unlink()
        async with broker_in(tmp_path) as broker:
            log = broker.directory.logs[TopicPartition("t", 0)]
            assert log.log_end_offset == 61
            assert log.producers.entries[7].last_sequence == 29

    run(main())


def test_the_dirtiest_log_comes_first_and_clean_ones_are_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            small, large = broker.create("small"), broker.create("large")
            plain = broker.create("plain", replace(CONFIG, cleanup_compact=False, cleanup_delete=True))
            for log in (small, large, plain):
                fill(log, 60, keys=60)
            large.first_dirty_offset = large.segments[2].base_offset
            small.first_dirty_offset = small.segments[-3].base_offset
            cases = [assess(log, START) for log in (small, large)]
            assert not cases[0].is_due
            assert cases[1].is_due
            best = most_worth_cleaning(cases)
            assert best is not None
            assert best.log is large
            assert await broker.cleaner.clean_dirtiest()
            assert large.first_dirty_offset == large.segments[-1].base_offset
            assert not await broker.cleaner.clean_dirtiest()
            assert len(read_all(plain)) == 60

    run(main())


def test_young_undecided_and_uncommitted_records_are_not_touched(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create(config=replace(CONFIG, min_compaction_lag_ms=1000))
            fill(log, 30)
            middle = log.segments[-1].base_offset
            log.roll()
            fill(log, 30, timestamp=START + 5000)
            log.roll()
            assert assess(log, START + 999).dirty_bytes == 0
            case = assess(log, START + 5500)
            assert middle < case.end_offset < log.segments[-1].base_offset
            assert assess(log, START + 6001).end_offset == log.segments[-1].base_offset
            log.set_config(CONFIG)
            log.high_watermark = 20
            assert assess(log, START).end_offset <= 20
            log.high_watermark = 60
            open_transaction = build_batch(
                [Record(0, START, b"k", b"v")],
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            log.append_as_leader(memoryview(bytearray(open_transaction)), 0, START)
            log.roll()
            log.high_watermark = 61
            assert log.last_stable_offset == 60
            assert assess(log, START).end_offset <= 60

    run(main())


def test_overdue_records_are_cleaned_whatever_the_ratio(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create(
                config=replace(CONFIG, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=100)
            )
            fill(log, 60)
            log.first_dirty_offset = log.segments[-2].base_offset
            assert not assess(log, START + 100).is_due
            assert assess(log, START + 101).is_due

    run(main())


def test_a_segment_closes_in_time_to_be_compacted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create(config=replace(CONFIG, segment_bytes=10_000, max_compaction_lag_ms=100))
            fill(log, 3)
            fill(log, 1, timestamp=START + 100)
            assert assess(log, START + 101).dirty_bytes == 0
            fill(log, 1, timestamp=START + 101)
            assert assess(log, START + 101).is_due

    run(main())


def test_what_is_written_after_a_truncation_is_dirty(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 60)
            assert await broker.cleaner.clean_dirtiest()
            await log.truncate_to(20)
            # Compaction left no batch that reaches up to there: what comes next is written before it.
            end_offset = log.log_end_offset
            assert 0 < end_offset <= 20
            fill(log, 60)
            assert log.log_end_offset == end_offset + 60
            assert assess(log, START).first_dirty_offset == end_offset

    run(main())


def test_a_checkpoint_from_another_life_is_not_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 30)
            log.first_dirty_offset = 1000
            assert assess(log, START).first_dirty_offset == 0

    run(main())


class ScriptedRunner:
    """Does what the test says, then the real thing."""

    def __init__(self, volume: Volume | None = None) -> None:
        self.volume = volume
        self.errors: list[Exception] = []
        self.starts_count = 0
        self.meanwhile: list[Coroutine[Any, Any, object]] = []

    async def run(self, job: CompactionJob) -> CompactionResult:
        if self.errors:
            raise self.errors.pop(0)
        assert self.volume is not None
        result = compact(self.volume, job)
        for action in self.meanwhile:
            await action
        self.meanwhile.clear()
        return result

    async def rest(self) -> None:
        return


def test_a_log_that_cannot_be_read_is_left_alone_with_a_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            bad, good = broker.create("bad"), broker.create("good")
            fill(bad, 60)
            fill(good, 60, keys=10)
            content = damage(bad.segments[1].file.path)
            while await broker.cleaner.clean_dirtiest():
                pass
            metrics = broker.cleaner.metrics
            ((identity, reason),) = metrics.uncleanable.items()
            assert identity == (bad.topic_partition, bad.topic_id)
            assert "checksum" in reason
            assert good.first_dirty_offset > 0
            assert content_of(bad.segments[1].file.path) == content
            assert not unfinished_in(tmp_path)
            # A new topic of the same name is another log.
            broker.directory.delete(bad.topic_partition)
            broker.create("bad")
            await broker.cleaner.clean_dirtiest()
            assert not metrics.uncleanable

    run(main())


def test_a_log_is_cleaned_again_when_its_damage_was_found_and_mended(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 60)
            path = log.segments[1].file.path
            sound = content_of(path)
            damage(path)
            while await broker.cleaner.clean_dirtiest():
                pass
            metrics = broker.cleaner.metrics
            assert metrics.uncleanable
            assert log.first_dirty_offset == 0
            # As the scrub and the mender do, both between two looks of the cleaner.
            assert isolate_in(log, CorruptLog(path, 0, offset=log.segments[1].base_offset, next_offset=None))
            (damaged,) = log.segments[1].damage
            records = memoryview(sound)[damaged.position : damaged.position + damaged.size_bytes]
            assert await mend(log, log.segments[1], damaged, records)
            while await broker.cleaner.clean_dirtiest():
                pass
            assert not metrics.uncleanable
            assert log.first_dirty_offset > log.segments[1].base_offset

    run(main())


def test_passing_trouble_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        runner = ScriptedRunner()
        async with broker_in(tmp_path, runner) as broker:
            runner.volume = broker.volume
            log = broker.create()
            fill(log, 60)
            runner.errors = [
                DiskFull("write", "x", "no space"),
                JobFailed("DiskFull", "no space"),
                WorkerDied("gone"),
            ]
            for _ in range(3):
                assert not await broker.cleaner.clean_dirtiest()
            assert not broker.cleaner.metrics.uncleanable
            assert await broker.cleaner.clean_dirtiest()
            assert broker.cleaner.metrics.aborted_count == 3
            assert log.first_dirty_offset > 0

    run(main())


def test_a_log_that_kills_the_worker_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        runner = ScriptedRunner()
        async with broker_in(tmp_path, runner) as broker:
            fill(broker.create(), 60)
            runner.errors = [WorkerDied("killed")] * 10
            for _ in range(DEATHS_MAX):
                await broker.cleaner.clean_dirtiest()
            assert len(broker.cleaner.metrics.uncleanable) == 1
            assert not await broker.cleaner.clean_dirtiest()

    run(main())


def test_a_log_that_changes_under_the_job_is_not_swapped(tmp_path: Path) -> None:
    async def main() -> None:
        runner = ScriptedRunner()
        async with broker_in(tmp_path, runner) as broker:
            runner.volume = broker.volume
            log = broker.create()
            fill(log, 60)
            runner.meanwhile = [log.delete_records_before(20)]
            assert not await broker.cleaner.clean_dirtiest()
            assert not unfinished_in(tmp_path)
            assert [record.offset for record in read_all(log)] == list(range(20, 60))
            runner.meanwhile = [log.truncate_to(40)]
            assert not await broker.cleaner.clean_dirtiest()
            assert [record.offset for record in read_all(log)] == list(range(20, 40))
            log.high_watermark = 40
            assert await broker.cleaner.clean_dirtiest()

            async def delete() -> None:
                broker.directory.delete(log.topic_partition)

            runner.meanwhile = [delete()]
            fill(log, 60)
            assert not await broker.cleaner.clean_dirtiest()
            assert not (tmp_path / "t-0").exists()

    run(main())


def test_jobs_and_results_travel_as_json(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            log = broker.create()
            fill(log, 60, producer_id=3)
            job = plan_job(assess(log, START), CleanerConfig(), START)
            assert decode_job(encode_job(job)) == job
            result = compact(broker.volume, job)
            assert decode_reply(encode_result(result)) == result
            with pytest.raises(JobFailed, match="ValueError: odd") as caught:
                decode_reply(encode_failure(ValueError("odd")))
            assert caught.value.kind == "ValueError"

    run(main())


def test_the_worker_process_does_the_same_and_comes_back_after_its_death(tmp_path: Path) -> None:
    async def main() -> None:
        runner = WorkerRunner()
        async with broker_in(tmp_path, runner) as broker:
            log = broker.create()
            fill(log, 60)
            job = plan_job(assess(log, START), CleanerConfig(), START)
            assert await broker.cleaner.clean_dirtiest()
            assert log.first_dirty_offset == job.end_offset
            assert len(read_all(log)) == 60 - job.end_offset + 3
            first = runner.process_id
            assert first is not None
            os.kill(first, 9)
            fill(log, 120)
            while not await broker.cleaner.clean_dirtiest():
                pass
            assert runner.process_id not in (None, first)
            assert runner.starts_count == 2
            with pytest.raises(JobFailed, match="FileMissing"):
                await runner.run(replace(job, directory=str(tmp_path / "nowhere")))
            last = runner.process_id
            assert last is not None
            await runner.rest()
            assert not is_alive(last)

    run(main())


def test_without_descriptors_for_a_worker_the_log_is_cleaned_later(tmp_path: Path) -> None:
    async def main() -> None:
        runner = WorkerRunner()
        async with broker_in(tmp_path, runner) as broker:
            log = broker.create()
            fill(log, 60)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
            try:
                assert not await broker.cleaner.clean_dirtiest()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert broker.cleaner.metrics.aborted_count == 1
            assert broker.cleaner.metrics.uncleanable == {}
            assert await broker.cleaner.clean_dirtiest()
            await runner.rest()

    run(main())


@pytest.mark.timed
def test_a_throttled_job_ends_with_its_parent(tmp_path: Path) -> None:
    async def main() -> None:
        runner = WorkerRunner()
        async with broker_in(tmp_path, runner) as broker:
            log = broker.create()
            fill(log, 60)
            job = plan_job(assess(log, START), CleanerConfig(io_bytes_per_second=10.0), START)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await runner.run(job)
            # Cancelled: the worker noticed in the middle of its pause.
            assert runner.process_id is None
            started = time.monotonic()
            await runner.rest()
            assert time.monotonic() - started < 1

    run(main())


def test_the_loop_cleans_until_it_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_in(tmp_path) as broker:
            broker.cleaner.config = CleanerConfig(backoff_ms=1)
            log = broker.create()
            fill(log, 60)
            async with asyncio.TaskGroup() as tasks:
                cleaning = tasks.create_task(broker.cleaner.run())
                await until(lambda: log.first_dirty_offset > 0)
                fill(log, 100)
                await until(lambda: broker.cleaner.metrics.passes_count == 2)
                broker.cleaner.config = CleanerConfig(backoff_ms=1, is_enabled=False)
                fill(log, 300)
                await asyncio.sleep(0.02)
                assert broker.cleaner.metrics.passes_count == 2
                cleaning.cancel()

    run(main())
