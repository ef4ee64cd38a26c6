"""What the simulator found once stays found, each as a scenario of its own."""

from __future__ import annotations

from millrace.sim.run import Plan, Run, run_scenario

FULL_S = 30.0


def test_a_coordinator_on_a_full_disk_does_not_load_without_end() -> None:
    """Its writes failed, so it loaded again, wrote, failed: a hundred times a second (F10)."""
    loads: list[int] = []

    async def full_disk(run: Run) -> None:
        node = run.nodes[0]
        await run.sleep(5.0)
        assert node.broker is not None
        runtime = node.broker._transactions.runtime
        before = runtime.loads_count
        node.volume.capacity_bytes = node.volume.used_bytes()
        await run.sleep(FULL_S)
        loads.append(runtime.loads_count - before)

    outcome = run_scenario(1, full_disk, Plan(with_groups=False), seconds=FULL_S)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    # Two partitions, each at most once a second and a few times more.
    assert 0 < loads[0] <= 2 * (FULL_S + 5), loads
