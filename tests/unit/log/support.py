"""What the log's tests share: a clock that stands still, batches with known content, a directory to open
again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.override import override
from millrace.log.config import LogConfig
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.disk.volume import Volume
from millrace.log.partition.appending import Appended
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.records import Record, build_batch, read_records, split_batches

T = TypeVar("T")

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
TOPIC_ID = TopicId(bytes(range(16)))
OTHER_TOPIC_ID = TopicId(bytes(range(1, 17)))


class AtOnce(ThreadPoolExecutor):
    """Does work for threads in the place where it is asked for: under virtual time nobody waits for a
    thread."""

    @override
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for the work gets it, whatever it is
            future.set_exception(error)
        return future


class FixedClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class CountingIds:
    def __init__(self) -> None:
        self._count = 0

    def topic_id(self) -> TopicId:
        self._count += 1
        return TopicId(self._count.to_bytes(16, "big"))


def batch_of(
    *values: bytes,
    timestamp: int = NOW_MS,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """A producer's batch, in a buffer that may be written to."""
    records = [Record(base_offset + number, timestamp, None, value) for number, value in enumerate(values)]
    is_idempotent = producer_id >= 0
    return memoryview(
        bytearray(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch if is_idempotent else -1,
                base_sequence=sequence if is_idempotent else -1,
                transactional=transactional,
                leader_epoch=leader_epoch,
            )
        )
    )


class Disk:
    """A volume with one log directory on it, which can be closed, abandoned and opened again."""

    def __init__(self, volume: Volume, path: str, config: LogConfig | None = None) -> None:
        self.volume = volume
        self.path = path
        self.config = config or LogConfig()
        self.clock = FixedClock()
        self.loop = asyncio.new_event_loop()
        if isinstance(volume, SimVolume):
            # Recovery uses several threads, and the simulated disk is made for one.
            self.loop.set_default_executor(ThreadPoolExecutor(1))
        self.directory = self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def open(self) -> LogDirectory:
        directory = LogDirectory(
            self.volume,
            self.path,
            clock=self.clock,
            ids=CountingIds(),
            chance=random.Random(1),
        )
        self.run(directory.open())
        self.run(directory.load(lambda partition: self.config))
        self.directory = directory
        return directory

    def log(self, partition: TopicPartition = PARTITION) -> PartitionLog:
        return self.directory.create(partition, TOPIC_ID, self.config)

    def close(self) -> None:
        self.run(self.directory.close())

    def reopen(self) -> PartitionLog:
        """An orderly end and a new start."""
        self.close()
        self.open()
        return self.log()

    def abandon(self) -> None:
        """The process is gone without a word: what it wrote is in the page cache."""
        for log in self.directory.logs.values():
            log.discard()
        lock = self.directory._lock
        if lock is not None:
            lock.release()

    def dispose(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def append(log: PartitionLog, *values: bytes, **options: Any) -> Appended:
    appended = log.append_as_leader(batch_of(*values, **options), max(log.latest_epoch, 0), NOW_MS)
    log.high_watermark = log.log_end_offset
    return appended


def read_values(
    log: PartitionLog, offset: int | None = None, max_bytes: int = 1 << 20
) -> list[tuple[int, bytes]]:
    """Offset and value of everything from `offset` on, as a consumer would collect it."""
    found: list[tuple[int, bytes]] = []
    at = log.log_start_offset if offset is None else offset
    while True:
        records = log.read(at, max_bytes, log.high_watermark, True)
        if records.size_bytes == 0:
            return found
        for batch in split_batches(memoryview(records.read())):
            for record in read_records(batch):
                if record.offset >= at:
                    assert record.value is not None
                    found.append((record.offset, record.value))
        at = found[-1][0] + 1
