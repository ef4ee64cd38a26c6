"""A day of a cluster: what only time brings about comes about, and nothing is violated by it."""

from __future__ import annotations

from millrace.sim.run import Run, run_scenario
from millrace.sim.seasons import SEASONS, days

HOUR_S = 3_600.0


def test_nothing_is_violated() -> None:
    outcome = run_scenario(1, days, SEASONS, seconds=3 * HOUR_S)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert outcome.acked > 0
    assert outcome.quiet_s > 2 * HOUR_S


def test_time_does_what_it_should() -> None:
    """Old segments go, and producers are forgotten: else long runs would show nothing."""
    starts: dict[str, int] = {}
    producers: list[int] = []

    async def long_silence(run: Run) -> None:
        hours = run.cluster.hours
        await run.sleep(20.0)
        hours.close(leave_chance=1.0)
        await run.sleep(6 * HOUR_S)
        broker = run.nodes[0].broker
        assert broker is not None
        starts.update({str(place): log.log_start_offset for place, log in broker.directories.logs.items()})
        producers.extend(
            len(log.producers.entries)
            for place, log in broker.directories.logs.items()
            if place.topic == "orders"
        )

    outcome = run_scenario(1, long_silence, SEASONS, seconds=HOUR_S)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert starts["orders-0"] > 0
    assert starts["copies-0"] == 0
    assert producers == [0, 0]
