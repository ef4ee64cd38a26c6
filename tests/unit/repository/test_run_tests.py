"""`make test` runs all lanes, and how it ends comes from how its runs of pytest did."""

from __future__ import annotations

import pytest

from tests.conftest import ELSE, LANES, TIMED
from tools.run_tests import BEHIND, BESIDE, NOTHING_SELECTED, SEEN, outcome


@pytest.mark.parametrize(
    "codes, expected",
    [
        ((0, 0, 0), 0),
        ((1, 0, 0), 1),
        ((0, 1, 0), 1),
        ((0, 0, 1), 1),
        ((2, 1, 0), 2),
        ((0, NOTHING_SELECTED, NOTHING_SELECTED), 0),
        ((NOTHING_SELECTED, 1, NOTHING_SELECTED), 1),
        ((NOTHING_SELECTED, NOTHING_SELECTED, NOTHING_SELECTED), NOTHING_SELECTED),
    ],
)
def test_one_failure_is_a_failure_and_no_test_at_all_is_none(codes: tuple[int, ...], expected: int) -> None:
    assert outcome(*codes) == expected


def test_every_lane_is_run_once() -> None:
    lanes = [SEEN, BEHIND, *BESIDE]
    assert sorted(lanes) == sorted([ELSE, *LANES])
    assert TIMED not in lanes, "it comes behind, alone"
