"""After a crash: the torn tail goes, damage before good data stays in quarantine, everything else is made
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.log.cleaning.cleaner_policy import assess
from millrace.log.config import LogConfig
from millrace.log.errors import CorruptLog
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, save_damage
from millrace.log.state.epochs import load_epochs
from millrace.log.state.producer_state import decode_snapshot, encode_snapshot
from millrace.sim.volume import SimVolume
from millrace.wire.records import read_records, split_batches
from tests.unit.log.support import NOW_MS, OTHER_TOPIC_ID, PARTITION, TOPIC_ID, Disk, append, read_values

MakeDisk = Callable[[LogConfig], Disk]
LOG_0 = "/data/orders-0/00000000000000000000.log"


def restart(disk: Disk) -> PartitionLog:
    """Kill the process and start another."""
    disk.abandon()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    return log


def filled(disk: Disk, count: int = 10) -> PartitionLog:
    log = disk.log()
    for number in range(count):
        append(log, b"%d" % number + bytes(50))
    return log


def positions(log: PartitionLog) -> list[int]:
    return [position for position, _ in log.segments[0].headers()]


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 100])
def test_a_torn_tail_is_cut(disk: Disk, sim_volume: SimVolume, cut: int) -> None:
    log = filled(disk)
    last = positions(log)[-1]
    sim_volume.file(LOG_0).truncate(last + cut)
    log = restart(disk)
    assert [offset for offset, _ in read_values(log)] == list(range(9))
    assert sim_volume.file(LOG_0).size_bytes() == last
    append(log, b"again")
    assert read_values(log)[-1] == (9, b"again")


def test_garbage_behind_the_last_batch_is_cut(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk)
    sim_volume.file(LOG_0).write_at(log.size_bytes, bytes(5000))
    log = restart(disk)
    assert log.log_end_offset == 10
    assert disk.directory.recovered[PARTITION].truncated_bytes == 5000


@pytest.mark.parametrize("byte", [3, 9, 16, 18, 25, 70])
def test_damage_before_good_batches_is_put_in_quarantine(
    disk: Disk, sim_volume: SimVolume, byte: int
) -> None:
    """Whatever part of the batch is hit, length and format included: nothing behind it is lost, it is not
    served.
    """
    log = filled(disk)
    sim_volume.flip_bit(LOG_0, positions(log)[4] + byte, 5)
    for log in (restart(disk), disk.reopen(), restart(disk)):
        log.high_watermark = log.log_end_offset
        assert log.log_end_offset == 10
        before = log.read(0, 1 << 20, 10, True)
        assert before.size_bytes == positions(log)[4] or before.size_bytes == 4 * 119
        with pytest.raises(CorruptLog) as refused:
            log.read(4, 1 << 20, 10, True)
        assert refused.value.next_offset == 5
        assert [offset for offset, _ in read_values(log, 5)] == list(range(5, 10))
        assert sim_volume.exists(LOG_0.replace(".log", QUARANTINE_SUFFIX))
    append(log, b"more")
    assert read_values(log, 5)[-1] == (10, b"more")


def test_a_segment_that_lost_its_end_keeps_the_segments_behind_it(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    sim_volume.file(LOG_0).truncate(positions(log)[3] + 20)
    log = restart(disk)
    assert log.log_end_offset == 40
    with pytest.raises(CorruptLog) as refused:
        log.read(3, 1 << 20, 40, True)
    assert refused.value.next_offset == second
    assert [offset for offset, _ in read_values(log, second)] == list(range(second, 40))


def missing_from(log: PartitionLog, first_offset: int, next_offset: int) -> None:
    """Check that the log has a hole there, says so, and is whole around it."""
    end = log.high_watermark = log.log_end_offset
    for offset in range(first_offset, next_offset):
        with pytest.raises(CorruptLog) as refused:
            log.read(offset, 1 << 20, end, True)
        assert refused.value.next_offset == next_offset
    before: list[int] = []
    while len(before) < first_offset:
        found = log.read(len(before), 1 << 20, end, True).read()
        before += [
            record.offset for batch in split_batches(memoryview(found)) for record in read_records(batch)
        ]
    assert before == list(range(first_offset))
    assert [offset for offset, _ in read_values(log, next_offset)] == list(range(next_offset, end))


@pytest.mark.parametrize("kept", [0, 1, 3, 15])
def test_a_segment_that_ends_too_early_has_lost_batches(disk: Disk, sim_volume: SimVolume, kept: int) -> None:
    """No byte is wrong: a power loss took what one file had not flushed, and left it to the next one."""
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    assert kept < second
    sim_volume.file(LOG_0).truncate(positions(log)[kept])
    log = restart(disk)
    size_bytes = log.segments[0].size_bytes
    assert disk.directory.recovered[PARTITION].damage == [
        (LOG_0, DamagedRange(size_bytes, 0, kept, second)),
    ]
    missing_from(log, kept, second)
    # Whether the end was in order or not: the recovery point lies behind the hole by now.
    for start_again in (Disk.reopen, restart, Disk.reopen):
        log = start_again(disk)
        assert log.log_end_offset == 40
        assert log.segments[0].damage == (DamagedRange(size_bytes, 0, kept, second),)
        missing_from(log, kept, second)
    append(log, b"more")
    assert read_values(log, second)[-1] == (40, b"more")
    # And where all of it is read again.
    disk.abandon()
    sim_volume.remove("/data/recovery-point-offset-checkpoint")
    disk.open()
    missing_from(disk.log(), kept, second)


def test_a_segment_that_is_missing_between_others_is_missed(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    first, second, third = log.segments
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        sim_volume.remove(second.path(suffix))
    for start_again in (restart, Disk.reopen, restart):
        log = start_again(disk)
        assert [segment.base_offset for segment in log.segments] == [0, third.base_offset]
        assert log.segments[0].damage == (
            DamagedRange(first.size_bytes, 0, second.base_offset, third.base_offset),
        )
        missing_from(log, second.base_offset, third.base_offset)


def test_compaction_leaves_gaps_that_are_no_damage(disk: Disk, sim_volume: SimVolume) -> None:
    compacted = replace(disk.config, cleanup_compact=True)
    uncompacted, disk.config = disk.config, compacted
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    sim_volume.file(LOG_0).truncate(positions(log)[3])
    log = restart(disk)
    assert not disk.directory.recovered[PARTITION].damage
    assert [offset for offset, _ in read_values(log)] == [*range(3), *range(second, 40)]
    # They stay when the topic is no longer compacted: the cleaner has noted how far it came.
    disk.config = uncompacted
    log.first_dirty_offset = second
    disk.run(disk.directory.save_cleaner_offsets())
    sim_volume.remove("/data/recovery-point-offset-checkpoint")
    log = restart(disk)
    assert not disk.directory.recovered[PARTITION].damage
    assert [offset for offset, _ in read_values(log)] == [*range(3), *range(second, 40)]


def test_what_is_missing_stays_missing_when_the_topic_is_compacted_later(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    sim_volume.file(LOG_0).truncate(positions(log)[3])
    log = restart(disk)
    disk.config = replace(disk.config, cleanup_compact=True)
    log.set_config(disk.config)
    assert log.cleanable() == []
    assert assess(log, NOW_MS).end_offset == 0
    disk.abandon()
    sim_volume.remove("/data/recovery-point-offset-checkpoint")
    disk.open()
    missing_from(disk.log(), 3, second)


def test_nobody_misses_what_lies_below_the_logs_start(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    disk.run(log.flush())
    file = sim_volume.file(LOG_0)
    file.truncate(positions(log)[3])
    file.sync()
    # The segment is deleted, and its name comes back with the power.
    disk.run(log.delete_records_before(second + 1))
    disk.abandon()
    sim_volume.crash()
    assert sim_volume.exists(LOG_0)
    sim_volume.remove("/data/recovery-point-offset-checkpoint")
    disk.open()
    assert not disk.directory.recovered[PARTITION].damage
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(second + 1, 40))


def test_garbage_behind_a_complete_segment_is_cut(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    size_bytes = log.segments[0].size_bytes
    sim_volume.file(LOG_0).write_at(size_bytes, bytes(500))
    log = restart(disk)
    assert not disk.directory.recovered[PARTITION].damage
    assert log.segments[0].size_bytes == sim_volume.file(LOG_0).size_bytes() == size_bytes
    assert len(read_values(log)) == 40


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 10, 15, 16, 17])
@pytest.mark.parametrize("torn_bytes", [0, 20])
def test_a_log_is_cut_in_a_hole(disk: Disk, sim_volume: SimVolume, offset: int, torn_bytes: int) -> None:
    log = filled(disk, 40)
    assert log.segments[1].base_offset == 16
    sim_volume.file(LOG_0).truncate(positions(log)[3] + torn_bytes)
    log = restart(disk)
    disk.run(log.truncate_to(offset))
    end = offset if offset == 17 else min(offset, 3)
    for _ in range(2):
        assert log.log_end_offset == end
        assert log.high_watermark <= end
        log.high_watermark = end
        log.require_writable_tail()
        assert log.log_end_offset == end
        assert bool(log.segments[0].damage) == (offset == 17)
        log = disk.reopen()
    for number in range(end, 40):
        append(log, b"again %d" % number + bytes(50))
    for start_again in (Disk.reopen, restart):
        log = start_again(disk)
        log.high_watermark = log.log_end_offset
        if offset < 17:
            assert [offset for offset, _ in read_values(log)] == list(range(40))
        else:
            missing_from(log, 3, 16)


def test_a_log_is_cut_in_damage_in_the_middle(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 10)
    sim_volume.flip_bit(LOG_0, positions(log)[4] + 70)
    log = restart(disk)
    disk.run(log.truncate_to(4))
    assert log.segments[0].damage == ()
    append(log, b"again")
    log = disk.reopen()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(5))


def test_a_log_whose_start_lies_in_a_hole_is_cut_behind_it(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    sim_volume.file(LOG_0).truncate(positions(log)[3])
    log = restart(disk)
    disk.run(log.delete_records_before(10))
    disk.run(log.truncate_to(12))
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    append(log, b"again")
    log = disk.reopen()
    log.high_watermark = log.log_end_offset
    assert read_values(log) == [(10, b"again")]


def test_a_segments_quarantine_goes_with_it(disk: Disk, sim_volume: SimVolume) -> None:
    """A later segment with the same name is another one."""
    log = filled(disk, 40)
    second = log.segments[1]
    sim_volume.flip_bit(second.file.path, 70)
    log = restart(disk)
    assert log.segments[1].damage
    disk.run(log.truncate_to(second.base_offset))
    for number in range(second.base_offset, 40):
        append(log, b"again %d" % number + bytes(50))
    log.roll()
    log = disk.reopen()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(40))


def test_a_quarantine_without_a_segment_is_forgotten(disk: Disk, sim_volume: SimVolume) -> None:
    filled(disk, 10)
    disk.close()
    orphan = LOG_0.replace("0.log", "5" + QUARANTINE_SUFFIX)
    save_damage(sim_volume, orphan, (DamagedRange(0, 70, 5, 6),))
    disk.open()
    assert not sim_volume.exists(orphan)


def test_retention_by_time_waits_for_what_is_missing(disk: Disk, sim_volume: SimVolume) -> None:
    """A leader that deleted it would take it from the replicas that have it, too."""
    sim_volume.wall_ms = lambda: NOW_MS
    log = filled(disk, 40)
    second = log.segments[1].base_offset
    sim_volume.file(LOG_0).truncate(0)
    log = restart(disk)
    assert log.delete_old_segments(NOW_MS + 1000) == 0
    missing_from(log, 0, second)
    assert log.delete_old_segments(NOW_MS + disk.config.retention_ms + 1) > 0
    assert log.log_start_offset == 40


def test_only_what_comes_behind_the_recovery_point_is_read(disk: Disk) -> None:
    log = filled(disk, 30)
    disk.run(log.flush())
    disk.run(disk.directory.save_checkpoints())
    append(log, b"unflushed")
    size = log.size_bytes
    log = restart(disk)
    assert log.log_end_offset == 31
    assert disk.directory.recovered[PARTITION].scanned_bytes < size / 4


def test_lost_indexes_are_made_again(disk: Disk, sim_volume: SimVolume) -> None:
    log = filled(disk, 40)
    disk.close()
    wanted = {}
    for name in [name for name in sim_volume.names if "index" in name]:
        wanted[name] = sim_volume.read_bytes(name)
        sim_volume.remove(name)
    disk.open()
    log = disk.log()
    log.high_watermark = 40
    assert len(read_values(log, max_bytes=300)) == 40
    assert len(read_values(log, 17, max_bytes=300)) == 23
    disk.close()
    for name, content in wanted.items():
        if name.startswith("/data/orders-0/") and not name.startswith(log.segments[-1].path("")):
            assert sim_volume.read_bytes(name) == content, name


def test_a_torn_tail_is_cut_where_the_index_is_lost_as_well(disk: Disk, sim_volume: SimVolume) -> None:
    """To find where to begin, the index was made again from batches of which the last was torn, and the
    broker did not start."""
    log = filled(disk, 10)
    disk.run(log.flush())
    disk.run(disk.directory.save_checkpoints())
    append(log, b"unflushed" + bytes(100))
    last = positions(log)[-1]
    sim_volume.file(LOG_0).truncate(last + 70)
    disk.abandon()
    for name in [name for name in sim_volume.names if name.endswith("index")]:
        sim_volume.remove(name)
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log)] == list(range(10))
    assert sim_volume.file(LOG_0).size_bytes() == last
    assert len(read_values(log, 7, max_bytes=300)) == 3


def test_an_index_that_lies_is_not_believed(disk: Disk, sim_volume: SimVolume) -> None:
    filled(disk, 15)
    disk.close()
    index = LOG_0.replace(".log", ".index")
    size = len(sim_volume.read_bytes(index))
    sim_volume.write_bytes(index, b"\0\0\0\x01\0\0\0\x07" * (size // 8))
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log, 9)] == list(range(9, 15))


def test_kafkas_preallocated_indexes_are_understood(disk: Disk, sim_volume: SimVolume) -> None:
    filled(disk, 15)
    disk.close()
    for suffix, size in ((".index", 800), (".timeindex", 1200)):
        path = LOG_0.replace(".log", suffix)
        sim_volume.write_bytes(path, sim_volume.read_bytes(path).ljust(size, b"\0"))
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert [offset for offset, _ in read_values(log, 9)] == list(range(9, 15))
    append(log, b"more")
    disk.close()
    assert len(sim_volume.read_bytes(LOG_0.replace(".log", ".index"))) < 800


@pytest.mark.parametrize(
    "content", [None, b"", b"0\n", b"0\n2\n0 0\n", b"x", b"0\n1\n5 -\n", b"0\n2\n3 0\n2 5\n"]
)
def test_damaged_epochs_are_unknown_and_read_from_the_batches(
    disk: Disk, sim_volume: SimVolume, content: bytes | None
) -> None:
    log = disk.log()
    log.start_epoch(3)
    append(log, b"a")
    append(log, b"b")
    log.start_epoch(7)
    append(log, b"c")
    disk.close()
    path = "/data/orders-0/leader-epoch-checkpoint"
    if content is None:
        sim_volume.remove(path)
    else:
        sim_volume.write_bytes(path, content)
    assert load_epochs(sim_volume, "/data/orders-0") is None
    disk.open()
    log = disk.log()
    assert log.latest_epoch == 7
    assert log.epoch_end_offset(3) == (3, 2)
    assert log.epoch_end_offset(5) == (3, 2)
    assert log.epoch_end_offset(7) == (7, 3)
    assert log.epoch_end_offset(8) == (-1, -1)


@pytest.mark.parametrize("crash", [True, False])
def test_all_five_batches_are_remembered_across_a_restart(disk: Disk, crash: bool) -> None:
    """A snapshot holds one batch of a producer; a client may repeat any of the five it had in flight."""
    log = disk.log()
    for sequence in range(20):
        append(log, bytes(150), producer_id=5, sequence=sequence)
    assert len(log.segments) > 1
    log = restart(disk) if crash else disk.reopen()
    for sequence in range(15, 20):
        again = append(log, bytes(150), producer_id=5, sequence=sequence)
        assert again == (sequence, sequence, -1, True)
    assert not append(log, bytes(150), producer_id=5, sequence=20).duplicate


def test_a_damaged_snapshot_is_passed_over(disk: Disk, sim_volume: SimVolume) -> None:
    log = disk.log()
    for sequence in range(30):
        append(log, bytes(150), producer_id=5, sequence=sequence)
    disk.close()
    for name in [name for name in sim_volume.names if name.endswith(".snapshot")]:
        sim_volume.flip_bit(name, 20)
    disk.open()
    log = disk.log()
    assert append(log, bytes(150), producer_id=5, sequence=29).duplicate


def test_a_snapshot_says_what_it_was_told(disk: Disk) -> None:
    log = disk.log()
    append(log, b"a", b"b", producer_id=5, sequence=0, transactional=True)
    append(log, b"c", producer_id=6, sequence=8, epoch=3)
    data = encode_snapshot(log.producers)
    states = decode_snapshot(data, now_ms=NOW_MS)
    assert states is not None
    assert encode_snapshot(states) == data
    assert states.first_unstable_offset == 0
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1
        assert decode_snapshot(bytes(broken), now_ms=NOW_MS) is None
        assert decode_snapshot(data[:position], now_ms=NOW_MS) is None


@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"],
)
def test_a_damaged_checkpoint_costs_time_and_no_data(disk: Disk, sim_volume: SimVolume, name: str) -> None:
    filled(disk, 40)
    disk.close()
    sim_volume.write_bytes(f"/data/{name}", b"\xff\0garbage")
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert len(read_values(log)) == 40


def test_a_lost_topic_id_is_no_reason_to_delete(disk: Disk, sim_volume: SimVolume) -> None:
    filled(disk)
    disk.close()
    sim_volume.write_bytes("/data/orders-0/partition.metadata", b"version")
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    assert log.topic_id == TOPIC_ID
    assert len(read_values(log)) == 10
    assert disk.reopen().topic_id == TOPIC_ID


def test_a_topic_of_the_same_name_never_sees_the_old_ones_data(disk: Disk, sim_volume: SimVolume) -> None:
    old = filled(disk)
    new = disk.directory.create(PARTITION, OTHER_TOPIC_ID, disk.config)
    assert (new.log_start_offset, new.log_end_offset) == (0, 0)
    append(new, b"new")
    assert old.is_closed
    # Nobody has said that the old topic was deleted, so its files are kept for people to look at.
    assert [name for name in sim_volume.directories if name.endswith("-stray")]
    disk.close()
    disk.open()
    log = disk.directory.logs[PARTITION]
    log.high_watermark = log.log_end_offset
    assert log.topic_id == OTHER_TOPIC_ID
    assert read_values(log) == [(0, b"new")]


def test_progress_is_told(disk: Disk) -> None:
    filled(disk, 40)
    disk.abandon()
    disk.open()
    progress = disk.directory.progress
    assert not progress.is_clean
    assert progress.logs_done == progress.logs_total == 1
    assert 0 < progress.bytes_done <= progress.bytes_total
