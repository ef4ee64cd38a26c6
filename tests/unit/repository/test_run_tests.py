"""How `make test` ends, from how its two runs of pytest did."""

from __future__ import annotations

import pytest

from tools.run_tests import NOTHING_SELECTED, outcome


@pytest.mark.parametrize(
    "waiting, computing, expected",
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, 1),
        (2, 1, 2),
        (NOTHING_SELECTED, 0, 0),
        (0, NOTHING_SELECTED, 0),
        (NOTHING_SELECTED, 1, 1),
        (NOTHING_SELECTED, NOTHING_SELECTED, NOTHING_SELECTED),
    ],
)
def test_one_failure_is_a_failure_and_no_test_at_all_is_none(
    waiting: int, computing: int, expected: int
) -> None:
    assert outcome(waiting, computing) == expected
