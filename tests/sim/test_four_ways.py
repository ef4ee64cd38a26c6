"""The four ways through the house are taken as docs/architecture.md describes them."""

from __future__ import annotations

import pytest

from tests.harness.four_ways import WAYS, Way, described, trace


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_way_is_taken_as_it_is_described(way: Way) -> None:
    taken, written = trace(way), described()[way.title]
    new = [step for step in taken if step not in written]
    gone = [step for step in written if step not in taken]
    assert not new, f"describe these, or leave them out with a reason (tests/harness/four_ways.py): {new}"
    assert not gone, f"nobody comes there any more: {gone}"
    assert taken == written, "in another order"
