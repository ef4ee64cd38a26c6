"""What a log knows of producers and epochs is read when it is needed, and saved when it changed."""

from __future__ import annotations

import errno

import pytest

from millrace.log.errors import StorageError
from millrace.log.state.epochs import load_epochs
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk, append


def test_nothing_is_read_before_somebody_asks(disk: Disk) -> None:
    append(disk.log(), b"one", producer_id=3)
    log = disk.reopen()
    assert log.state.loaded_producers is None
    assert log.producers.entries[3].last_sequence == 0
    assert log.state.loaded_producers is log.producers


def test_an_epoch_that_a_full_disk_refused_is_saved_by_the_next_flush(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    append(log, b"one")
    sim_volume.fail("write", errno.ENOSPC, path_contains="leader-epoch")
    log.start_epoch(4)
    saved = [log.state.are_epochs_saved]
    disk.run(log.flush())
    saved.append(log.state.are_epochs_saved)
    assert saved == [False, True]
    stored = load_epochs(sim_volume, log.path)
    assert stored is not None
    assert stored.latest == 4


def test_an_epoch_that_a_broken_disk_refused_fences_the_directory(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    append(log, b"one")
    sim_volume.fail("write", errno.EIO, path_contains="leader-epoch")
    with pytest.raises(StorageError):
        log.start_epoch(4)
    assert disk.directory.offline_reason is not None


def test_an_epoch_never_falls(disk: Disk) -> None:
    log = disk.log()
    log.start_epoch(4)
    with pytest.raises(AssertionError):
        log.start_epoch(3)
    assert log.latest_epoch == 4


def test_a_lost_file_of_epochs_is_made_up_for_by_the_batches(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for epoch in (2, 5):
        log.start_epoch(epoch)
        append(log, b"record")
    disk.close()
    sim_volume.remove(f"{log.path}/leader-epoch-checkpoint")
    disk.open()
    assert [tuple(start) for start in disk.log().epochs.starts] == [(2, 0), (5, 1)]


def test_a_cut_forgets_the_producers_and_their_next_use_reads_them_again(disk: Disk) -> None:
    log = disk.log()
    for sequence in range(3):
        append(log, b"record", producer_id=3, sequence=sequence)
    disk.run(log.truncate_to(1))
    assert log.producers.entries[3].last_sequence == 0
