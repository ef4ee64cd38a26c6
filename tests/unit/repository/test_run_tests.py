"""How `make test` ends, from how its runs of pytest did."""

from __future__ import annotations

import pytest

from tools.run_tests import NOTHING_SELECTED, outcome


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
