"""A walk over the headers of a segment: what it meets, what it leaves out, and what it refuses."""

from __future__ import annotations

import struct

import pytest

from millrace.log.errors import CorruptLog
from millrace.log.segments.header_walk import RELATIVE_OFFSET_MAX, WALK_BYTES, walk_headers
from millrace.log.segments.quarantine import DamagedRange
from millrace.sim.volume import SimVolume
from tests.unit.log.support import batch_of

PATH = "/d/00000000000000000010.log"
BASE = 10


def stored(volume: SimVolume, *batches: bytes | memoryview) -> list[int]:
    """The positions at which they begin."""
    volume.make_directory("/d")
    volume.write_bytes(PATH, b"".join(batches))
    positions = [0]
    for batch in batches:
        positions.append(positions[-1] + len(batch))
    return positions


def walk(volume: SimVolume, end: int, *damaged: DamagedRange, position: int = 0) -> list[tuple[int, int]]:
    """Position and base offset of each header."""
    found = walk_headers(volume.file(PATH), BASE, damaged, position=position, end=end)
    return [(at, fields[0]) for at, fields in found]


def some_batches() -> list[memoryview]:
    return [
        batch_of(b"a", b"b", base_offset=10),
        batch_of(b"c" * (2 * WALK_BYTES), base_offset=12),
        batch_of(b"d", base_offset=13),
        # Compaction leaves gaps.
        batch_of(b"e", base_offset=20),
    ]


def test_every_batch_is_met_also_behind_one_that_is_larger_than_a_chunk(sim_volume: SimVolume) -> None:
    at = stored(sim_volume, *some_batches())
    assert walk(sim_volume, at[-1]) == [(at[0], 10), (at[1], 12), (at[2], 13), (at[3], 20)]


def test_a_walk_may_begin_at_any_batch_and_end_before_the_last(sim_volume: SimVolume) -> None:
    at = stored(sim_volume, *some_batches())
    assert walk(sim_volume, at[3], position=at[2]) == [(at[2], 13)]


def test_damaged_ranges_are_left_out_also_when_the_walk_begins_inside_of_one(sim_volume: SimVolume) -> None:
    at = stored(sim_volume, *some_batches())
    damaged = DamagedRange(at[1], at[3] - at[1], 12, 20)
    for position in range(at[1], at[3], 1000):
        sim_volume.flip_bit(PATH, position)
    assert walk(sim_volume, at[-1], damaged) == [(at[0], 10), (at[3], 20)]
    assert walk(sim_volume, at[-1], damaged, position=at[2]) == [(at[3], 20)]


def test_an_offset_that_is_not_behind_the_one_before_is_refused_and_named(sim_volume: SimVolume) -> None:
    at = stored(sim_volume, batch_of(b"a", b"b", base_offset=10), batch_of(b"c", base_offset=11))
    with pytest.raises(CorruptLog) as refused:
        walk(sim_volume, at[-1])
    assert (refused.value.position, refused.value.offset) == (at[1], 11)


@pytest.mark.parametrize("base_offset", [BASE - 1, BASE + RELATIVE_OFFSET_MAX + 1])
def test_an_offset_that_cannot_be_in_this_segment_is_refused(sim_volume: SimVolume, base_offset: int) -> None:
    at = stored(sim_volume, batch_of(b"a", base_offset=base_offset))
    with pytest.raises(CorruptLog):
        walk(sim_volume, at[-1])


@pytest.mark.parametrize("length", [-1, 0, 48, 10_000])
def test_a_length_that_cannot_be_right_is_refused(sim_volume: SimVolume, length: int) -> None:
    batch = batch_of(b"a", base_offset=10)
    struct.pack_into(">i", batch, 8, length)
    at = stored(sim_volume, batch)
    with pytest.raises(CorruptLog):
        walk(sim_volume, at[-1])


def test_another_format_and_a_torn_header_are_refused(sim_volume: SimVolume) -> None:
    batch = batch_of(b"a", base_offset=10)
    batch[16] = 1
    at = stored(sim_volume, batch)
    with pytest.raises(CorruptLog):
        walk(sim_volume, at[-1])
    at = stored(sim_volume, batch_of(b"a", base_offset=10), batch_of(b"b", base_offset=11)[:30])
    with pytest.raises(CorruptLog) as torn:
        walk(sim_volume, at[-1])
    assert torn.value.position == at[1]
