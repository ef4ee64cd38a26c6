"""A log moves to another data directory: nothing of it changes, whatever happens meanwhile, and a crash at
any moment leaves one of the two."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.log.directories import mover
from millrace.log.directories.log_copies import read_origins
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.moving import LogCopy, OriginalGone
from millrace.log.errors import LogDirectoryOffline, StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of, mend
from millrace.log.segments.quarantine import DamagedRange
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker
from tests.unit.log.disks import Disks
from tests.unit.log.support import NOW_MS, PARTITION, append, read_values


@pytest.fixture
def disks(sim_volume: SimVolume) -> Iterator[Disks]:
    disks = Disks(sim_volume)
    yield disks
    disks.dispose()


def filled(disks: Disks, count: int = 120) -> PartitionLog:
    log = disks.log()
    for number in range(count):
        append(log, b"%d" % number, producer_id=7, sequence=number)
    return log


def copying(disks: Disks) -> LogCopy:
    """A copy that is under way, in the hands of the test."""
    target = next(each for each in disks.directories.all if each.path != disks.home())
    disks.directories.move(PARTITION, target)
    copy = disks.directories.mover.moves[PARTITION].copy
    copy.prepare()
    return copy


def names_of(volume: SimVolume, path: str) -> list[str]:
    return [entry.name for entry in volume.list_directory(path) if entry.is_directory]


def test_a_moved_log_is_the_same_log(disks: Disks, sim_volume: SimVolume) -> None:
    log = filled(disks)
    assert len(log.segments) > 3
    disks.run(log.delete_records_before(5))
    log.first_dirty_offset = 9
    values, epochs = read_values(log), log.epochs.starts
    assert disks.home() == "/a"
    disks.move("/b")
    ((original, copy),) = disks.moved
    assert original is log
    assert copy is disks.log()
    assert disks.home() == "/b"
    assert read_values(copy) == values
    assert (copy.log_start_offset, copy.log_end_offset, copy.high_watermark) == (5, 120, 120)
    assert (copy.first_dirty_offset, copy.epochs.starts) == (9, epochs)
    # Its producers are known, and it goes on.
    assert append(copy, b"119", producer_id=7, sequence=119).duplicate
    assert append(copy, b"120", producer_id=7, sequence=120).base_offset == 120
    disks.run(disks.directories.all[0].remove_due())
    assert names_of(sim_volume, "/a") == []
    assert names_of(sim_volume, "/b") == ["orders-0"]
    assert read_origins(sim_volume, "/b/orders-0") == []
    disks.close()
    disks.open()
    assert disks.home() == "/b"
    assert not disks.directories.recovered
    assert read_values(disks.log()) == [*values, (120, b"120")]
    assert disks.log().log_start_offset == 5
    assert append(disks.log(), b"120", producer_id=7, sequence=120).duplicate


def test_a_log_that_lost_a_files_end_moves_without_it(
    disks: Disks, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had noticed; the move does, and comes to its end at the next attempt."""
    monkeypatch.setattr(mover, "RETRY_S", 0.01)
    log = filled(disks)
    values = read_values(log)
    lost = log.segments[1]
    sim_volume.file(lost.file.path).truncate(lost.size_bytes - 10)
    disks.move("/b")
    assert disks.home() == "/b"
    ((_, missing),) = damage_of(disks.log())
    assert read_values(disks.log(), missing.next_offset) == values[missing.next_offset :]


def test_there_and_back(disks: Disks, sim_volume: SimVolume) -> None:
    values = read_values(filled(disks))
    disks.move("/b")
    disks.move("/a")
    disks.move("/b")
    disks.run(disks.directories.all[1].remove_due())
    assert read_values(disks.log()) == values
    disks.lose_power()
    disks.open()
    assert disks.home() == "/b"
    assert read_values(disks.log()) == values


def test_what_is_written_meanwhile_is_in_the_copy(disks: Disks) -> None:
    log = filled(disks)
    copy = copying(disks)
    disks.run(copy.copy_some(3000))
    assert 0 < copy.copied_bytes < log.size_bytes
    assert 0 < copy.end_offset < 120
    while copy.missing_bytes():
        for _ in range(5):
            append(log, b"meanwhile")
        disks.run(copy.copy_some(1500))
    assert copy.end_offset == log.log_end_offset
    append(log, b"last")
    values = read_values(log)
    disks.finish_moves()
    assert read_values(disks.log()) == values
    assert disks.home() == "/b"


def test_a_cut_and_other_records_in_its_place(disks: Disks) -> None:
    log = filled(disks)
    copy = copying(disks)
    while copy.missing_bytes():
        disks.run(copy.copy_some(100_000))
    disks.run(log.truncate_to(50))
    log.high_watermark = 50
    for number in range(50, 140):
        append(log, b"other %d" % number)
    values = read_values(log)
    disks.finish_moves()
    assert disks.home() == "/b"
    assert read_values(disks.log()) == values


def test_retention_and_deleted_records_hold_for_the_copy(disks: Disks, sim_volume: SimVolume) -> None:
    log = filled(disks)
    copy = copying(disks)
    disks.run(copy.copy_some(100_000))
    disks.run(log.delete_records_before(70))
    values = read_values(log)
    disks.finish_moves()
    assert read_values(disks.log()) == values
    assert disks.log().log_start_offset == 70
    base_offsets = [segment.base_offset for segment in disks.log().segments]
    stored = [
        int(entry.name[:20])
        for entry in sim_volume.list_directory("/b/orders-0")
        if entry.name.endswith(".log")
    ]
    assert stored == base_offsets
    disks.lose_power()
    disks.open()
    assert disks.log().log_start_offset == 70
    assert read_values(disks.log()) == values


def test_damage_that_was_mended_meanwhile_is_copied_again(disks: Disks, sim_volume: SimVolume) -> None:
    filled(disks)
    disks.run(disks.log().flush())
    path = disks.log().segments[0].file.path
    disks.abandon()
    sim_volume.flip_bit(path, 70)
    sim_volume.remove("/a/recovery-point-offset-checkpoint")
    disks.open()
    log = disks.log()
    assert log.segments[0].damage
    copy = copying(disks)
    while copy.missing_bytes():
        disks.run(copy.copy_some(100_000))
    sim_volume.flip_bit(path, 70)
    log.segments[0].damage = ()
    disks.finish_moves()
    assert disks.log().segments[0].damage == ()
    log = disks.log()
    log.high_watermark = log.log_end_offset
    assert len(read_values(log)) == 120


def test_damage_stays_in_quarantine(disks: Disks, sim_volume: SimVolume) -> None:
    filled(disks)
    disks.run(disks.log().flush())
    path = disks.log().segments[0].file.path
    disks.abandon()
    sim_volume.flip_bit(path, 70)
    sim_volume.remove("/a/recovery-point-offset-checkpoint")
    disks.open()
    damage = disks.log().segments[0].damage
    assert damage
    disks.move("/b")
    assert disks.log().segments[0].damage == damage
    disks.abandon()
    disks.open()
    assert disks.log().segments[0].damage == damage


@pytest.mark.parametrize("is_mended_meanwhile", [False, True])
@pytest.mark.parametrize("kept", [0, 1])
def test_what_a_segment_lost_can_be_mended_after_the_move(
    disks: Disks, sim_volume: SimVolume, kept: int, is_mended_meanwhile: bool
) -> None:
    log = filled(disks)
    values, second = read_values(log), log.segments[1].base_offset
    first = log.segments[0].file
    content = first.read_at(0, log.segments[0].size_bytes)
    position = [position for position, _ in log.segments[0].headers()][kept]
    first.truncate(position)
    disks.abandon()
    disks.open()
    lost = DamagedRange(position, 0, kept, second)
    log = disks.log()
    assert log.segments[0].damage == (lost,)

    def mend_it() -> None:
        segment = disks.log().segments[0]
        assert disks.run(mend(disks.log(), segment, lost, memoryview(content[position:])))

    if is_mended_meanwhile:
        copy = copying(disks)
        disks.run(copy.copy_some(1 << 20))
        mend_it()
        disks.finish_moves()
    else:
        disks.move("/b")
        assert disks.log().segments[0].damage == (lost,)
        disks.abandon()
        disks.open()
        assert disks.log().segments[0].damage == (lost,)
        mend_it()
    assert disks.home() == "/b"
    for _ in range(2):
        log = disks.log()
        log.high_watermark = log.log_end_offset
        assert damage_of(log) == []
        assert read_values(log) == values
        disks.abandon()
        disks.open()


def test_whoever_waits_for_the_disk_hears_of_the_copy(disks: Disks) -> None:
    log = filled(disks, 10)

    async def move_and_wait() -> None:
        copy = copy_of(disks.directories)
        await log.hold_flushes()
        append(log, b"waits")
        waiting = log.wait_flushed(11)
        assert waiting is not None
        taken_over = await copy.take_over(lambda original, copy: None)
        assert taken_over is not None
        await waiting
        assert taken_over.flushed_offset == 11

    def copy_of(directories: LogDirectories) -> LogCopy:
        copy = directories.mover.moves[PARTITION].copy
        copy.prepare()
        return copy

    disks.directories.move(PARTITION, disks.directories.at("/b"))
    disks.run(move_and_wait())


def test_a_cancelled_move_leaves_nothing(disks: Disks, sim_volume: SimVolume) -> None:
    log = filled(disks)
    copy = copying(disks)
    disks.run(copy.copy_some(3000))
    disks.directories.move(PARTITION, disks.directories.at("/a"))
    assert disks.directories.mover.moves == {}
    assert not log.is_moving
    disks.run(disks.directories.all[1].remove_due())
    assert names_of(sim_volume, "/b") == []
    assert disks.log() is log
    append(log, b"goes on")


def test_a_deleted_log_takes_its_copy_with_it(disks: Disks, sim_volume: SimVolume) -> None:
    filled(disks)
    copy = copying(disks)
    disks.run(copy.copy_some(3000))
    disks.directories.delete(PARTITION)
    with pytest.raises(OriginalGone):
        disks.run(copy.copy_some(3000))
    for directory in disks.directories.all:
        disks.run(directory.remove_due())
        assert names_of(sim_volume, directory.path) == []


def test_a_restart_goes_on_with_a_move(disks: Disks) -> None:
    values = read_values(filled(disks))
    copy = copying(disks)
    disks.run(copy.copy_some(3000))
    disks.abandon()
    disks.open()
    assert disks.home() == "/a"
    assert list(disks.directories.mover.moves) == [PARTITION]
    disks.finish_moves()
    assert disks.home() == "/b"
    disks.log().high_watermark = disks.log().log_end_offset
    assert read_values(disks.log()) == values


def test_a_full_disk_is_waited_for_and_a_failed_one_is_not(disks: Disks, sim_volume: SimVolume) -> None:
    log = filled(disks)
    copy = copying(disks)
    sim_volume.fail("write", errno.ENOSPC, path_contains="-future/")
    with pytest.raises(StorageError):
        disks.run(copy.copy_some(3000))
    assert disks.directories.all[1].offline_reason is None
    disks.finish_moves()
    assert disks.home() == "/b"

    sim_volume.fail("write", errno.EIO, path_contains="-future/", times=1)
    disks.move("/a")
    assert disks.directories.all[0].offline_reason is not None
    assert disks.home() == "/b"
    assert len(read_values(disks.log())) == log.log_end_offset
    with pytest.raises(LogDirectoryOffline):
        disks.directories.move(PARTITION, disks.directories.at("/a"))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_crash_at_any_moment_leaves_one_whole_log(seed: int) -> None:
    """Every write, rename or flush may be the last; then the power goes, or only the process."""
    chance = random.Random(seed)
    volume = SimVolume(random.Random(seed + 1))
    disks = Disks(volume)
    log = filled(disks, chance.randrange(1, 60))
    disks.run(log.flush())
    flushed = read_values(log)
    for number, path in enumerate(("/b", "/a", "/b")):
        if chance.random() < 0.5:
            append(disks.log(), b"before %s" % path.encode())
            disks.run(disks.log().flush())
            flushed = read_values(disks.log())
        operation = chance.choice(("write", "sync", "rename", "truncate", "remove"))
        volume.fail(operation, errno.EIO, after=chance.randrange(40), times=10_000)
        with contextlib.suppress(StorageError, LogDirectoryOffline):
            disks.move(path)
        if chance.random() < 0.5:
            disks.lose_power()
        else:
            disks.abandon()
            volume.faults.clear()
        disks.open()
        found = disks.log()
        found.high_watermark = found.log_end_offset
        assert read_values(found)[: len(flushed)] == flushed
        flushed = read_values(found)
        homes = [each.path for each in disks.directories.all if PARTITION in each.logs]
        assert len(homes) == 1
        disks.directories.mover.cancel(PARTITION)
        disks.run(disks.directories.all[0].remove_due())
        disks.run(disks.directories.all[1].remove_due())
        assert append(found, b"on", producer_id=10 + number).base_offset == len(flushed)
        disks.run(found.flush())
        flushed = read_values(found)
    disks.dispose()


def test_a_log_that_is_deleted_just_after_its_move_leaves_nothing(
    disks: Disks, sim_volume: SimVolume
) -> None:
    filled(disks, 10)

    def delete(original: PartitionLog, copy: PartitionLog) -> None:
        disks.loop.call_soon(disks.directories.delete, PARTITION)

    disks.directories.tell_of_moves(delete)
    disks.move("/b")
    assert disks.directories.get(PARTITION) is None
    for directory in disks.directories.all:
        disks.run(directory.remove_due())
        assert names_of(sim_volume, directory.path) == []


def taken_over(disks: Disks) -> LogCopy:
    """The copy has taken over, and nothing has been done to the original yet."""
    copy = copying(disks)
    assert disks.run(copy.take_over(lambda original, copy: None)) is not None
    return copy


def test_a_power_loss_that_brings_the_original_back_does_not_make_it_count(
    disks: Disks, sim_volume: SimVolume
) -> None:
    disks.run(filled(disks, 10).flush())
    taken_over(disks)
    append(disks.log(), b"later")
    disks.run(disks.log().flush())
    disks.lose_power()
    assert names_of(sim_volume, "/a") == names_of(sim_volume, "/b") == ["orders-0"]
    disks.open()
    assert disks.home() == "/b"
    log = disks.log()
    log.high_watermark = log.log_end_offset
    assert read_values(log)[-1] == (10, b"later")
    disks.run(disks.directories.all[0].remove_due())
    assert names_of(sim_volume, "/a") == []


def test_a_power_loss_that_takes_all_new_names_leaves_the_original(disks: Disks) -> None:
    log = filled(disks, 10)
    disks.run(log.flush())
    taken_over(disks)
    append(disks.log(), b"neither flushed nor acknowledged")
    disks.lose_power()
    disks.open()
    assert disks.home() == "/a"
    found = disks.log()
    found.high_watermark = found.log_end_offset
    assert len(read_values(found)) == 10
    # And goes where it was to go.
    disks.finish_moves()
    assert disks.home() == "/b"


def test_a_crash_between_the_renames_lets_the_copy_count(disks: Disks, sim_volume: SimVolume) -> None:
    values = read_values(filled(disks))
    copy = taken_over(disks)
    disks.abandon()
    sim_volume.rename("/b/orders-0", copy.path)
    disks.open()
    assert disks.home() == "/b"
    found = disks.log()
    found.high_watermark = found.log_end_offset
    assert read_values(found) == values
    disks.run(disks.directories.all[0].remove_due())
    assert names_of(sim_volume, "/a") == []


def test_an_original_whose_copy_is_gone_is_left_alone(disks: Disks, sim_volume: SimVolume) -> None:
    filled(disks)
    taken_over(disks)
    disks.abandon()
    sim_volume.remove_tree("/b/orders-0")
    disks.open()
    assert disks.directories.get(PARTITION) is None
    disks.run(disks.directories.all[0].remove_due())
    (name,) = names_of(sim_volume, "/a")
    assert name.endswith("-moved")


def test_an_aborted_transaction_at_the_last_moment_is_known_to_the_copy(disks: Disks) -> None:
    """Its index entry is written with the marker: it must not be left behind."""
    log = filled(disks, 3)
    append(log, b"aborted", producer_id=9, transactional=True)
    copy = copying(disks)
    disks.run(copy._flush_copy())
    marker = build_marker(
        ControlMarker(ControlType.ABORT, 0), offset=0, timestamp=NOW_MS, producer_id=9, producer_epoch=0
    )
    log.append_own(memoryview(bytearray(marker)), 0)
    log.high_watermark = log.log_end_offset
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 1
    heir = copy._switch(lambda original, copy: None)
    assert heir is not None
    assert heir.aborted_transactions(0, heir.log_end_offset) == expected
    disks.run(heir.flush())
    disks.lose_power()
    disks.open()
    found = disks.log()
    assert found.aborted_transactions(0, found.log_end_offset) == expected
