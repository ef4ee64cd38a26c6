"""A checker that cannot fail proves nothing: with a guard of the broker taken out, a run must be condemned.

Each test takes one guard out by replacing it, and the simulator has to find out within a few seeds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers.fetch.serving import Fetch
from millrace.broker.handlers.produce.refused_batches import RefusedBatches
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.log.batches import checks as batch_checks
from millrace.log.config import LogConfig
from millrace.log.directories import new_logs
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.directories.scrubber import Scrubber
from millrace.log.partition import isolation
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair import mending
from millrace.log.segments import scanning
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.decisions import Access
from millrace.sim.run import run_scenario
from millrace.sim.scenarios import BY_NAME
from millrace.sim.volume import SimVolume
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
    original = PartitionLog.set_config

    def set_config(log: PartitionLog, config: LogConfig) -> None:
        original(log, config)
        log.commits_on_flush = False

    monkeypatch.setattr(PartitionLog, "set_config", set_config)
    found = condemned_for("F5-power-loss", seconds=20)
    assert {"lost", "lost write", "inconsistent offsets"} & set(found), found


def test_forgetting_what_producers_sent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_nothing(*_: Any) -> None:
        return

    monkeypatch.setattr(batch_checks, "check_sequence", check_nothing)
    found = condemned_for("F19-kill", seconds=30)
    assert "duplicate" in found, found


def test_judging_batches_behind_a_refused_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_was_refused(*_: Any) -> None:
        return

    monkeypatch.setattr(RefusedBatches, "code_behind", nothing_was_refused)
    found = condemned_for("C-F1-F2-quick-failovers", seconds=60)
    assert "sequence" in found, found


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

    monkeypatch.setattr(scanning, "crc32c", lambda data: Anything())
    found = condemned_for("F7-flipped-bit", seconds=60)
    assert found, "damaged batches were served and nobody noticed"


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("not dealt with"), MillraceError("nor this")])
def test_a_failure_of_background_work_that_is_tried_again_is_still_found(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervision keeps a broker going after a bug; it must not hide it from the checkers."""
    original = LogDirectory.remove_due
    calls = iter([True])

    async def fail_once(directory: LogDirectory) -> None:
        if next(calls, False):
            raise error
        await original(directory)

    monkeypatch.setattr(LogDirectory, "remove_due", fail_once)
    named = BY_NAME["F25-no-fault"]
    outcome = run_scenario(1, named.play, named.plan, seconds=5)
    (violation,) = outcome.violations
    assert violation.check == "failure"
    assert "log-directory-0 failed, and is tried again" in violation.what


def test_forgetting_a_log_before_it_is_renamed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_away(directory: LogDirectory, log: PartitionLog, aside: str) -> None:
        del directory.logs[log.topic_partition]
        log.discard()
        directory.volume.rename(log.path, aside)

    def exists_not(_volume: SimVolume, _path: str) -> bool:
        return False

    monkeypatch.setattr(LogDirectory, "_take_away", take_away)
    monkeypatch.setattr(new_logs, "is_in_the_way", exists_not)
    found = condemned_for("F29-failing-renames", seconds=60)
    assert "old topic" in found, found


def test_never_looking_at_old_records_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_at_nothing(scrubber: Scrubber) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Scrubber, "run", look_at_nothing)
    found = condemned_for("F7-bits-anywhere", seconds=60)
    assert "liveness" in found, found


def test_raising_for_damage_outside_of_recovery_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, retention or a reader meets it, and nobody takes it out of service."""

    def leave_it(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(isolation, "isolate", leave_it)
    found = condemned_for("F7-bits-anywhere", seconds=60)
    assert found, "damage was met again and again and nobody noticed"


def test_mending_without_what_batches_say_of_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bring_back_nothing(*_: object) -> bool:
        return True

    monkeypatch.setattr(mending, "bring_back_state", bring_back_nothing)
    found = condemned_for("C-F7-marker", seconds=60)
    assert "aborted read" in found, found


def test_deciding_by_old_permissions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Access.replace

    def replace_once(access: Access, authorizer: Authorizer | None) -> None:
        if access.authorizer is None or len(access.authorizer.acls) < 4:
            original(access, authorizer)

    monkeypatch.setattr(Access, "replace", replace_once)
    found = condemned_for("permissions", seconds=30)
    assert "served without permission" in found, found


def test_leaving_those_alone_who_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(*_: Any) -> None:
        return

    monkeypatch.setattr(Fetch, "permissions_changed", wait_on)
    found = condemned_for("permissions", seconds=60)
    assert "served without permission" in found, found
