"""Batches that are staged and written together: as if each had been appended alone, or not at all."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from millrace.core.errors import MillraceError
from millrace.log.config import LogConfig
from millrace.log.errors import DiskFull, LogClosed, OutOfOrderSequence
from millrace.log.partition.appending import STAGED
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.partition.staging import StagedBatch
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, Disk, append, batch_of, read_values


class Owner:
    """Stages batches and keeps what it is told of them."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.written: list[tuple[object, int, int]] = []
        self.failed: list[tuple[object, type[MillraceError]]] = []
        log.staged_written = self._written

    def stage(self, token: object, *values: bytes, producer_id: int = -1, sequence: int = 0) -> bool:
        """Whether the batch is staged; if not, it is written already."""
        batch = batch_of(*values, producer_id=producer_id, sequence=sequence)
        appended = self.log.append_as_leader(batch, max(self.log.latest_epoch, 0), NOW_MS, token=token)
        return appended is STAGED

    def _written(self, staged: list[StagedBatch], error: MillraceError | None) -> None:
        self.log.high_watermark = self.log.log_end_offset
        for batch in staged:
            if error is None:
                self.written.append((batch[7], batch[1], batch[2]))
            else:
                self.failed.append((batch[7], type(error)))


@pytest.fixture
def owner(disk: Disk) -> Owner:
    log = disk.log()
    append(log, b"first")
    return Owner(log)


def test_nothing_of_a_staged_batch_is_seen_before_it_is_written(owner: Owner) -> None:
    log = owner.log
    size_bytes = log.size_bytes
    assert owner.stage("one", b"a", b"b", producer_id=3)
    assert owner.stage("two", b"c", producer_id=4)
    assert (log.log_end_offset, log.size_bytes, owner.written) == (1, size_bytes, [])
    assert log.producers.entries == {}
    log.write_staged()
    assert owner.written == [("one", 1, 2), ("two", 3, 3)]
    assert read_values(log) == [(0, b"first"), (1, b"a"), (2, b"b"), (3, b"c")]
    assert {number: entry.last_sequence for number, entry in log.producers.entries.items()} == {3: 1, 4: 0}


def test_one_write_serves_all(owner: Owner, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    file = owner.log.segments[-1].file
    write_at = type(file).write_at

    def count(self: object, position: int, data: bytes) -> None:
        writes.append(len(data))
        write_at(file, position, data)

    monkeypatch.setattr(type(file), "write_at", count)
    for number in range(10):
        owner.stage(number, b"x")
    owner.log.write_staged()
    assert len(writes) == 1
    assert [token for token, _, _ in owner.written] == list(range(10))


def test_a_producers_next_batch_is_staged_behind_its_first(owner: Owner) -> None:
    for sequence in range(4):
        assert owner.stage(sequence, b"%d" % sequence, producer_id=3, sequence=sequence)
    assert owner.written == []
    owner.log.write_staged()
    assert [token for token, _, _ in owner.written] == [0, 1, 2, 3]
    assert owner.log.producers.entries[3].last_sequence == 3


def test_whatever_does_not_follow_is_judged_by_what_is_written(owner: Owner) -> None:
    owner.stage("one", b"a", producer_id=3, sequence=0)
    owner.stage("two", b"b", producer_id=3, sequence=1)
    with pytest.raises(OutOfOrderSequence):
        owner.stage("gap", b"d", producer_id=3, sequence=5)
    assert [token for token, _, _ in owner.written] == ["one", "two"]
    owner.stage("three", b"c", producer_id=3, sequence=2)
    batch = batch_of(b"b", producer_id=3, sequence=1)
    again = owner.log.append_as_leader(batch, 0, NOW_MS, token="again")
    assert (again.duplicate, again.base_offset) == (True, 2)
    assert again is not STAGED
    assert read_values(owner.log) == [(0, b"first"), (1, b"a"), (2, b"b"), (3, b"c")]


def test_a_batch_fails_with_the_one_that_it_follows(owner: Owner, sim_volume: SimVolume) -> None:
    """The second one is too large to be staged in what is left of the segment, and would be written alone."""
    log = owner.log
    assert owner.stage("one", b"a", producer_id=3, sequence=0)
    log.segments[-1].size_limit = log.size_bytes + 100
    sim_volume.fail("write", errno.ENOSPC, path_contains=".log")
    with pytest.raises(DiskFull):
        owner.stage("two", b"b", producer_id=3, sequence=1)
    assert owner.failed == [("one", DiskFull)]
    assert read_values(log) == [(0, b"first")]
    assert [entry.batches for entry in log.producers.entries.values()] == [[]]


def _append_directly(owner: Owner, _: Disk) -> None:
    append(owner.log, b"direct")


def _append_own(owner: Owner, _: Disk) -> None:
    owner.log.append_own(batch_of(b"own"), 0)


def _roll(owner: Owner, disk: Disk) -> None:
    owner.log.roll()


def _close(owner: Owner, disk: Disk) -> None:
    disk.close()


def _truncate(owner: Owner, disk: Disk) -> None:
    disk.run(owner.log.truncate_to(3))


@pytest.mark.parametrize("change", [_append_directly, _append_own, _roll, _close, _truncate])
def test_whatever_else_changes_the_end_comes_after_staged_batches(
    owner: Owner, disk: Disk, change: Callable[[Owner, Disk], None]
) -> None:
    owner.stage("one", b"a", b"b")
    change(owner, disk)
    assert owner.written == [("one", 1, 2)]


def test_a_full_disk_fails_all_of_them_and_leaves_nothing_behind(owner: Owner, sim_volume: SimVolume) -> None:
    log = owner.log
    for number in range(3):
        owner.stage(number, bytes(200), producer_id=number)
    sim_volume.fail("write", errno.ENOSPC, path_contains=".log")
    log.write_staged()
    assert owner.failed == [(0, DiskFull), (1, DiskFull), (2, DiskFull)]
    assert read_values(log) == [(0, b"first")]
    assert [entry.batches for entry in log.producers.entries.values()] == [[], [], []]
    # The producers try again (the first batch after a failure is written alone), and nothing is missing, torn
    # or doubled.
    assert [owner.stage(number, b"again", producer_id=number) for number in range(3)] == [False, True, True]
    log.write_staged()
    assert [entry[:2] for entry in owner.written] == [(1, 2), (2, 3)]
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(0, b"first"), (1, b"again"), (2, b"again"), (3, b"again")]
    assert sim_volume.file(log.segments[0].file.path).size_bytes() == log.size_bytes


def test_a_deleted_log_takes_no_staged_batches(owner: Owner) -> None:
    owner.stage("late", b"x")
    owner.log.discard()
    assert owner.failed == [("late", LogClosed)]


def test_a_full_segment_is_rolled_between_staged_batches(disk: Disk) -> None:
    disk.config = LogConfig(segment_bytes=1000, retention_ms=-1)
    owner = Owner(disk.log())
    staged = sum(owner.stage(number, bytes(150)) for number in range(30))
    owner.log.write_staged()
    assert 10 < staged < 30
    assert len(owner.log.segments) > 4
    assert [offset for offset, _ in read_values(owner.log)] == list(range(30))


def test_staged_batches_survive_a_restart(owner: Owner, disk: Disk) -> None:
    for number in range(5):
        owner.stage(number, b"%d" % number, producer_id=number)
    owner.log.write_staged()
    disk.abandon()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [value for _, value in read_values(log)] == [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert set(log.producers.entries) == set(range(5))
