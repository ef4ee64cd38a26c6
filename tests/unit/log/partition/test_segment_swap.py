"""Replacing segments by compacted ones: a crash at any moment leaves the old or the new, never a mixture."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from millrace.log.errors import StorageError
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.segment import CLEANED_SUFFIX, LOG_SUFFIX, Segment, segment_path
from millrace.sim.volume import SimVolume
from tests.unit.log.support import Disk, append, batch_of, read_values

DIRECTORY = "/data/orders-0"


def three_segments(disk: Disk) -> PartitionLog:
    disk.config = replace(disk.config, cleanup_compact=True)
    log = disk.log()
    for start in (0, 10, 20):
        for number in range(start, start + 10):
            append(log, b"%d" % number)
        log.roll()
    disk.run(log.flush())
    return log


def write_cleaned(volume: SimVolume) -> list[tuple[int, bytes]]:
    """The first two segments become one, with every third record."""
    kept = [(offset, b"%d" % offset) for offset in range(0, 20, 3)]
    data = b"".join(bytes(batch_of(value, base_offset=offset, leader_epoch=0)) for offset, value in kept)
    file = volume.file(segment_path(DIRECTORY, 0, LOG_SUFFIX + CLEANED_SUFFIX), create=True)
    file.write_at(0, data)
    file.sync()
    for suffix in (".index", ".timeindex"):
        volume.file(segment_path(DIRECTORY, 0, suffix + CLEANED_SUFFIX), create=True).sync()
    volume.sync_directory(DIRECTORY)
    return kept


def test_readers_see_the_compacted_segments(disk: Disk, sim_volume: SimVolume) -> None:
    log = three_segments(disk)
    assert [segment.base_offset for segment in log.cleanable()] == [0, 10, 20]
    assert [segment.next_offset for segment in log.cleanable()] == [10, 20, 30]
    kept = write_cleaned(sim_volume)
    assert disk.run(log.replace_segments([0, 10], [0]))
    wanted = kept + [(offset, b"%d" % offset) for offset in range(20, 30)]
    assert read_values(log) == wanted
    assert read_values(log, 19)[0] == (20, b"20")
    log = disk.reopen()
    assert read_values(log) == wanted


def test_segments_beyond_the_high_watermark_are_not_offered(disk: Disk) -> None:
    log = three_segments(disk)
    log.high_watermark = 19
    assert [segment.base_offset for segment in log.cleanable()] == [0]


def test_segments_that_are_gone_are_not_replaced(disk: Disk, sim_volume: SimVolume) -> None:
    log = three_segments(disk)
    write_cleaned(sim_volume)
    disk.run(log.delete_records_before(12))
    assert not disk.run(log.replace_segments([0, 10], [0]))
    assert read_values(log)[0] == (12, b"12")
    assert not [name for name in sim_volume.names if name.endswith((".swap", ".cleaned"))]


class Crash(StorageError):
    """Stands for the process ending at this operation."""


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("step", range(14))
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    disk: Disk, sim_volume: SimVolume, monkeypatch: pytest.MonkeyPatch, step: int, loses_power: bool
) -> None:
    log = three_segments(disk)
    kept = write_cleaned(sim_volume)
    tail = [(offset, b"%d" % offset) for offset in range(20, 30)]
    old = [(offset, b"%d" % offset) for offset in range(30)]
    half = kept + [
        (offset, b"%d" % offset) for offset in range(10, 20) if (offset, b"%d" % offset) not in kept
    ]
    steps = iter(range(100))
    with monkeypatch.context() as patch:
        for name in ("rename", "sync_directory"):
            original = getattr(SimVolume, name)

            def interrupted(self: SimVolume, *arguments: str, original: object = original) -> None:
                if next(steps) == step:
                    raise Crash("stop", "here", "crash")
                assert callable(original)
                original(self, *arguments)

            patch.setattr(SimVolume, name, interrupted)
        with contextlib.suppress(Crash):
            disk.run(log.replace_segments([0, 10], [0]))
    disk.abandon()
    if loses_power:
        sim_volume.crash()
    disk.open()
    log = disk.log()
    log.high_watermark = log.log_end_offset
    found = read_values(log)
    assert found in (old, kept + tail, sorted(half) + tail), found
    assert not [name for name in sim_volume.names if name.endswith((".swap", ".cleaned"))]
    append(log, b"goes on")
    assert read_values(log)[-1] == (30, b"goes on")


def test_a_swapped_segment_is_an_ordinary_one(disk: Disk, sim_volume: SimVolume) -> None:
    log = three_segments(disk)
    write_cleaned(sim_volume)
    disk.run(log.replace_segments([0, 10], [0]))
    first = log.segments[0]
    assert isinstance(first, Segment)
    assert first.locate(4) is not None
