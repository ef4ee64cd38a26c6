"""A broker outlives what fails beside its requests, fences what it cannot keep safe, and stops in order."""

from __future__ import annotations

import pytest

from millrace.log.directories.log_directory import LogDirectory
from millrace.log.segments.checkpoints import read_clean_shutdown
from millrace.metadata.errors import StoreWentBack
from millrace.sim.cluster import DATA_DIRECTORY
from millrace.sim.cluster_scenarios import THREE
from millrace.sim.run import Plan, Run, run_scenario


def test_a_broker_that_cannot_go_on_closes_its_logs_and_says_why() -> None:
    """An error in a background task ended the process at once: logs not closed, and checked at the next
    start."""
    error = StoreWentBack(seen=7, found=3)
    found: list[bool] = []

    async def went_back(run: Run) -> None:
        (node,) = run.nodes
        assert node.broker is not None
        await run.sleep(2.0)
        node.broker.background.cannot_go_on("metadata-follow", error)
        await run.cluster.until(lambda: not node.is_running, deadline_s=30, what="the stop")
        assert node.exit_error is error
        found.append(read_clean_shutdown(node.volume, DATA_DIRECTORY))
        node.start()
        await run.cluster.until_ready()

    outcome = run_scenario(1, went_back, Plan(with_groups=False), seconds=10)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert found == [True]


def test_a_directory_whose_flushes_fail_for_good_is_fenced_and_others_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would be flushed any more, and everything acknowledged as before."""
    broken: list[LogDirectory] = []
    original = LogDirectory.flush_dirty

    async def flush_dirty(directory: LogDirectory) -> None:
        if directory in broken:
            raise AssertionError("a bug in the flush")
        await original(directory)

    async def bug(run: Run) -> None:
        await run.sleep(2.0)
        broker = run.nodes[0].broker
        assert broker is not None
        (directory,) = broker.directories.all
        broken.append(directory)
        await run.cluster.until(
            lambda: directory.offline_reason is not None, deadline_s=60, what="the directory is fenced"
        )
        assert run.nodes[0].is_running

    monkeypatch.setattr(LogDirectory, "flush_dirty", flush_dirty)
    outcome = run_scenario(1, bug, THREE, seconds=20)
    told = [violation for violation in outcome.violations if violation.check == "failure"]
    # The bug is told every time, and nothing else went wrong: the others have what was acknowledged.
    assert told
    assert told == outcome.violations
    assert all("log-directory-0 failed" in violation.what for violation in told)
