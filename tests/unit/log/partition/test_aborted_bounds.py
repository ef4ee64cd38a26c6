"""Which segments a reader of committed records has to look into, and what is read for that on the loop."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.partition.aborted_bounds import learn_aborted
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.txn_index import BLOCK_ENTRIES, ENTRY_SIZE, AbortedTransaction, TxnIndex, summarize
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlType
from tests.unit.log.segments.test_txn_index import CountedFile
from tests.unit.log.state.test_ended_transactions import end, write
from tests.unit.log.support import Disk, batch_of


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig(segment_bytes=700))
    yield disk
    disk.dispose()


def abort(log: PartitionLog, producer_id: int) -> None:
    write(log, producer_id)
    end(log, producer_id, ControlType.ABORT)


def fill(log: PartitionLog, segments: int) -> None:
    wanted = len(log.segments) + segments
    while len(log.segments) < wanted:
        log.append_replicated(batch_of(b"v" * 300, base_offset=log.log_end_offset))
    log.high_watermark = log.log_end_offset


def learn(disk: Disk, log: PartitionLog) -> None:
    disk.run(learn_aborted(disk.volume, log, log.unread_aborted()))


def looked_into(log: PartitionLog, end_offset: int) -> list[int]:
    assert log.unread_aborted() == []
    return [segment.base_offset for segment in log.state.aborted_bounds.touching(0, end_offset)]


def test_only_segments_with_transactions_of_the_range_are_looked_into(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TxnIndex.aborted_between
    looks = 0

    def counted(index: TxnIndex, offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        nonlocal looks
        looks += 1
        return original(index, offset, end_offset)

    monkeypatch.setattr(TxnIndex, "aborted_between", counted)
    log = disk.log()
    abort(log, 1)
    fill(log, 20)
    write(log, 2)
    began = log.log_end_offset - 1
    fill(log, 20)
    end(log, 2, ControlType.ABORT)
    ended_in = log.segments[-1].base_offset
    fill(log, 20)
    for is_again in (False, True):
        log = disk.reopen() if is_again else log
        learn(disk, log)
        active = log.segments[-1].base_offset
        assert looked_into(log, began) == [0, active]
        assert looked_into(log, began + 1) == [0, ended_in, active]
        looks = 0
        assert [each.producer_id for each in log.aborted_transactions(began, began + 1)] == [2]
        assert looks == 1, "in the segment of the marker"
        # A roll makes nothing unknown.
        fill(log, 1)
        assert looked_into(log, began) == [0, log.segments[-1].base_offset]


def test_indexes_are_read_in_a_thread_once_and_not_again(disk: Disk) -> None:
    log = disk.log()
    for number in range(6):
        abort(log, number)
        fill(log, 1)
    assert log.unread_aborted() == [], "what this process has entered it knows"
    log = disk.reopen()
    assert len(log.unread_aborted()) == 6
    learn(disk, log)
    assert log.unread_aborted() == []


def test_what_a_mended_range_brings_back_is_looked_into(disk: Disk) -> None:
    log = disk.log()
    write(log, 9)
    abort(log, 1)
    fill(log, 1)
    end(log, 9, ControlType.ABORT)
    fill(log, 2)
    second = log.segments[1]
    brought_back = second.txn_index.all_aborted()
    second.replace_aborted([])
    log.aborted_replaced()
    learn(disk, log)
    assert [each.producer_id for each in log.aborted_transactions(1, 2)] == [1]
    second.replace_aborted(brought_back)
    log.aborted_replaced()
    assert [each.producer_id for each in log.aborted_transactions(1, 2)] == [1, 9]
    learn(disk, log)
    assert [each.producer_id for each in log.aborted_transactions(1, 2)] == [1, 9]


def test_a_segment_that_was_sealed_once_and_written_again_is_looked_into(disk: Disk) -> None:
    log = disk.log()
    write(log, 1)
    fill(log, 4)
    learn(disk, log)
    sealed = log.segments[2]
    assert looked_into(log, 1) == [log.segments[-1].base_offset]
    disk.run(log.truncate_to(sealed.base_offset + 1))
    end(log, 1, ControlType.ABORT)
    assert log.segments[-1] is sealed
    fill(log, 2)
    assert [each.producer_id for each in log.aborted_transactions(0, 1)] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_every_range_gets_its_transactions_whatever_was_read_before(disk: Disk, seed: int) -> None:
    chance = random.Random(seed)
    log = disk.log()
    gone: dict[int, tuple[int, int]] = {}
    opened: dict[int, int] = {}
    for step in range(400):
        if opened and chance.random() < 0.45:
            producer_id = chance.choice(list(opened))
            kind = chance.choice([ControlType.ABORT, ControlType.COMMIT])
            end(log, producer_id, kind)
            first = opened.pop(producer_id)
            if kind == ControlType.ABORT:
                gone[producer_id] = (first, log.log_end_offset - 1)
        else:
            opened[step] = log.log_end_offset
            write(log, step)
        log.high_watermark = log.log_end_offset
        if chance.random() < 0.02:
            log = disk.reopen()
        elif chance.random() < 0.02:
            disk.run(log.truncate_to(log.log_end_offset - chance.randrange(20)))
            cut = log.log_end_offset
            opened = {who: first for who, first in opened.items() if first < cut}
            opened |= {who: first for who, (first, last) in gone.items() if first < cut <= last}
            gone = {who: each for who, each in gone.items() if each[1] < cut}
            opened |= {
                who: entry.current_txn_first_offset
                for who, entry in log.producers.entries.items()
                if entry.current_txn_first_offset >= 0
            }
        if chance.random() < 0.2:
            learn(disk, log)
        stable = log.last_stable_offset
        start = chance.randrange(max(stable, 1))
        stop = min(start + chance.choice((1, 10, 400)), stable)
        listed = {each.producer_id for each in log.aborted_transactions(start, stop)}
        needed = {who for who, (first, last) in gone.items() if first < stop and last >= start}
        assert needed <= listed
    assert len(log.segments) > 10


def test_a_read_of_a_learned_index_reads_no_block_that_cannot_matter(sim_volume: SimVolume) -> None:
    """Also not the first time, when thousands of short transactions ended under a long one."""
    sim_volume.make_directory("/data/orders-0")
    file = CountedFile(sim_volume)
    written = TxnIndex(file)
    for number in range(1, 10 * BLOCK_ENTRIES + 9):
        written.append(AbortedTransaction(number, number * 3, number * 3 + 2, 0))
    learned = TxnIndex(file)
    assert (written.is_known, learned.is_known) == (True, False)
    learned.learn(summarize(sim_volume, file.path))
    for index in (written, learned):
        assert (index.is_known, index.first_offset) == (True, 3)
        file.bytes_read = 0
        found, _ = index.aborted_between(30, 33)
        assert [each.producer_id for each in found] == [10]
        # One block, and the search.
        assert file.bytes_read <= BLOCK_ENTRIES * ENTRY_SIZE + 32 * 8
