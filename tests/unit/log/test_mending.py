"""Damaged batches come back from a replica, byte for byte or not at all (F7)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from millrace.log.config import LogConfig
from millrace.log.errors import CorruptLog
from millrace.log.mending import damage_of, mend
from millrace.log.partition_log import PartitionLog
from millrace.log.quarantine import QUARANTINE_SUFFIX, DamagedRange, load_damage, save_damage
from millrace.log.segment import Segment
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk, append, read_values


class Damaged:
    """A log of three batches in a sealed segment, the second of which is damaged, and how it was before."""

    def __init__(self) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
        log = self.disk.log()
        positions = []
        for value in (b"first", b"second", b"third"):
            positions.append(log.segments[0].size_bytes)
            append(log, value, b"more of " + value)
        self.whole = log.read(0, 1 << 20, log.high_watermark, True).read()
        self.disk.run(log.roll())
        append(log, b"fourth")
        start, end = positions[1], positions[2]
        self.segment.file.write_at(start + 70, b"!!!!")
        self.damaged = DamagedRange(start, end - start, 2, 4)
        self.segment.damage = (self.damaged,)
        volume = self.disk.volume
        save_damage(volume, self.segment.path(QUARANTINE_SUFFIX), self.segment.damage)
        self.copy = self.whole[start:end]
        self.rest = self.whole[start:]

    @property
    def log(self) -> PartitionLog:
        return self.disk.log()

    @property
    def segment(self) -> Segment:
        return self.log.segments[0]

    def mend(self, records: bytes) -> bool:
        return self.disk.run(mend(self.log, self.segment, self.damaged, memoryview(records)))


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    damaged = Damaged()
    yield damaged
    damaged.disk.dispose()


def test_a_replicas_copy_takes_the_place_of_the_damage(damaged: Damaged) -> None:
    assert damage_of(damaged.log) == [(damaged.segment, damaged.damaged)]
    with pytest.raises(CorruptLog):
        damaged.log.read(2, 1000, 7, True)
    assert damaged.mend(damaged.copy)
    assert damage_of(damaged.log) == []
    assert [value for _, value in read_values(damaged.log)] == [
        b"first",
        b"more of first",
        b"second",
        b"more of second",
        b"third",
        b"more of third",
        b"fourth",
    ]
    assert load_damage(damaged.disk.volume, damaged.segment.path(QUARANTINE_SUFFIX)) is None


def test_what_follows_the_range_is_left_alone(damaged: Damaged) -> None:
    assert damaged.mend(damaged.rest)
    whole = damaged.log.read(0, 1 << 20, 6, True).read()
    assert whole == damaged.whole


def test_a_copy_that_does_not_fit_changes_nothing(damaged: Damaged) -> None:
    broken = bytearray(damaged.copy)
    broken[-1] ^= 1
    for records in (b"", damaged.copy[:-1], bytes(broken), damaged.whole, damaged.copy + damaged.copy):
        assert not damaged.mend(records)
    assert damaged.segment.damage == (damaged.damaged,)
