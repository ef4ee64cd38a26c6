"""Which segment holds an offset."""

from __future__ import annotations

import pytest

from millrace.log.partition.segment_list import SegmentList
from millrace.log.segments.segment import Segment
from millrace.sim.volume import SimVolume


def segment(volume: SimVolume, base_offset: int, size_bytes: int) -> Segment:
    return Segment(volume, "/data/orders-0", base_offset, size_bytes, create=True)


def test_an_offset_belongs_to_the_last_segment_that_begins_at_or_before_it(sim_volume: SimVolume) -> None:
    segments = SegmentList([segment(sim_volume, base_offset, 100) for base_offset in (10, 20, 50)])
    found = {offset: segments.number_at(offset) for offset in (0, 10, 19, 20, 49, 50, 1000)}
    assert found == {0: 0, 10: 0, 19: 0, 20: 1, 49: 1, 50: 2, 1000: 2}


def test_the_last_segment_is_active_also_after_a_change(sim_volume: SimVolume) -> None:
    first, second, third = (segment(sim_volume, base_offset, 7) for base_offset in (0, 5, 9))
    segments = SegmentList([first, second])
    assert (segments.active, segments.size_bytes) == (second, 14)
    kept = segments.all
    segments.replace([second, third])
    assert (segments.active, segments.bases) == (third, [5, 9])
    assert kept == [first, second], "whoever reads the old list must not see it change"
    assert segments.all is not kept


def test_a_log_without_segments_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        SegmentList([])
