"""What was aborted stays hidden after a power loss: the index of aborted transactions is as durable as the
log (found by the simulator, scenario F5)."""

from __future__ import annotations

import errno
import random

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.errors import StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.state.transactions import EndMarker
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of

PRODUCER = 7


def leader_of(disk: Disk, partition: TopicPartition = PARTITION) -> Partition:
    leader = Partition(partition, TOPIC_ID, disk.log(partition), TopicStats(), lambda _: None)
    leader.lead(1, 0)
    return leader


def abort_one(leader: Partition, sequence: int) -> None:
    batch = batch_of(b"aborted", producer_id=PRODUCER, sequence=sequence, transactional=True)
    leader.append_transactional(batch, NOW_MS)
    leader.append_marker(
        EndMarker(producer_id=PRODUCER, epoch=0, is_commit=False, coordinator_epoch=0, transaction_version=1),
        NOW_MS,
    )


def aborted_offsets(log: PartitionLog) -> list[int]:
    return [each.first_offset for each in log.aborted_transactions(0, log.log_end_offset)]


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "several segments"])
def test_a_power_loss_takes_no_entry(rolls: bool) -> None:
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data")
    leader = leader_of(disk)
    for number in range(3):
        abort_one(leader, number)
        if rolls:
            leader.log.roll()
    for number in range(3):
        leader.append(batch_of(b"plain %d" % number), NOW_MS)
    before = aborted_offsets(leader.log)
    disk.run(leader.log.flush())
    disk.run(disk.directory.save_checkpoints())
    for _ in range(2):
        # Twice: what the first recovery made must last as well.
        disk.abandon()
        volume.crash()
        disk.open()
        assert aborted_offsets(disk.log()) == before == [0, 2, 4]
    disk.dispose()


@pytest.mark.parametrize(
    "operation, code", [("write", errno.ENOSPC), ("open", errno.EMFILE)], ids=["full", "no descriptor"]
)
def test_an_entry_that_the_disk_refuses_waits_and_hides_the_aborted_meanwhile(
    operation: str, code: int
) -> None:
    """The marker is written, its entry is not: readers must not see what was aborted, and no flush may count
    before the entry is stored, since only what is behind the recovery point is made anew (F10)."""
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data")
    leader = leader_of(disk)
    volume.fail(operation, code, path_contains=".txnindex", times=3)
    abort_one(leader, 0)
    abort_one(leader, 1)
    assert aborted_offsets(leader.log) == [0, 2]
    with pytest.raises(StorageError):
        disk.run(leader.log.flush())
    assert disk.directory.offline_reason is None
    leader.append(batch_of(b"plain"), NOW_MS)
    disk.run(leader.log.flush())
    disk.run(disk.directory.save_checkpoints())
    disk.abandon()
    volume.crash()
    disk.open()
    assert aborted_offsets(disk.log()) == [0, 2]
    assert disk.log().log_end_offset == 5
    disk.dispose()


def test_a_disk_that_fails_at_an_entry_takes_the_directory_offline() -> None:
    volume = SimVolume(random.Random(1))
    disk = Disk(volume, "/data")
    leader = leader_of(disk)
    volume.fail("write", errno.EIO, path_contains=".txnindex")
    abort_one(leader, 0)
    assert aborted_offsets(leader.log) == [0]
    assert disk.directory.offline_reason is not None
    disk.abandon()
    disk.open()
    assert aborted_offsets(disk.log()) == [0]
    disk.dispose()
