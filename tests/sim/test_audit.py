"""With the audit on, brokers keep all that they promise under faults, and the audit itself is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.security.audit.auditor import Auditor
from millrace.sim.run import Run, run_scenario
from millrace.sim.scenarios import BY_NAME

AUDITED = {"audit.enable": "true", "audit.event.types": "login,admin,denied,data,describe,lifecycle"}


def auditors(run: Run) -> list[Auditor]:
    """Of the brokers that run now."""
    found = []
    for node in run.nodes:
        running = None if node.broker is None else node.broker.running
        if running is not None and running.auditing is not None:
            found.append(running.auditing.auditor)
    return found


@pytest.mark.parametrize("name", ["permissions", "C-admin", "C-F5-power-loss"])
def test_nothing_is_violated_with_the_audit_on(name: str) -> None:
    scenario = BY_NAME[name]
    written: list[int] = []

    async def play(run: Run) -> None:
        await scenario.play(run)
        await run.sleep(3.0, 3.0)
        written.extend(outbox.written for auditor in auditors(run) for outbox in auditor.outboxes)

    plan = replace(scenario.plan, settings={**scenario.plan.settings, **AUDITED})
    outcome = run_scenario(1, play, plan, seconds=20.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert outcome.acked > 0, "nothing was acknowledged: the run shows nothing"
    assert written
    assert all(written), "each broker has a partition of its own to write to"
