"""The scrub finds what the disk damaged long after it was flushed, wherever it is, and nothing else (F7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from millrace.core.override import override
from millrace.log.config import LogConfig
from millrace.log.directories.scrubber import Scrubber, ScrubConfig
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of
from millrace.log.segments import checkpoints
from millrace.log.state.transactions import EndMarker
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of, read_values

FAST = ScrubConfig(bytes_per_second=1 << 30, interval_ms=60_000)


class Scrubbing:
    """Two closed segments with transactions, one of them aborted, an active one, and a scrubber."""

    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", LogConfig(index_interval_bytes=200))
        leader = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)
        leader.lead(1, 0)
        sequence = 0
        for _ in range(2):
            for number in range(6):
                leader.append_transactional(
                    batch_of(
                        b"a",
                        bytes(50),
                        timestamp=NOW_MS + sequence,
                        producer_id=7,
                        sequence=sequence,
                        transactional=True,
                    ),
                    NOW_MS,
                )
                sequence += 2
                leader.append_marker(EndMarker(7, 0, number % 2 == 0, 0, 1), NOW_MS)
            leader.log.roll()
        leader.append(batch_of(b"active"), NOW_MS)
        leader.append(batch_of(b"last"), NOW_MS)
        self.disk.run(leader.log.flush())
        leader.log.high_watermark = leader.log.log_end_offset
        self.wanted = read_values(leader.log)
        self.aborted = leader.log.aborted_transactions(0, 100)
        assert len(self.aborted) == 6
        self.scrubber = Scrubber(lambda: [self.disk.directory], self.disk.clock, FAST)

    @property
    def log(self) -> PartitionLog:
        return self.disk.log()

    def scrub(self) -> None:
        self.disk.run(self.scrubber.scrub(self.disk.directory, self.log))

    def path(self, number: int, suffix: str) -> str:
        return self.log.segments[number].path(suffix)


@pytest.fixture
def scrubbing() -> Iterator[Scrubbing]:
    scrubbing = Scrubbing()
    yield scrubbing
    scrubbing.disk.dispose()


def test_a_sound_log_is_left_as_it_is(scrubbing: Scrubbing) -> None:
    before = {name: bytes(inode.content) for name, inode in scrubbing.volume.names.items()}
    scrubbing.scrub()
    metrics = scrubbing.scrubber.metrics
    assert (metrics.logs_count, metrics.damaged_count, metrics.rebuilt_count) == (1, 0, 0)
    assert metrics.bytes_read == scrubbing.log.size_bytes
    after = {name: bytes(inode.content) for name, inode in scrubbing.volume.names.items()}
    assert after.pop("/data/scrub-time-checkpoint").split() == [b"0", b"1", b"orders", b"0", b"1700000000000"]
    assert after == before


def test_a_bit_anywhere_in_a_closed_segment_is_found(scrubbing: Scrubbing) -> None:
    path = scrubbing.path(0, ".log")
    for position in range(len(scrubbing.volume.names[path].content)):
        scrubbing.volume.flip_bit(path, position, position % 8)
        scrubbing.scrub()
        found = damage_of(scrubbing.log)
        assert len(found) == 1, position
        assert found[0][1].position <= position < found[0][1].position + found[0][1].size_bytes
        scrubbing.volume.flip_bit(path, position, position % 8)
        scrubbing.log.segments[0].set_damage(())


def test_what_is_damaged_in_the_active_segment_is_found_unless_it_is_the_end(scrubbing: Scrubbing) -> None:
    path = scrubbing.path(2, ".log")
    size = len(scrubbing.volume.names[path].content)
    scrubbing.volume.flip_bit(path, size - 1, 1)
    scrubbing.scrub()
    assert damage_of(scrubbing.log) == []
    scrubbing.volume.flip_bit(path, size - 1, 1)
    scrubbing.volume.flip_bit(path, 65, 1)
    scrubbing.scrub()
    assert [damaged.position for _, damaged in damage_of(scrubbing.log)] == [0]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_bit_anywhere_in_a_file_beside_it_is_put_right(scrubbing: Scrubbing, suffix: str) -> None:
    path = scrubbing.path(1, suffix)
    right = bytes(scrubbing.volume.names[path].content)
    assert right
    for position in range(len(right)):
        scrubbing.volume.flip_bit(path, position, position % 8)
        scrubbing.log.segments[1].forget_indexes()
        scrubbing.scrub()
        if suffix != ".timeindex":
            assert bytes(scrubbing.volume.names[path].content) == right, position
        assert scrubbing.log.aborted_transactions(0, 100) == scrubbing.aborted
        assert read_values(scrubbing.log) == scrubbing.wanted


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_file_beside_it_that_is_gone_is_made_again(scrubbing: Scrubbing, suffix: str) -> None:
    path = scrubbing.path(1, suffix)
    right = bytes(scrubbing.volume.names[path].content)
    scrubbing.log.segments[1].forget_indexes()
    scrubbing.volume.remove(path)
    scrubbing.scrub()
    assert bytes(scrubbing.volume.names[path].content) == right
    assert not [name for name in scrubbing.volume.names if "/scrub/" in name]


def test_a_segment_that_is_gone_is_missed(scrubbing: Scrubbing) -> None:
    scrubbing.disk.close()
    path = "/data/orders-0/00000000000000000018.log"
    scrubbing.volume.remove(path)
    scrubbing.disk.open()
    scrubbing.scrub()
    assert [(damaged.first_offset, damaged.next_offset) for _, damaged in damage_of(scrubbing.log)] == [
        (18, 36)
    ]


def test_the_scrub_goes_on_with_the_log_that_has_waited_longest_after_a_restart(scrubbing: Scrubbing) -> None:
    scrubbing.scrub()
    scrubbing.disk.clock.now_ms += 59_999
    again = Scrubber(lambda: [scrubbing.disk.directory], scrubbing.disk.clock, FAST)
    assert scrubbing.disk.run(again._due()) == []
    scrubbing.disk.clock.now_ms += 1
    assert scrubbing.disk.run(again._due()) == [(scrubbing.disk.directory, scrubbing.log)]
    stored = checkpoints.read_offsets(scrubbing.volume, "/data/scrub-time-checkpoint")
    assert stored == {PARTITION: NOW_MS}


def test_it_reads_no_faster_than_it_may(scrubbing: Scrubbing) -> None:
    slow = ScrubConfig(bytes_per_second=scrubbing.log.size_bytes * 20, interval_ms=60_000)
    scrubbing.scrubber.config = slow
    started = scrubbing.disk.loop.time()
    scrubbing.scrub()
    assert scrubbing.disk.loop.time() - started >= 0.045


def test_no_rate_means_no_scrub(scrubbing: Scrubbing) -> None:
    scrubbing.scrubber.config = ScrubConfig(bytes_per_second=0, interval_ms=1000)
    assert scrubbing.disk.run(scrubbing.scrubber._due()) == []


def test_damage_is_told_to_who_can_mend_it(scrubbing: Scrubbing) -> None:
    told: list[bool] = []
    scrubbing.disk.directory.on_damage = lambda: told.append(True)
    scrubbing.volume.flip_bit(scrubbing.path(0, ".log"), 100, 1)

    async def run_for_a_moment() -> None:
        task = asyncio.ensure_future(scrubbing.scrubber.run())
        while not told:
            await asyncio.sleep(0)
        task.cancel()

    scrubbing.disk.run(run_for_a_moment())
    assert scrubbing.scrubber.metrics.damaged_count == 1


def test_a_scrub_keeps_no_thread_but_its_own_disks(
    scrubbing: Scrubbing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs is scrubbed, too: it must not take a thread from work that waits for no disk."""

    class Refusing(ThreadPoolExecutor):
        @override
        def submit(self, *_: object, **__: object) -> NoReturn:
            raise AssertionError("this waits for a disk")

    with ThreadPoolExecutor(1) as of_the_disk:
        monkeypatch.setattr(SimVolume, "lane", lambda *_: of_the_disk)
        scrubbing.disk.loop.set_default_executor(Refusing(1))
        scrubbing.disk.run(scrubbing.scrubber._due())
        scrubbing.volume.remove(scrubbing.path(0, ".index"))
        scrubbing.scrub()
    assert scrubbing.scrubber.metrics.rebuilt_count == 1
    assert scrubbing.scrubber.metrics.logs_count == 1
