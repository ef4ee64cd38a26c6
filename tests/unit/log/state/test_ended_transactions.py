"""Transactions whose end markers are in the log and not committed, when the log is read again: those markers
may still be cut off, so readers of committed records must not see what they end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.partition.partition_log import PartitionLog
from millrace.sim.volume import SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_marker
from tests.unit.log.support import NOW_MS, Disk, append, batch_of

COMMITTED = 3
"""The high watermark: behind the first transaction, inside the second."""


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig(segment_bytes=400))
    yield disk
    disk.dispose()


def _orderly(disk: Disk) -> PartitionLog:
    return disk.reopen()


def _crash(disk: Disk) -> PartitionLog:
    disk.run(disk.directory.save_checkpoints())
    disk.abandon()
    disk.open()
    return disk.log()


def _cut(disk: Disk) -> PartitionLog:
    log = disk.log()
    disk.run(log.truncate_to(log.log_end_offset - 1))
    return log


def write(log: PartitionLog, producer_id: int) -> None:
    data = batch_of(b"v" * 50, producer_id=producer_id, transactional=True, base_offset=log.log_end_offset)
    log.append_replicated(data)


def end(log: PartitionLog, producer_id: int, kind: int) -> None:
    marker = build_marker(
        ControlMarker(kind, 0),
        offset=log.log_end_offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=1,
    )
    log.append_replicated(memoryview(bytearray(marker)))


@pytest.mark.parametrize("again", [_orderly, _crash, _cut], ids=["orderly", "crash", "cut"])
@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
@pytest.mark.parametrize("rest", [0, 12], ids=["one segment", "segments behind"])
def test_what_ended_with_an_uncommitted_marker_is_not_stable_when_the_log_is_read_again(
    disk: Disk, again: Callable[[Disk], PartitionLog], kind: int, rest: int
) -> None:
    log = disk.log()
    write(log, 1)
    end(log, 1, kind)
    first_offset = log.log_end_offset
    write(log, 2)
    log.high_watermark = COMMITTED
    end(log, 2, kind)
    marker = log.log_end_offset - 1
    for number in range(rest):
        log.append_replicated(batch_of(b"v" * 50, producer_id=100 + number, base_offset=log.log_end_offset))
    log.append_replicated(batch_of(b"last", base_offset=log.log_end_offset))
    assert (len(log.segments) > 2) == bool(rest)
    assert log.last_stable_offset == first_offset

    log = again(disk)
    assert log.high_watermark == COMMITTED
    assert log.last_stable_offset == first_offset
    log.high_watermark = marker
    assert log.last_stable_offset == first_offset
    log.high_watermark = marker + 1
    assert log.last_stable_offset == marker + 1
    assert not log.producers.ended


def test_what_is_stable_does_not_end_before_the_log_begins(disk: Disk) -> None:
    log = disk.log()
    write(log, 1)
    append(log, b"plain")
    end(log, 1, ControlType.COMMIT)
    disk.run(log.delete_records_before(2))
    assert log.last_stable_offset == log.log_start_offset == 2
    log = disk.reopen()
    assert log.last_stable_offset == log.log_start_offset == 2
