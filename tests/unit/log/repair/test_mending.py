"""Damaged batches come back from a replica, byte for byte or not at all (F7)."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.errors import CorruptLog, StorageError
from millrace.log.inspection.verify import verify
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of, mend
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, load_damage, save_damage
from millrace.log.segments.segment import Segment
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, Disk, append, read_values


class Damaged:
    """A log of three batches in a sealed segment, the second of which is damaged, and how it was before."""

    def __init__(self) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
        log = self.disk.log()
        positions = []
        for value in (b"first", b"second", b"third"):
            positions.append(log.segments[0].size_bytes)
            append(log, value, b"more of " + value)
        self.whole = log.read(0, 1 << 20, log.high_watermark, True).read()
        log.roll()
        append(log, b"fourth")
        start, end = positions[1], positions[2]
        self.segment.file.write_at(start + 70, b"!!!!")
        self.damaged = DamagedRange(start, end - start, 2, 4)
        self.segment.damage = (self.damaged,)
        volume = self.disk.volume
        save_damage(volume, self.segment.path(QUARANTINE_SUFFIX), self.segment.damage)
        self.copy = self.whole[start:end]
        self.rest = self.whole[start:]

    @property
    def log(self) -> PartitionLog:
        return self.disk.log()

    @property
    def segment(self) -> Segment:
        return self.log.segments[0]

    def mend(self, records: bytes) -> bool:
        return self.disk.run(mend(self.log, self.segment, self.damaged, memoryview(records)))


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    damaged = Damaged()
    yield damaged
    damaged.disk.dispose()


def test_a_replicas_copy_takes_the_place_of_the_damage(damaged: Damaged) -> None:
    assert damage_of(damaged.log) == [(damaged.segment, damaged.damaged)]
    with pytest.raises(CorruptLog):
        damaged.log.read(2, 1000, 7, True)
    assert damaged.mend(damaged.copy)
    assert damage_of(damaged.log) == []
    assert [value for _, value in read_values(damaged.log)] == [
        b"first",
        b"more of first",
        b"second",
        b"more of second",
        b"third",
        b"more of third",
        b"fourth",
    ]
    assert load_damage(damaged.disk.volume, damaged.segment.path(QUARANTINE_SUFFIX)) is None


def test_what_follows_the_range_is_left_alone(damaged: Damaged) -> None:
    assert damaged.mend(damaged.rest)
    whole = damaged.log.read(0, 1 << 20, 6, True).read()
    assert whole == damaged.whole


def test_a_copy_that_does_not_fit_changes_nothing(damaged: Damaged) -> None:
    broken = bytearray(damaged.copy)
    broken[-1] ^= 1
    for records in (b"", damaged.copy[:-1], bytes(broken), damaged.whole, damaged.copy + damaged.copy):
        assert not damaged.mend(records)
    assert damaged.segment.damage == (damaged.damaged,)


class Holed:
    """A log of three segments of four batches each, two records in a batch, which lost something."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", config or LogConfig(index_interval_bytes=100))
        log = self.disk.log()
        self.content = []
        for _ in range(3):
            for number in range(4):
                offset = log.log_end_offset
                append(log, b"%02d" % offset, bytes(40), timestamp=NOW_MS + offset * 10 + number)
            self.content.append(log.segments[-1].file.read_at(0, 1 << 20))
            log.roll()
        append(log, b"active")
        self.wanted = read_values(log)
        self.size = len(self.content[0]) // 4

    @property
    def log(self) -> PartitionLog:
        log = self.disk.log()
        log.high_watermark = log.log_end_offset
        return log

    def lose_end(self, kept: int, torn_bytes: int = 0) -> None:
        """Of the first segment."""
        self.volume.file(self.log.segments[0].file.path).truncate(kept * self.size + torn_bytes)
        self.disk.abandon()
        self.disk.open()

    def mend(self, records: bytes) -> bool:
        segment, damaged = damage_of(self.log)[0]
        return self.disk.run(mend(self.log, segment, damaged, memoryview(records)))

    def check_whole(self) -> None:
        for start_again in (None, Disk.reopen, _die):
            if start_again is not None:
                start_again(self.disk)
            log = self.log
            assert damage_of(log) == []
            assert read_values(log) == self.wanted
            for offset, value in self.wanted:
                assert read_values(log, offset, max_bytes=1)[0] == (offset, value)
            for segment in log.segments[:-1]:
                starts = {position: header[0] + header[6] for position, header in segment.headers()}
                for relative, position in segment.offset_index.entries():
                    assert starts[position] == segment.base_offset + relative
            for offset in range(0, 24, 2):
                stamp = NOW_MS + offset * 10 + offset // 2 % 4
                found = self.disk.run(log.find_offset_by_timestamp(stamp))
                assert found is not None
                assert (found.timestamp, found.offset) == (stamp, offset)
        assert verify(self.volume, "/data").problems == []


def _die(disk: Disk) -> None:
    disk.abandon()
    disk.open()


@pytest.fixture
def holed() -> Iterator[Holed]:
    holed = Holed()
    yield holed
    holed.disk.dispose()


@pytest.mark.parametrize("torn_bytes", [0, 5, 100])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_lost_end_grows_again(holed: Holed, kept: int, torn_bytes: int) -> None:
    holed.lose_end(kept, torn_bytes)
    segment, damaged = damage_of(holed.log)[0]
    assert damaged == DamagedRange(kept * holed.size, torn_bytes, kept * 2, 8)
    # What a fetch brings goes on with batches that are there.
    assert holed.mend(holed.content[0][kept * holed.size :] + holed.content[1])
    assert segment.file.read_at(0, 1 << 20) == holed.content[0]
    assert segment.size_bytes == len(holed.content[0])
    assert not holed.volume.exists(segment.path(QUARANTINE_SUFFIX))
    holed.check_whole()


@pytest.mark.parametrize("torn_bytes", [0, 100])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_lost_end_comes_back_in_pieces(holed: Holed, kept: int, torn_bytes: int) -> None:
    holed.lose_end(kept, torn_bytes)
    for number in range(kept, 4):
        assert holed.mend(holed.content[0][number * holed.size : (number + 1) * holed.size])
        left = (DamagedRange((number + 1) * holed.size, 0, 2 * number + 2, 8),) if number < 3 else ()
        assert holed.log.segments[0].damage == left
        if left:
            with pytest.raises(CorruptLog):
                holed.log.read(2 * number + 2, 1000, 25, True)
            _die(holed.disk)
            assert holed.log.segments[0].damage == left
    holed.check_whole()


def test_torn_bytes_that_are_longer_than_what_was_lost_go(holed: Holed) -> None:
    holed.lose_end(3)
    holed.volume.file(holed.log.segments[0].file.path).write_at(3 * holed.size, bytes(1000))
    holed.disk.abandon()
    holed.volume.remove("/data/recovery-point-offset-checkpoint")
    holed.disk.open()
    assert damage_of(holed.log)[0][1] == DamagedRange(3 * holed.size, 1000, 6, 8)
    assert holed.mend(holed.content[0][3 * holed.size :])
    holed.check_whole()


def test_only_what_follows_without_a_gap_is_put_at_a_lost_end(holed: Holed) -> None:
    holed.lose_end(1)
    size, content = holed.size, holed.content[0]
    broken = bytearray(content[size:])
    broken[-1] ^= 1
    for records in (
        b"",
        content,
        content[size:-1],
        bytes(broken),
        content[2 * size :],
        content[size : 2 * size] + content[3 * size :],
        holed.content[1],
    ):
        assert not holed.mend(records)
    segment, damaged = damage_of(holed.log)[0]
    assert damaged == DamagedRange(size, 0, 2, 8)
    assert segment.file.size_bytes() == size
    assert [offset for offset, _ in read_values(holed.log, 8)] == list(range(8, 25))


@pytest.mark.parametrize("recovery_point_is_known", [True, False])
def test_a_crash_before_a_lost_end_is_confirmed(holed: Holed, recovery_point_is_known: bool) -> None:
    """The bytes are there, whole or not, and the quarantine is, too."""
    holed.lose_end(1)
    holed.volume.file(holed.log.segments[0].file.path).write_at(
        holed.size, holed.content[0][holed.size :][: 2 * holed.size + 10]
    )
    holed.disk.abandon()
    if not recovery_point_is_known:
        holed.volume.remove("/data/recovery-point-offset-checkpoint")
    holed.disk.open()
    _, damaged = damage_of(holed.log)[0]
    kept = 1 if recovery_point_is_known else 3
    assert damaged == DamagedRange(kept * holed.size, 3 * holed.size + 10 - kept * holed.size, kept * 2, 8)
    assert [offset for offset, _ in read_values(holed.log, 8)] == list(range(8, 25))
    assert holed.mend(holed.content[0][kept * holed.size :])
    holed.check_whole()


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_disk_that_fails_while_a_lost_end_is_put_back(holed: Holed, step: str) -> None:
    holed.lose_end(1)
    segment = holed.log.segments[0]
    holed.volume.fail(step, errno.EIO, path_contains=segment.path("").removesuffix("."))
    with pytest.raises(StorageError):
        holed.mend(holed.content[0][holed.size : 2 * holed.size])
    if step != "rename":
        # Of the bytes nobody knows whether they are on the disk.
        assert segment.damage[0][2:] == (2, 8)
        assert holed.disk.directory.offline_reason is not None
    _die(holed.disk)
    segment, damaged = damage_of(holed.log)[0]
    assert damaged[2:] == (2, 8)
    assert holed.mend(holed.content[0][holed.size :])
    holed.check_whole()


def test_a_segment_that_was_missing_gets_its_own_file_again() -> None:
    """Two segments do not fit into one."""
    holed = Holed(LogConfig(segment_bytes=600, index_interval_bytes=100))
    size, second = holed.size, holed.log.segments[1]
    assert [segment.base_offset for segment in holed.log.segments] == [0, 8, 16, 24]
    for suffix in (".log", ".index", ".timeindex"):
        holed.volume.remove(second.path(suffix))
    _die(holed.disk)
    assert damage_of(holed.log)[0][1] == DamagedRange(4 * size, 0, 8, 16)
    assert holed.mend(holed.content[1][: 2 * size])
    assert [segment.base_offset for segment in holed.log.segments] == [0, 8, 16, 24]
    segment, damaged = damage_of(holed.log)[0]
    assert (segment.base_offset, damaged) == (8, DamagedRange(2 * size, 0, 12, 16))
    _die(holed.disk)
    assert damage_of(holed.log)[0][1] == damaged
    assert holed.mend(holed.content[1][2 * size :])
    assert holed.log.segments[1].file.read_at(0, 1 << 20) == holed.content[1]
    holed.check_whole()
    holed.disk.dispose()


def test_what_lies_below_the_logs_start_needs_no_mending(holed: Holed) -> None:
    holed.lose_end(1)
    holed.disk.run(holed.log.delete_records_before(5))
    # The replicas have a batch that holds the start, and may have none before it.
    assert not holed.mend(holed.content[0][3 * holed.size :])
    assert holed.mend(holed.content[0][2 * holed.size :])
    assert damage_of(holed.log) == []
    assert [offset for offset, _ in read_values(holed.log, 5)] == list(range(5, 25))


def test_nobody_mends_what_was_deleted(holed: Holed) -> None:
    holed.lose_end(1)
    assert damage_of(holed.log)
    holed.log.log_start_offset = 8
    assert damage_of(holed.log) == []


def test_a_log_that_is_cut_while_it_is_mended(holed: Holed) -> None:
    holed.lose_end(1)
    log = holed.log
    segment, damaged = damage_of(log)[0]

    async def cut_meanwhile() -> bool:
        mending = asyncio.ensure_future(
            mend(log, segment, damaged, memoryview(holed.content[0][holed.size :]))
        )
        await asyncio.sleep(0)
        await log.truncate_to(6)
        return await mending

    assert not holed.disk.run(cut_meanwhile())
    assert (log.log_end_offset, segment.damage, segment.size_bytes) == (2, (), holed.size)
    append(log, b"again")
    holed.disk.reopen()
    assert read_values(holed.log)[-1] == (2, b"again")


def test_a_batch_that_comes_back_is_found_by_its_time(damaged: Damaged) -> None:
    """It was younger than those behind it, and the index was made without it."""
    log = damaged.log
    append(log, b"old", timestamp=NOW_MS - 1000)
    assert damaged.mend(damaged.copy)
    for segment in log.segments:
        entries = segment.time_index.entries()
        for position, header in segment.headers():
            assert position >= 0
            for timestamp, relative in entries:
                if header[0] + header[6] <= segment.base_offset + relative:
                    assert header[8] <= timestamp
