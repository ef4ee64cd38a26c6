"""A flipped bit in a small file beside a log costs time and no records: what contradicts the log is not
believed (F7, F8)."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator

import pytest

from millrace.core.ids import (
    NO_TOPIC_ID,
    TopicId,
    TopicPartition,
    format_topic_id,
    is_one_bit_off,
    parse_topic_id,
)
from millrace.log.config import LogConfig
from millrace.log.directories.scrubber import Scrubber, ScrubConfig
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of
from millrace.log.segments import checkpoints
from millrace.log.state.epochs import EpochStart
from millrace.sim.volume import SimVolume
from tests.unit.log.support import OTHER_TOPIC_ID, TOPIC_ID, Disk, append, read_values

EPOCHS = "/data/orders-0/leader-epoch-checkpoint"
END = 32


class Stored:
    """Four epochs of four batches each, in two segments."""

    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", LogConfig(index_interval_bytes=200, retention_ms=-1))
        log = self.disk.log()
        for epoch in (1, 3, 4, 9):
            log.start_epoch(epoch)
            for _ in range(4):
                append(log, b"%d" % log.log_end_offset, bytes(30))
            if epoch == 3:
                log.roll()
        self.wanted = read_values(log)
        self.starts = log.epochs.starts

    def stop(self) -> None:
        self.disk.close()

    def kill(self) -> None:
        self.disk.run(self.disk.log().flush())
        self.disk.run(self.disk.directory.save_checkpoints())
        self.disk.abandon()

    def start(self) -> PartitionLog:
        self.disk.open()
        return self.disk.log()


@pytest.fixture(params=["stop", "kill"])
def end(request: pytest.FixtureRequest) -> Callable[[Stored], None]:
    found: Callable[[Stored], None] = getattr(Stored, request.param)
    return found


@pytest.fixture
def stored() -> Iterator[Stored]:
    stored = Stored()
    yield stored
    stored.disk.dispose()


def bits_of(stored: Stored, name: str) -> Iterator[tuple[int, int]]:
    """One disk after the other, as the process left it but for one bit of the file, for each of its bits.

    It is copied and not written anew, which would take most of the time."""
    left = stored.volume
    for at in range(len(left.names[name].content)):
        for bit in range(8):
            stored.volume = stored.disk.volume = copy.deepcopy(left)
            stored.volume.flip_bit(name, at, bit)
            yield at, bit
    stored.volume = stored.disk.volume = left


@pytest.mark.parametrize(
    "name",
    [
        "/data/recovery-point-offset-checkpoint",
        "/data/cleaner-offset-checkpoint",
        EPOCHS,
        "/data/orders-0/partition.metadata",
    ],
)
def test_no_bit_of_a_small_file_changes_the_log(
    stored: Stored, name: str, end: Callable[[Stored], None]
) -> None:
    end(stored)
    for at, bit in bits_of(stored, name):
        stored.disk.open()
        for log in stored.disk.directory.logs.values():
            if is_one_bit_off(log.topic_id, TOPIC_ID):
                log.topic_id = NO_TOPIC_ID
        log = stored.disk.log()
        assert log.log_end_offset == END, (at, bit)
        # Where the oldest epoch begins says nothing that the log's start does not say.
        assert log.epochs.starts[-3:] == stored.starts[-3:], (at, bit)
        log.high_watermark = log.log_end_offset
        assert read_values(log) == stored.wanted, (at, bit)


def as_kafka_writes(content: bytes) -> bytes:
    return b"".join(b" ".join(line.split()) + b"\n" for line in content.splitlines())


def test_checksums_are_nothing_but_blanks_behind_a_row() -> None:
    content = checkpoints.format_lines(["orders 0 17", "orders-of-others 12 0"])
    assert as_kafka_writes(content) == b"0\n2\norders 0 17\norders-of-others 12 0\n"
    assert all(line.rstrip(b" \t") == b" ".join(line.split()) for line in content.splitlines())
    assert checkpoints.parse_lines(content, fields=3) == [
        ["orders", "0", "17"],
        ["orders-of-others", "12", "0"],
    ]


def test_what_kafka_wrote_is_believed(stored: Stored) -> None:
    path, right = "/data/log-start-offset-checkpoint", {TopicPartition("a", 0): 7, TopicPartition("b", 12): 0}
    stored.volume.write_bytes(path, b"0\n2\na 0 7\nb 12 0\n")
    assert checkpoints.read_offsets(stored.volume, path) == right


def test_no_bit_changes_a_row_and_a_damaged_one_leaves_the_others(stored: Stored) -> None:
    right = {TopicPartition("orders", 0): 1017, TopicPartition("orders", 1): 90, TopicPartition("pay", 12): 0}
    path = "/data/log-start-offset-checkpoint"
    checkpoints.write_offsets(stored.volume, path, right)
    content = stored.volume.names[path].content
    rows_at = content.index(b"orders")
    for at in range(len(content)):
        for bit in range(8):
            stored.volume.flip_bit(path, at, bit)
            found = checkpoints.read_offsets(stored.volume, path)
            assert found.items() <= right.items(), (at, bit)
            if at >= rows_at and content.count(b"\n") == 5:
                assert len(found) >= 2, (at, bit)
            stored.volume.flip_bit(path, at, bit)
    assert checkpoints.read_offsets(stored.volume, path) == right


@pytest.mark.parametrize("name", [checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS])
def test_no_bit_hides_records_or_shows_what_is_not_committed(
    stored: Stored, name: str, end: Callable[[Stored], None]
) -> None:
    log_start, high_watermark = 10, 21
    log = stored.disk.log()
    log.high_watermark = high_watermark
    stored.disk.run(log.delete_records_before(log_start))
    end(stored)
    for at, bit in bits_of(stored, f"/data/{name}"):
        log = stored.start()
        assert log.log_start_offset in (0, log_start), (at, bit)
        assert log.log_start_offset <= log.high_watermark <= high_watermark, (at, bit)
        assert name == checkpoints.LOG_START_OFFSETS or log.log_start_offset == log_start, (at, bit)
    # Without a flipped bit.
    log = stored.start()
    assert (log.log_start_offset, log.high_watermark) == (log_start, high_watermark)


def test_a_recovery_point_that_is_moved_up_within_the_log_is_not_believed(stored: Stored) -> None:
    """Else what a power loss tore before it would not be looked at."""
    stored.kill()
    path = f"/data/{checkpoints.RECOVERY_POINTS}"
    checkpoints.write_offsets(stored.volume, path, {stored.disk.log().topic_partition: 20})
    stored.volume.flip_bit(path, stored.volume.names[path].content.index(b" 20") + 1, 0)
    assert b" 30" in stored.volume.names[path].content
    stored.disk.open()
    log = stored.disk.log()
    assert stored.disk.directory.recovered[log.topic_partition].scanned_bytes == log.size_bytes


def test_a_recovery_point_behind_the_end_lets_all_be_looked_at(stored: Stored) -> None:
    stored.kill()
    checkpoints.write_offsets(
        stored.volume, f"/data/{checkpoints.RECOVERY_POINTS}", {stored.disk.log().topic_partition: 96}
    )
    log = stored.start()
    recovered = stored.disk.directory.recovered[log.topic_partition]
    assert recovered.scanned_bytes == log.size_bytes
    assert read_values(log) == stored.wanted


def test_a_log_does_not_begin_behind_its_end(stored: Stored, end: Callable[[Stored], None]) -> None:
    partition = stored.disk.log().topic_partition
    end(stored)
    checkpoints.write_offsets(stored.volume, f"/data/{checkpoints.LOG_START_OFFSETS}", {partition: 64})
    log = stored.start()
    assert log.log_start_offset == 0
    assert read_values(log) == stored.wanted


def test_a_high_watermark_behind_the_end_is_not_believed(stored: Stored) -> None:
    partition = stored.disk.log().topic_partition
    stored.stop()
    checkpoints.write_offsets(stored.volume, f"/data/{checkpoints.HIGH_WATERMARKS}", {partition: 64})
    assert stored.start().high_watermark == 0


def test_a_checkpoint_that_names_a_log_twice_is_damaged(stored: Stored) -> None:
    path = "/data/twice"
    stored.volume.write_bytes(path, b"0\n2\norders 0 5\norders 0 6\n")
    assert checkpoints.read_offsets(stored.volume, path) == {}


def test_an_epoch_without_batches_is_no_contradiction(stored: Stored, end: Callable[[Stored], None]) -> None:
    stored.disk.log().start_epoch(12)
    end(stored)
    assert set(stored.starts) <= {*stored.start().epochs.starts, EpochStart(12, END)}


def test_the_scrub_believes_many_batches_rather_than_their_old_epoch(stored: Stored) -> None:
    for epoch in (10, 11, 12, 13):
        stored.disk.log().start_epoch(epoch)
        append(stored.disk.log(), b"later")
    wanted = stored.disk.log().epochs.starts
    stored.stop()
    # As Kafka writes it: without checksums.
    content = as_kafka_writes(bytes(stored.volume.names[EPOCHS].content))
    stored.volume.write_bytes(EPOCHS, content.replace(b"\n3 8\n", b"\n2 8\n"))
    log = stored.start()
    assert log.epochs.starts != wanted
    scrubber = Scrubber(
        lambda: [stored.disk.directory],
        stored.disk.clock,
        ScrubConfig(bytes_per_second=1 << 30, interval_ms=1),
    )
    stored.disk.run(scrubber.scrub(stored.disk.directory, log))
    assert log.epochs.starts == wanted
    assert (scrubber.metrics.damaged_count, damage_of(log)) == (0, [])


def test_only_one_bit_makes_an_id_a_damaged_one() -> None:
    text = format_topic_id(TOPIC_ID)
    found = 0
    for at in range(len(text)):
        for bit in range(8):
            changed = text[:at] + chr(ord(text[at]) ^ 1 << bit) + text[at + 1 :]
            try:
                other = parse_topic_id(changed)
            except ValueError:
                continue
            if other != TOPIC_ID:
                found += 1
                assert is_one_bit_off(other, TOPIC_ID), changed
    assert found > 22
    assert not is_one_bit_off(TOPIC_ID, TOPIC_ID)
    assert not is_one_bit_off(OTHER_TOPIC_ID, TOPIC_ID)
    assert not is_one_bit_off(NO_TOPIC_ID, TopicId(bytes(15) + b"\x11"))
