"""A checker that cannot fail proves nothing: with a guard of the broker taken out, a run must be condemned.

Each test takes one guard out by replacing it, and the simulator has to find out within a few seeds.
"""

from __future__ import annotations

from typing import Any

import pytest

from millrace.core.override import override
from millrace.log import batch_checks, recovery
from millrace.log.config import LogConfig
from millrace.log.log_files import LogFiles
from millrace.sim.run import run_scenario
from millrace.sim.scenarios import BY_NAME
from millrace.transactions.service import Transactions

SEEDS = range(1, 9)


def condemned_for(scenario: str, *, seconds: float) -> list[str]:
    """The checks that the first condemned seed failed."""
    named = BY_NAME[scenario]
    for seed in SEEDS:
        outcome = run_scenario(seed, named.play, named.plan, seconds=seconds)
        if outcome.violations:
            return [violation.check for violation in outcome.violations]
    return []


def test_acknowledging_before_the_flush_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogFiles.set_config

    def set_config(log: LogFiles, config: LogConfig) -> None:
        original(log, config)
        log.commits_on_flush = False

    monkeypatch.setattr(LogFiles, "set_config", set_config)
    found = condemned_for("F5-power-loss", seconds=20)
    assert {"lost", "lost write", "inconsistent offsets"} & set(found), found


def test_forgetting_what_producers_sent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_nothing(*_: Any) -> None:
        return

    monkeypatch.setattr(batch_checks, "check_sequence", check_nothing)
    found = condemned_for("F19-kill", seconds=30)
    assert "duplicate" in found, found


def test_storing_batches_of_ended_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify_nothing(*_: Any) -> None:
        return

    monkeypatch.setattr(Transactions, "verify", verify_nothing)
    found = condemned_for("F25-no-fault", seconds=20)
    assert {"aborted read", "hanging transaction"} & set(found), found


def test_serving_damaged_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Anything(int):
        @override
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    monkeypatch.setattr(recovery, "crc32c", lambda data: Anything())
    found = condemned_for("F7-flipped-bit", seconds=60)
    assert found, "damaged batches were served and nobody noticed"
