"""No structure of a broker grows with the work that it has done; one that does is found."""

from __future__ import annotations

import pytest

from millrace.log.state.producer_state import ProducerStates
from millrace.sim.growth import sizes_of
from millrace.sim.run import Outcome, run_scenario
from millrace.sim.scenarios import BY_NAME


def unread_transactions(seed: int) -> Outcome:
    scenario = BY_NAME["C-unread-transactions"]
    return run_scenario(seed, scenario.play, scenario.plan, seconds=60.0)


def test_transactions_that_nobody_reads_leave_nothing_behind() -> None:
    outcome = unread_transactions(1)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert outcome.acked > 0


def test_remembering_every_ended_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def remember(states: ProducerStates, first_offset: int, last_offset: int, high_watermark: int) -> None:
        states.ended.append((first_offset, last_offset))

    monkeypatch.setattr(ProducerStates, "transaction_ended", remember)
    found = [str(violation) for violation in unread_transactions(1).violations]
    assert any("ProducerStates.ended grew" in each for each in found), found


def test_what_a_container_holds_is_counted_wherever_it_is() -> None:
    states = ProducerStates()
    states.ended.extend((number, number) for number in range(5))
    assert sizes_of({"a": [states]})["ProducerStates.ended"] == 5
