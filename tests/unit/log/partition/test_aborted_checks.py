"""A flipped bit in an index of aborted transactions is found when the index is first read: readers of
committed records get nothing aborted, and lose nothing (F7)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millrace.log.config import LogConfig
from millrace.log.partition.aborted_bounds import learn_aborted
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlType
from tests.unit.log.state.test_ended_transactions import end, write
from tests.unit.log.support import Disk, append

LONG, SHORT, COMMITTED = 5, 6, 7


class Aborted:
    """Three segments with aborted transactions, of which one reaches from the first into the second and keeps
    the others unstable."""

    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", LogConfig(index_interval_bytes=200))
        log = self.disk.log()
        append(log, b"before")
        for number in range(3):
            for step in range(3):
                write(log, SHORT)
                if (number, step) == (0, 1):
                    write(log, LONG)
                write(log, COMMITTED)
                end(log, SHORT, ControlType.ABORT)
                end(log, COMMITTED, ControlType.COMMIT)
                if (number, step) == (1, 1):
                    end(log, LONG, ControlType.ABORT)
            if number < 2:
                log.roll()
        self.disk.run(log.flush())
        self.right = told_to_readers(log)
        assert len(self.right[-1]) == 10

    def path(self, number: int) -> str:
        return self.disk.log().segments[number].path(".txnindex")

    def learn(self) -> PartitionLog:
        log = self.disk.log()
        for _ in range(2):
            self.disk.run(learn_aborted(self.volume, log, log.unread_aborted()))
        assert log.unread_aborted() == []
        return log

    def stop(self) -> None:
        self.disk.close()

    def kill(self) -> None:
        self.disk.run(self.disk.directory.save_checkpoints())
        self.disk.abandon()


def told_to_readers(log: PartitionLog) -> list[list[tuple[int, int]]]:
    """Of the records up to each offset."""
    return [
        [(each.producer_id, each.first_offset) for each in log.aborted_transactions(0, end_offset)]
        for end_offset in range(1, log.log_end_offset + 1)
    ]


@pytest.mark.parametrize(
    "number, how",
    [(0, Aborted.stop), (1, Aborted.stop), (2, Aborted.stop), (0, Aborted.kill), (1, Aborted.kill)],
)
def test_no_bit_shows_or_hides_a_transaction(number: int, how: Callable[[Aborted], None]) -> None:
    """After a crash in what lies before the recovery point; behind it the index is made again."""
    aborted = Aborted()
    path = aborted.path(number)
    size = len(aborted.volume.names[path].content)
    how(aborted)
    for position in range(size):
        aborted.volume.flip_bit(path, position, position % 8)
        aborted.disk.open()
        assert told_to_readers(aborted.learn()) == aborted.right, position
        # A second start, without the damage.
        how(aborted)
    aborted.disk.dispose()


def test_a_sound_index_is_left_as_it_is() -> None:
    aborted = Aborted()
    paths = [aborted.path(number) for number in range(3)]
    before = [bytes(aborted.volume.names[path].content) for path in paths]
    aborted.stop()
    aborted.disk.open()
    inodes = [aborted.volume.names[path] for path in paths]
    assert told_to_readers(aborted.learn()) == aborted.right
    assert [bytes(inode.content) for inode in inodes] == before
    assert [aborted.volume.names[path] for path in paths] == inodes
    aborted.disk.dispose()


def test_an_index_that_cannot_be_made_again_is_served_as_it_is_and_read_once() -> None:
    """Without the snapshot nobody knows who had a transaction open when the segment began."""
    aborted = Aborted()
    path, snapshot = aborted.path(1), aborted.disk.log().segments[1].path(".snapshot")
    aborted.stop()
    aborted.volume.flip_bit(path, 9, 0)
    aborted.volume.remove(snapshot)
    aborted.disk.open()
    log = aborted.learn()
    assert len(told_to_readers(log)[-1]) == len(aborted.right[-1])
    assert log.unread_aborted() == []
    aborted.disk.dispose()
