"""What a follower makes of its leader's answers, with real logs on both sides."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.broker.replication.followed import Followed
from millrace.log.config import LogConfig
from millrace.log.errors import InvalidRecord
from millrace.log.partition.partition_log import PartitionLog
from millrace.replica.following import Fetched, Repair, StartInside, StartOver, Truncate, out_of_range
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk, append, batch_of, read_values

LEADER_ID, LEADER_EPOCH = 2, 5


class Pair:
    """A leader's log of 100 records in batches of ten, and a follower that is asked and answered by hand."""

    def __init__(self, *, seed: int = 2) -> None:
        self.leader_disk = Disk(SimVolume(random.Random(1)), "/leader", LogConfig())
        self.leader = self.leader_disk.log()
        self.leader.start_epoch(LEADER_EPOCH)
        for tens in range(10):
            append(self.leader, *(b"%d" % (10 * tens + ones) for ones in range(10)))
        self.volume = SimVolume(random.Random(seed))
        self.disk = Disk(self.volume, "/follower", LogConfig())
        self.follow()

    def follow(self) -> None:
        self.partition = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)
        self.partition.follow(LEADER_ID, LEADER_EPOCH)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def dispose(self) -> None:
        for disk in (self.leader_disk, self.disk):
            disk.abandon()
            disk.dispose()

    def delete_before(self, offset: int) -> None:
        self.leader_disk.run(self.leader.delete_records_before(offset))

    def fetch(self) -> Repair | None:
        """One round, as far as the repair that it asks for."""
        offset = self.log.log_end_offset
        start, end = self.leader.log_start_offset, self.leader.log_end_offset
        if not start <= offset <= end:
            return out_of_range(self.log, start)
        found = self.leader.read(offset, 1 << 20, end, True)
        records = memoryview(bytearray(found.read())) if found.size_bytes else None
        return self.partition.take_from_leader(offset, Fetched(self.leader.high_watermark, start, records))

    def catch_up(self) -> list[type[Repair]]:
        """All repairs until nothing is left to do."""
        done: list[type[Repair]] = []
        for _ in range(10):
            repair = self.fetch()
            if repair is not None:
                done.append(type(repair))
                self.disk.run(Followed(self.partition).carry_out(repair))
            elif self.log.log_end_offset == self.leader.log_end_offset:
                return done
        raise AssertionError(f"never catches up: {done}, {self.log}")


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.dispose()


def test_a_follower_takes_a_batch_that_its_leaders_log_begins_inside_of(pair: Pair) -> None:
    pair.delete_before(55)
    assert pair.catch_up() == [StartOver, StartInside]
    assert (pair.log.log_start_offset, pair.log.log_end_offset) == (55, 100)
    assert pair.log.segments[0].base_offset == 50, "the batch is kept whole"
    assert pair.fetch() is None
    assert pair.log.high_watermark == 100
    assert read_values(pair.log) == read_values(pair.leader)
    assert pair.log.epochs.starts == pair.leader.epochs.starts


def test_a_follower_that_is_behind_forgets_what_it_has_and_begins_inside_of_the_batch(pair: Pair) -> None:
    pair.catch_up()
    pair.disk.run(pair.log.truncate_to(30))
    pair.delete_before(99)
    assert pair.catch_up() == [StartOver, StartInside]
    assert read_values(pair.log) == [(99, b"99")]


@pytest.mark.parametrize("how", ["stop", "kill", "power loss"])
def test_a_log_that_begins_inside_of_a_batch_is_the_same_after_a_restart(pair: Pair, how: str) -> None:
    pair.delete_before(55)
    pair.catch_up()
    pair.fetch()
    if how == "stop":
        pair.disk.close()
    else:
        pair.disk.abandon()
    if how == "power loss":
        pair.volume.crash()
    pair.disk.open()
    pair.follow()
    assert (pair.log.log_start_offset, pair.log.log_end_offset) == (55, 100)
    pair.log.high_watermark = 100
    assert read_values(pair.log) == read_values(pair.leader)
    append(pair.leader, b"more")
    assert pair.catch_up() == []


class PowerLoss(Exception):
    pass


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_while_a_log_begins_inside_of_a_batch_leaves_one_that_catches_up(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of names and content, the disk keeps what the seed says."""

    async def never_done(_log: PartitionLog) -> None:
        raise PowerLoss

    pair = Pair(seed=seed)
    try:
        pair.delete_before(55)
        start_over = pair.fetch()
        assert start_over == StartOver(55)
        pair.disk.run(Followed(pair.partition).carry_out(start_over))
        start_inside = pair.fetch()
        assert isinstance(start_inside, StartInside)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "flush", never_done)
            with pytest.raises(PowerLoss):
                pair.disk.run(Followed(pair.partition).carry_out(start_inside))
        pair.disk.abandon()
        pair.volume.crash(lose_everything=False)
        pair.disk.open()
        pair.follow()
        pair.catch_up()
        pair.fetch()
        assert read_values(pair.log, 55) == read_values(pair.leader)
    finally:
        pair.dispose()


def test_a_log_that_ends_inside_of_its_leaders_batch_takes_the_batch_in_the_place_of_what_it_has(
    pair: Pair,
) -> None:
    """As a power loss can leave it between two steps of a start inside of a batch."""
    pair.delete_before(52)
    pair.disk.run(pair.log.truncate_fully_and_start_at(50))
    pair.log.append_replicated(
        batch_of(*(b"%d" % n for n in range(50, 55)), base_offset=50, leader_epoch=LEADER_EPOCH)
    )
    pair.log.high_watermark = 55
    pair.disk.run(pair.log.delete_records_before(52))
    assert pair.catch_up()[0] is Truncate
    assert read_values(pair.log) == read_values(pair.leader)


def test_records_that_nobody_asked_for_are_refused(pair: Pair) -> None:
    pair.catch_up()
    found = pair.leader.read(50, 1, 100, True)
    fetched = Fetched(100, 0, memoryview(bytearray(found.read())))
    with pytest.raises(InvalidRecord, match="cannot follow"):
        pair.partition.take_from_leader(100, fetched)
    assert pair.log.log_end_offset == 100
