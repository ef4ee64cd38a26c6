"""The states of records, by the numbers that are stored."""

from __future__ import annotations

import pytest

from millrace.queues.share_partition.model import RecordState, state_of


@pytest.mark.parametrize("number, state", [(2, RecordState.ACKNOWLEDGED), (5, RecordState.TX_PENDING)])
def test_numbers_are_states(number: int, state: RecordState) -> None:
    assert state_of(number) is state


def test_a_state_that_nobody_knows_is_not_final() -> None:
    assert state_of(9) is RecordState.AVAILABLE
