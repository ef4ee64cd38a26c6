"""From timestamps to offsets: what is entered, what a search finds, and what is left after a cut."""

from __future__ import annotations

import pytest

from millrace.log.segments.time_index import ENTRY_SIZE, TimeIndex
from millrace.sim.volume import SimVolume

PATH = "/d/00000000000000000100.timeindex"
BASE = 100


@pytest.fixture
def index(sim_volume: SimVolume) -> TimeIndex:
    sim_volume.make_directory("/d")
    return TimeIndex(sim_volume.file(PATH, create=True), base_offset=BASE, stored_size_bytes=0)


def test_an_empty_index_knows_no_timestamp_and_points_to_the_start(index: TimeIndex) -> None:
    assert (index.last_timestamp, index.last_offset) == (-1, BASE)
    assert index.offset_before(10**15) == BASE


def test_only_new_maxima_are_entered(index: TimeIndex) -> None:
    index.append(1000, 105)
    index.append(1000, 110)
    index.append(900, 115)
    index.append(1001, 104)
    index.append(2000, 120)
    assert index.entries() == [(1000, 5), (2000, 20)]
    assert (index.last_timestamp, index.last_offset) == (2000, 120)


@pytest.mark.parametrize(
    "timestamp, offset", [(999, BASE), (1000, 105), (1999, 105), (2000, 120), (9999, 120)]
)
def test_a_search_finds_the_last_entry_that_is_not_younger(
    index: TimeIndex, timestamp: int, offset: int
) -> None:
    index.append(1000, 105)
    index.append(2000, 120)
    assert index.offset_before(timestamp) == offset


def test_a_cut_drops_the_entries_at_and_above_the_offset_and_lets_older_times_in_again(
    index: TimeIndex,
) -> None:
    for timestamp, offset in ((1000, 105), (2000, 110), (3000, 115)):
        index.append(timestamp, offset)
    index.truncate_to(110)
    assert (index.last_timestamp, index.last_offset) == (1000, 105)
    index.append(1500, 108)
    assert index.entries() == [(1000, 5), (1500, 8)]
    index.truncate_to(BASE)
    assert (index.count, index.last_timestamp, index.last_offset) == (0, -1, BASE)


def test_an_index_that_is_opened_again_goes_on_where_it_ended(
    index: TimeIndex, sim_volume: SimVolume
) -> None:
    index.append(1000, 105)
    index.append(2000, 110)
    index.store()
    again = TimeIndex(sim_volume.file(PATH), base_offset=BASE, stored_size_bytes=2 * ENTRY_SIZE)
    assert (again.last_timestamp, again.last_offset) == (2000, 110)
    assert again.offset_before(1500) == 105
