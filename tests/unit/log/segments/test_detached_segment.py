"""A segment for a thread that reads: the same batches, nothing shared, nothing written."""

from __future__ import annotations

import pytest

from millrace.log.segments.detached_segment import detached
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, Disk, append


@pytest.fixture
def stored(disk: Disk) -> Disk:
    log = disk.log()
    for number in range(12):
        append(log, bytes(60), timestamp=NOW_MS + number)
    log.roll()
    append(log, b"active")
    return disk


def test_a_detached_segment_finds_the_same_batches(stored: Disk, sim_volume: SimVolume) -> None:
    segment = stored.log().segments[0]
    twin = detached(segment, sim_volume)
    assert [twin.locate(offset) for offset in range(12)] == [segment.locate(offset) for offset in range(12)]
    assert (twin.max_timestamp, twin.max_timestamp_offset) == (NOW_MS + 11, 11)


def test_what_is_appended_later_is_not_seen_and_waiting_index_entries_are_brought_along(
    disk: Disk, sim_volume: SimVolume
) -> None:
    log = disk.log()
    for _ in range(6):
        append(log, bytes(100))
    segment = log.segments[0]
    assert segment.offset_index.tail, "entries wait in memory"
    twin = detached(segment, sim_volume)
    entries, size_bytes = twin.offset_index.entries(), twin.size_bytes
    assert entries == segment.offset_index.entries()
    for _ in range(4):
        append(log, bytes(100))
    assert len(log.segments) == 1
    assert segment.offset_index.entries() != entries
    assert (twin.offset_index.entries(), twin.size_bytes) == (entries, size_bytes)
    assert twin.locate(6) is None


@pytest.mark.parametrize("suffix", [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX])
def test_an_index_that_cannot_be_used_is_done_without_and_left_as_it_is(
    stored: Disk, sim_volume: SimVolume, suffix: str
) -> None:
    segment = stored.log().segments[0]
    expected = [segment.locate(offset) for offset in range(12)]
    segment.forget_indexes()
    path = segment.path(suffix)
    sim_volume.write_bytes(path, b"\xff" * 37)
    twin = detached(segment, sim_volume)
    assert [twin.locate(offset) for offset in range(12)] == expected
    assert sim_volume.read_bytes(path) == b"\xff" * 37


def test_known_damage_is_passed_over_as_in_the_original(stored: Disk, sim_volume: SimVolume) -> None:
    segment = stored.log().segments[0]
    first, second = (position for position, _ in list(segment.headers())[3:5])
    segment.set_damage((DamagedRange(first, second - first, 3, 4),))
    twin = detached(segment, sim_volume)
    assert twin.damage == segment.damage
    assert [header.base_offset for _, header in twin.headers()] == [0, 1, 2, *range(4, 12)]
