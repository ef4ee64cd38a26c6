"""Batches that come back from a replica bring their transactions and their producers with them (F7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from millrace.log.partition.appending import Appended
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of, mend
from millrace.log.state.transactions import EndMarker
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from millrace.wire.records import split_batches
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of

TRANSACTIONAL = 7
IDEMPOTENT = 8
ABORTED_DATA, ABORT_MARKER, IDEMPOTENT_DATA = 2, 3, 4
"""Numbers of the batches in the log, which are their offsets, too."""


class Transactions:
    """A committed and an aborted transaction, an idempotent batch, and plain ones, also in another segment.
    Then a bit of one batch flips, and the next start checks all of the log without that batch."""

    def __init__(self, damaged_batch: int) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data")
        leader = self.leader()
        self._transaction(leader, 0, is_commit=True)
        self._transaction(leader, 1, is_commit=False)
        self.send_idempotent(leader)
        leader.append(batch_of(b"plain"), NOW_MS)
        whole = leader.log.read(0, 1 << 20, 6, True).read()
        leader.log.roll()
        leader.append(batch_of(b"later"), NOW_MS)
        self.aborted = self.log_aborted(leader.log)
        assert [first for _, first, _ in self.aborted] == [ABORTED_DATA]
        batches = split_batches(memoryview(whole))
        start = sum(len(batch) for batch in batches[:damaged_batch])
        self.copy = bytes(batches[damaged_batch])
        self.volume.flip_bit(leader.log.segments[0].file.path, start + len(self.copy) - 1, 2)
        self.disk.abandon()
        # Made of the whole log, and as lost as all that was not flushed.
        for name in [name for name in self.volume.names if name.endswith(".snapshot")]:
            self.volume.remove(name)
        self.disk.open()

    def leader(self) -> Partition:
        leader = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)
        leader.lead(1, 0)
        leader.log.high_watermark = leader.log.log_end_offset
        return leader

    def _transaction(self, leader: Partition, sequence: int, *, is_commit: bool) -> None:
        batch = batch_of(b"data", producer_id=TRANSACTIONAL, sequence=sequence, transactional=True)
        leader.append_transactional(batch, NOW_MS)
        leader.append_marker(EndMarker(TRANSACTIONAL, 0, is_commit, 0, 1), NOW_MS)

    def send_idempotent(self, leader: Partition) -> Appended:
        return leader.log.append_as_leader(
            batch_of(b"once", producer_id=IDEMPOTENT, sequence=5), leader.leader_epoch, NOW_MS
        )

    def mend(self) -> bool:
        log = self.disk.log()
        ((segment, damaged),) = damage_of(log)
        return self.disk.run(mend(log, segment, damaged, memoryview(self.copy)))

    def log_aborted(self, log: PartitionLog) -> list[tuple[int, int, int]]:
        return [
            (each.producer_id, each.first_offset, each.last_offset)
            for each in log.aborted_transactions(0, log.log_end_offset)
        ]

    def check(self) -> None:
        leader = self.leader()
        assert self.log_aborted(leader.log) == self.aborted
        assert leader.log.last_stable_offset == leader.log.high_watermark
        repeated = self.send_idempotent(leader)
        assert repeated.duplicate
        assert repeated.base_offset == IDEMPOTENT_DATA


@pytest.fixture(params=[ABORTED_DATA, ABORT_MARKER, IDEMPOTENT_DATA], ids=["data", "marker", "idempotent"])
def stored(request: pytest.FixtureRequest) -> Iterator[Transactions]:
    stored = Transactions(request.param)
    yield stored
    stored.disk.dispose()


def test_what_was_aborted_is_hidden_and_what_was_sent_is_known_again(stored: Transactions) -> None:
    assert stored.mend()
    stored.check()


def test_it_lasts_after_an_orderly_end(stored: Transactions) -> None:
    assert stored.mend()
    stored.disk.close()
    stored.disk.open()
    stored.check()


def test_it_lasts_after_a_crash(stored: Transactions) -> None:
    assert stored.mend()
    stored.disk.run(stored.disk.log().flush())
    stored.disk.run(stored.disk.directory.save_checkpoints())
    stored.disk.abandon()
    stored.volume.crash()
    stored.disk.open()
    stored.check()


def test_snapshots_made_without_the_batches_count_no_more(stored: Transactions) -> None:
    """One that an orderly end made while the range was in quarantine."""
    stored.disk.close()
    stored.disk.open()
    assert stored.mend()
    stored.disk.run(stored.disk.log().flush())
    stored.disk.abandon()
    stored.volume.crash()
    stored.disk.open()
    stored.check()


def test_what_is_appended_meanwhile_counts(stored: Transactions) -> None:
    log = stored.disk.log()
    ((segment, damaged),) = damage_of(log)
    leader = stored.leader()

    async def both() -> bool:
        async def send() -> None:
            await asyncio.sleep(0)
            leader.append(batch_of(b"meanwhile", producer_id=9, sequence=0), NOW_MS)

        done, _ = await asyncio.gather(mend(log, segment, damaged, memoryview(stored.copy)), send())
        return done

    assert stored.disk.run(both())
    assert log.producers.entries[9].last_sequence == 0
    stored.check()
