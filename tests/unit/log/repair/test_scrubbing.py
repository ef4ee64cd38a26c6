"""Reading stored segments again: what counts as damage, and what the files beside a segment should be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.scrubbing import (
    Beside,
    Scrubbed,
    Stored,
    check_beside,
    scratch_path,
    scrub_some,
    with_lost_end,
)
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from millrace.sim.volume import SimVolume
from millrace.wire.batch_header import LEADER_EPOCH_AT
from tests.unit.log.support import NOW_MS, Disk, append

BATCHES = 10


@pytest.fixture
def log(disk: Disk) -> PartitionLog:
    """A closed segment of ten batches with one record each, and an active one."""
    log = disk.log()
    log.start_epoch(3)
    for number in range(BATCHES):
        append(log, bytes(80), timestamp=NOW_MS + number)
    log.roll()
    append(log, b"active")
    return log


@pytest.fixture
def stored(log: PartitionLog) -> Stored:
    segment = log.segments[0]
    return Stored(
        directory=segment.directory,
        base_offset=0,
        size_bytes=segment.size_bytes,
        upper_offset=BATCHES,
        is_active=False,
        damage=(),
        epoch_starts=((3, 0),),
        index_interval_bytes=segment.index_interval_bytes,
        compacted_end=0,
        log_start_offset=0,
    )


def batch_bytes(stored: Stored) -> int:
    return stored.size_bytes // BATCHES


def scrub(log: PartitionLog, stored: Stored, bytes_max: int = 1 << 20) -> Scrubbed:
    handle, found = log.segments[0].file.handle(), Scrubbed()
    while found.position < stored.size_bytes:
        before = found.position
        found = scrub_some(handle, stored, found, bytes_max)
        assert found.position > before
    return found


@pytest.mark.parametrize("bytes_max", [1, 300, 1 << 20])
def test_a_sound_segment_has_no_damage_in_pieces_of_any_size(
    log: PartitionLog, stored: Stored, bytes_max: int
) -> None:
    found = scrub(log, stored, bytes_max)
    assert found == Scrubbed(stored.size_bytes, BATCHES, 3, NOW_MS + BATCHES - 1)
    assert with_lost_end(stored, found) == found


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_a_flipped_bit_costs_its_batch_and_no_other(
    log: PartitionLog, stored: Stored, sim_volume: SimVolume, bytes_max: int
) -> None:
    size = batch_bytes(stored)
    sim_volume.flip_bit(log.segments[0].file.path, 4 * size + 80)
    assert scrub(log, stored, bytes_max).damage == (DamagedRange(4 * size, size, 4, 5),)


def test_damage_that_is_known_is_passed_over_and_not_found_again(
    log: PartitionLog, stored: Stored, sim_volume: SimVolume
) -> None:
    size = batch_bytes(stored)
    sim_volume.flip_bit(log.segments[0].file.path, 4 * size + 80)
    known = replace(stored, damage=(DamagedRange(4 * size, size, 4, 5),))
    found = scrub(log, known)
    assert (found.damage, found.next_offset) == ((), BATCHES)


def test_one_batch_with_another_epoch_than_the_checkpoint_says_is_damaged(
    log: PartitionLog, stored: Stored, sim_volume: SimVolume
) -> None:
    size = batch_bytes(stored)
    sim_volume.flip_bit(log.segments[0].file.path, 5 * size + LEADER_EPOCH_AT + 3, 2)
    found = scrub(log, stored)
    assert [(each.first_offset, each.next_offset) for each in found.damage] == [(5, 6)]
    assert found.odd_epoch == -1


def test_where_several_batches_agree_on_an_epoch_it_is_the_checkpoint_that_is_wrong(
    log: PartitionLog, stored: Stored
) -> None:
    found = scrub(log, replace(stored, epoch_starts=((2, 0),)))
    assert (found.damage, found.odd_epoch) == ((), 3)


def test_what_is_missing_before_the_next_segment_is_damage(log: PartitionLog, stored: Stored) -> None:
    found = scrub(log, stored)
    lost = with_lost_end(replace(stored, upper_offset=15), found)
    assert lost.damage == (DamagedRange(stored.size_bytes, 0, BATCHES, 15),)


@pytest.mark.parametrize(
    "why", [{"compacted_end": 15}, {"log_start_offset": 15}, {"damage": (DamagedRange(9999, 0, 10, 15),)}]
)
def test_what_compaction_took_or_nobody_can_read_or_is_known_to_be_lost_is_not_missed(
    log: PartitionLog, stored: Stored, why: dict[str, Any]
) -> None:
    found = scrub(log, stored)
    assert with_lost_end(replace(stored, upper_offset=15, **why), found) == found


def test_damage_at_the_very_end_of_the_active_segment_is_judged_later(stored: Stored) -> None:
    inside, at_end = DamagedRange(0, 100, 0, 1), DamagedRange(900, 100, 9, BATCHES)
    found = Scrubbed(stored.size_bytes, BATCHES, 3, NOW_MS, (inside, at_end))
    assert with_lost_end(replace(stored, is_active=True), found).damage == (inside,)
    assert with_lost_end(stored, found).damage == (inside, at_end)


def test_right_files_beside_a_segment_are_left_alone(disk: Disk, log: PartitionLog, stored: Stored) -> None:
    assert check_beside(disk.volume, stored, scrub(log, stored)) == Beside()
    assert not disk.volume.exists(scratch_path(log.path))


@pytest.mark.parametrize("suffix", [OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX])
@pytest.mark.parametrize("harm", ["flipped", "missing", "torn"])
def test_indexes_that_are_wrong_are_made_again_beside_the_log(
    disk: Disk, log: PartitionLog, stored: Stored, sim_volume: SimVolume, suffix: str, harm: str
) -> None:
    path = log.segments[0].path(suffix)
    right = {each: sim_volume.read_bytes(log.segments[0].path(each)) for each in (".index", ".timeindex")}
    found = scrub(log, stored)
    if harm == "flipped":
        sim_volume.flip_bit(path, len(right[suffix]) - 1)
        if suffix == TIME_INDEX_SUFFIX:
            # The offset of an entry is for a search only; its time is what a record has.
            sim_volume.flip_bit(path, len(right[suffix]) - 5)
    elif harm == "missing":
        sim_volume.remove(path)
    else:
        sim_volume.write_bytes(path, right[suffix][:-1])
    changed = sim_volume.read_bytes(path) if harm != "missing" else None
    assert check_beside(disk.volume, stored, found).rebuilt_indexes
    for each, content in right.items():
        assert sim_volume.read_bytes(f"{scratch_path(log.path)}/{0:020}{each}") == content
    if changed is not None:
        assert sim_volume.read_bytes(path) == changed, "the loop puts the new one in its place"
