"""A disk that refuses an index after the batch was written: the batch counts, once, and everybody is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import pytest

from millrace.core.errors import MillraceError
from millrace.log.config import LogConfig
from millrace.log.errors import DiskFailed, StorageError
from millrace.log.partition.appending import STAGED
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.staging import StagedBatch
from millrace.log.segments import segment as segment_module
from millrace.log.segments.segment import Segment
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, Disk, batch_of, read_values

CODES: Final = [errno.EMFILE, errno.EIO, errno.ENOSPC, errno.EROFS]
COUNT: Final = 30


@pytest.fixture
def disk(make_disk: Callable[[LogConfig], Disk], monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Every index entry goes to its file at once."""
    monkeypatch.setattr(segment_module, "STORE_AT_BYTES", 1)
    return make_disk(LogConfig(index_interval_bytes=0))


def _lead(log: PartitionLog, number: int) -> None:
    log.append_as_leader(batch_of(b"%d" % number), 0, NOW_MS)


def _stage(log: PartitionLog, number: int) -> None:
    log.append_as_leader(batch_of(b"%d" % number), 0, NOW_MS, token=number)
    log.write_staged()


def _write_own(log: PartitionLog, number: int) -> None:
    log.append_own(batch_of(b"%d" % number), 0)


def _replicate(log: PartitionLog, number: int) -> None:
    log.append_replicated(batch_of(b"%d" % number, base_offset=number, leader_epoch=0))


WAYS: Final = [_lead, _stage, _write_own, _replicate]


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("way", WAYS)
def test_one_offset_has_one_batch_when_the_index_is_refused(
    disk: Disk, sim_volume: SimVolume, way: Callable[[PartitionLog, int], None], code: int
) -> None:
    log = disk.log()
    for number in range(COUNT):
        if number == 10:
            # The first refusal strikes behind the write of the batch.
            sim_volume.fail("write", code, path_contains="index", times=4)
        way(log, number)
    log.high_watermark = log.log_end_offset
    expected = [(number, b"%d" % number) for number in range(COUNT)]
    assert read_values(log) == expected
    disk.abandon()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert disk.directory.recovered[PARTITION].damage == []
    assert [read_values(log, number)[0] for number in range(COUNT)] == expected


def test_a_failing_disk_is_given_up_by_the_next_flush(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for number in range(5):
        _lead(log, number)
    sim_volume.fail("write", errno.EIO, path_contains=".index", times=2)
    _lead(log, 5)
    assert disk.directory.offline_reason is None
    disk.run(log.flush())
    assert disk.directory.offline_reason is not None


class Owner:
    """Keeps what it is told of staged batches."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.told: list[tuple[object, type[MillraceError] | None]] = []
        log.staged_written = self._written

    def stage(self, token: str, producer_id: int, sequence: int) -> bool:
        batch = batch_of(token.encode(), producer_id=producer_id, sequence=sequence)
        return self.log.append_as_leader(batch, 0, NOW_MS, token=token) is STAGED

    def _written(self, staged: list[StagedBatch], error: MillraceError | None) -> None:
        self.told += [(batch[7], None if error is None else type(error)) for batch in staged]


def test_a_bug_behind_the_write_is_told_to_all_who_staged_and_doubles_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.log()
    _lead(log, 0)
    owner = Owner(log)
    original = Segment.note

    def fail_at_third(segment: Segment, position: int, size: int, base: int, last: int, time: int) -> None:
        if base == 3:
            raise RuntimeError("a bug")
        original(segment, position, size, base, last, time)

    monkeypatch.setattr(Segment, "note", fail_at_third)
    for number in range(1, 5):
        assert owner.stage(f"token {number}", producer_id=number, sequence=0)
    assert isinstance(log.write_staged(), DiskFailed)
    assert owner.told == [(f"token {number}", DiskFailed) for number in range(1, 5)]
    monkeypatch.setattr(Segment, "note", original)

    # All of it is in the file, and the producers that send again are told where.
    again = log.append_as_leader(batch_of(b"token 4", producer_id=4, sequence=0), 0, NOW_MS)
    assert (again.duplicate, again.base_offset) == (True, 4)
    _lead(log, 5)
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(6))


@pytest.mark.parametrize("way", [_lead, _write_own, _replicate])
def test_a_bug_behind_the_write_gives_no_offset_twice(
    disk: Disk, way: Callable[[PartitionLog, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in the file, whoever was told that it failed: the log's end is behind it."""
    log = disk.log()
    original = Segment.note
    bugs = iter([RuntimeError("a bug")])

    def fail_once(segment: Segment, position: int, size: int, base: int, last: int, time: int) -> None:
        if base == 3 and (bug := next(bugs, None)) is not None:
            raise bug
        original(segment, position, size, base, last, time)

    monkeypatch.setattr(Segment, "note", fail_once)
    for number in range(3):
        way(log, number)
    with pytest.raises(RuntimeError):
        way(log, 3)
    assert log.log_end_offset == 4
    way(log, 4)
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(number, b"%d" % number) for number in range(5)]


def test_an_owner_that_fails_does_not_fail_the_next_append(disk: Disk) -> None:
    log = disk.log()
    _lead(log, 0)
    owner = Owner(log)

    def fail(staged: list[StagedBatch], error: MillraceError | None) -> None:
        raise RuntimeError("a bug")

    log.staged_written = fail
    assert owner.stage("one", producer_id=1, sequence=0)
    _lead(log, 2)
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == [0, 1, 2]


def test_a_roll_that_fails_leaves_no_file_for_the_next_start(disk: Disk, sim_volume: SimVolume) -> None:
    """The segment goes on and grows beyond the offset: two files would then claim the same records."""
    log = disk.log()
    for number in range(5):
        _lead(log, number)
    sim_volume.fail("truncate", errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageError):
        log.roll()
    for number in range(5, 10):
        _lead(log, number)
    log.roll()
    _lead(log, 10)
    disk.abandon()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert disk.directory.recovered[PARTITION].damage == []
    assert [offset for offset, _ in read_values(log)] == list(range(11))
