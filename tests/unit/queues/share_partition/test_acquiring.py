from __future__ import annotations

import pytest

from millrace.queues.share_partition.acquiring import BatchSpan, last_of_tail

SPANS = [BatchSpan(8, 12), BatchSpan(13, 19), BatchSpan(20, 29)]


@pytest.mark.parametrize(
    "records_max, is_exact, limit, last",
    [
        (500, False, 99, 29),
        (3, False, 99, 12),
        (4, False, 99, 19),
        (4, True, 99, 13),
        (500, False, 24, 24),
        (500, True, 24, 24),
    ],
)
def test_untouched_log_comes_in_whole_batches_or_exactly(
    records_max: int, is_exact: bool, limit: int, last: int
) -> None:
    found = last_of_tail(SPANS, end=10, limit=limit, records_max=records_max, is_exact=is_exact)
    assert found == last


@pytest.mark.parametrize(
    "spans",
    [
        [BatchSpan(11, 12)],
        [BatchSpan(10, 12), BatchSpan(14, 15)],
        [BatchSpan(10, 12, is_aborted=True)],
        [BatchSpan(5, 9)],
    ],
)
def test_gaps_and_aborted_batches_need_a_closer_look(spans: list[BatchSpan]) -> None:
    assert last_of_tail(spans, end=10, limit=99, records_max=500, is_exact=False) is None
