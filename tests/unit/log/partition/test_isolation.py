"""Damage before the recovery point costs the batches it hit: the broker starts and serves the rest (F7)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.errors import CorruptLog
from millrace.log.partition.isolation import isolate_in
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX
from millrace.sim.volume import SimVolume
from millrace.wire.records import read_records, split_batches
from tests.unit.log.support import NOW_MS, Disk, append, read_values

BATCHES = 12
SEGMENTS = 3


class Stored:
    """Three closed segments of twelve batches with two records each, and an active one, all of it flushed and
    before the recovery point."""

    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", LogConfig(index_interval_bytes=100, retention_ms=-1))
        log = self.disk.log()
        for _ in range(SEGMENTS):
            for number in range(BATCHES):
                offset = log.log_end_offset
                append(
                    log,
                    b"%03d" % offset,
                    bytes(40),
                    timestamp=NOW_MS + offset,
                    producer_id=7,
                    sequence=offset,
                )
                assert number < BATCHES
            log.roll()
        append(log, b"active", timestamp=NOW_MS + 1000)
        self.wanted = read_values(log)
        self.batch_size = log.segments[1].size_bytes // BATCHES
        self.disk.run(log.flush())
        self.disk.run(self.disk.directory.save_checkpoints())

    def path(self, number: int, suffix: str = ".log") -> str:
        return self.disk.log().path + f"/{number * BATCHES * 2:020d}{suffix}"

    def break_length(self, segment: int, batch: int) -> tuple[int, int]:
        """Turn a bit of a batch's length; the offsets that are lost by it."""
        self.volume.flip_bit(self.path(segment), self.batch_size * batch + 9, 3)
        first = (segment * BATCHES + batch) * 2
        return first, first + 1

    def break_magic(self, segment: int, batch: int) -> tuple[int, int]:
        self.volume.flip_bit(self.path(segment), self.batch_size * batch + 16, 5)
        first = (segment * BATCHES + batch) * 2
        return first, first + 1

    def crash(self) -> PartitionLog:
        """Start again without an orderly end; no batch is behind the recovery point."""
        self.disk.abandon()
        self.disk.open()
        return self.log()

    def log(self) -> PartitionLog:
        log = self.disk.log()
        log.high_watermark = log.log_end_offset
        return log

    def check(self, log: PartitionLog, lost: tuple[int, ...]) -> None:
        """All but `lost` can be read, and those are refused with the offset at which good data goes on."""
        found: dict[int, bytes] = {}
        offset = 0
        while offset < log.log_end_offset:
            try:
                found.update(_some(log, offset))
                offset = max(found) + 1
            except CorruptLog as error:
                offset = error.next_offset or -1
        assert sorted(found.items()) == [record for record in self.wanted if record[0] not in lost]


def _some(log: PartitionLog, offset: int) -> dict[int, bytes]:
    # One batch at a time: within a longer answer it is the client who finds out.
    records = log.read(offset, 1, log.high_watermark, True)
    return {
        record.offset: record.value or b""
        for batch in split_batches(memoryview(records.read()))
        for record in read_records(batch)
    }


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.disk.dispose()


def test_a_flipped_header_before_the_recovery_point_does_not_keep_the_broker_from_starting(
    stored: Stored,
) -> None:
    lost = stored.break_length(2, 5)
    for offset in (24, 48, 72):
        stored.volume.remove(stored.path(0)[:-24] + f"{offset:020d}.snapshot")
    log = stored.crash()
    assert [damaged.first_offset for _, damaged in damage_of(log)] == [lost[0]]
    stored.check(log, lost)
    append(log, b"goes on", producer_id=7, sequence=72)


@pytest.mark.parametrize("batch", [0, 4, BATCHES - 1])
def test_a_flipped_header_is_met_by_a_reader_after_an_orderly_start(stored: Stored, batch: int) -> None:
    stored.disk.close()
    lost = stored.break_magic(1, batch)
    stored.disk.open()
    stored.check(stored.log(), lost)
    # It is written down: the next start knows it.
    stored.disk.close()
    stored.disk.open()
    assert [damaged.first_offset for _, damaged in damage_of(stored.log())] == [lost[0]]


def test_retention_goes_past_a_flipped_header(stored: Stored) -> None:
    stored.disk.close()
    for number in range(4):
        stored.volume.remove(stored.path(number, ".snapshot"))
    stored.volume.remove(stored.disk.path + "/orders-0/00000000000000000073.snapshot")
    stored.break_length(1, 3)
    stored.disk.config = LogConfig(index_interval_bytes=100, retention_ms=-1, retention_bytes=1500)
    stored.disk.open()
    log = stored.log()
    assert log.state.loaded_producers is None
    assert stored.disk.directory.enforce_retention(NOW_MS) > 0
    assert log.log_start_offset > 0


def test_one_log_that_cannot_be_read_does_not_end_retention(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log: PartitionLog, now_ms: int) -> int:
        raise CorruptLog("/data/orders-0/x.log", 0, offset=0, next_offset=None)

    monkeypatch.setattr(PartitionLog, "delete_old_segments", fail)
    assert stored.disk.directory.enforce_retention(NOW_MS) == 0


def test_a_wrong_index_entry_hides_no_records(stored: Stored) -> None:
    size = len(stored.volume.names[stored.path(1, OFFSET_INDEX_SUFFIX)].content)
    for position in range(size):
        for bit in (0, 1, 3, 6):
            stored.disk.close()
            stored.volume.flip_bit(stored.path(1, OFFSET_INDEX_SUFFIX), position, bit)
            stored.disk.open()
            log = stored.log()
            for offset in range(24, 49):
                assert min(found for found in _some(log, offset) if found >= offset) == offset
                assert log.read(offset, 200, 73, True).size_bytes > 0
            assert damage_of(log) == []


def test_a_segment_that_is_gone_is_missed_by_the_reader_who_comes_to_it(stored: Stored) -> None:
    stored.disk.close()
    for suffix in (".log", ".index", ".timeindex"):
        stored.volume.remove(stored.path(1, suffix))
    stored.disk.open()
    log = stored.log()
    stored.check(log, tuple(range(24, 48)))
    assert [(damaged.first_offset, damaged.next_offset) for _, damaged in damage_of(log)] == [(24, 48)]


@pytest.mark.parametrize("kept", [0, 1, 500])
def test_a_closed_segment_that_is_cut_while_it_is_served(stored: Stored, kept: int) -> None:
    stored.volume.file(stored.path(1)).truncate(kept)
    log = stored.log()
    first_lost = 24 + kept // stored.batch_size * 2
    stored.check(log, tuple(range(first_lost, 48)))


def test_a_closed_segment_that_goes_away_while_it_is_served(stored: Stored) -> None:
    stored.volume.remove(stored.path(0))
    stored.check(stored.log(), tuple(range(24)))


def test_gaps_of_compaction_are_no_damage(stored: Stored) -> None:
    stored.disk.close()
    for suffix in (".log", ".index", ".timeindex"):
        stored.volume.remove(stored.path(1, suffix))
    stored.disk.config = LogConfig(index_interval_bytes=100, cleanup_compact=True, cleanup_delete=False)
    stored.disk.open()
    log = stored.log()
    assert [offset for offset, _ in read_values(log)] == [*range(24), *range(48, 73)]
    assert damage_of(log) == []


def test_a_search_by_time_goes_past_damage(stored: Stored) -> None:
    lost = stored.break_magic(1, 4)
    log = stored.log()
    with pytest.raises(CorruptLog) as met:
        stored.disk.run(log.find_offset_by_timestamp(NOW_MS + lost[0]))
    assert isolate_in(log, met.value)
    found = stored.disk.run(log.find_offset_by_timestamp(NOW_MS + lost[0]))
    assert found is not None
    assert found.offset == lost[1] + 1


def test_damage_in_a_body_is_found_by_who_reads_the_records(stored: Stored) -> None:
    stored.volume.flip_bit(stored.path(1), stored.batch_size * 4 + 70, 2)
    log = stored.log()
    with pytest.raises(CorruptLog) as met:
        stored.disk.run(log.find_offset_by_timestamp(NOW_MS + 32))
    assert isolate_in(log, met.value)
    stored.check(log, (32, 33))


@pytest.mark.parametrize("byte, bit", [(7, 1), (7, 6), (5, 0), (15, 0), (13, 4)])
def test_an_offset_or_epoch_that_no_checksum_covers_is_judged_by_the_neighbours(
    stored: Stored, byte: int, bit: int
) -> None:
    stored.disk.close()
    stored.volume.flip_bit(stored.path(1), stored.batch_size * 4 + byte, bit)
    stored.volume.remove("/data/.kafka_cleanshutdown")
    stored.volume.remove("/data/recovery-point-offset-checkpoint")
    stored.disk.open()
    log = stored.log()
    stored.check(log, (32, 33))
    assert log.latest_epoch == 0


@pytest.mark.parametrize("batch", [0, 4, BATCHES - 1])
def test_an_offset_that_has_changed_is_met_by_who_looks_for_the_batch(batch: int) -> None:
    """On a leader, too, and long before the scrub: neither a wrong offset nor an empty answer."""
    for byte, bit in [*((7, bit) for bit in range(1, 8)), (6, 0), (5, 3), (3, 0), (0, 7)]:
        stored = Stored()
        stored.disk.close()
        first = (BATCHES + batch) * 2
        stored.volume.flip_bit(stored.path(1), stored.batch_size * batch + byte, bit)
        stored.disk.open()
        stored.check(stored.log(), (first, first + 1))
        assert [damaged.first_offset for _, damaged in damage_of(stored.log())] == [first], (byte, bit)
        stored.disk.dispose()


@pytest.mark.parametrize("bit", [4, 7, 8])
def test_a_length_that_has_grown_takes_no_good_batches_along(stored: Stored, bit: int) -> None:
    """It leads into the middle of a later batch, where nothing can be read."""
    stored.disk.close()
    stored.volume.flip_bit(stored.path(1), stored.batch_size * 4 + 11 - bit // 8, bit % 8)
    stored.disk.open()
    log = stored.log()
    with pytest.raises(CorruptLog) as met:
        list(log.segments[1].headers())
    assert met.value.position > stored.batch_size * 5
    assert isolate_in(log, met.value)
    assert [(each.first_offset, each.next_offset) for _, each in damage_of(log)] == [(32, 34)]
    stored.check(log, (32, 33))
