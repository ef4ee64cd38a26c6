"""A broker outlives what fails beside its requests, fences what it cannot keep safe, and stops in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from millrace.broker.app import Broker, Running
from millrace.broker.network.server import Server
from millrace.broker.replication.membership import Membership
from millrace.broker.watching.metrics import BrokerMetrics
from millrace.broker.watching.pages import Pages
from millrace.core.background import Background, Loop
from millrace.core.errors import MillraceError
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.segments.checkpoints import read_clean_shutdown
from millrace.metadata.errors import StoreWentBack
from millrace.sim.cluster import DATA_DIRECTORY
from millrace.sim.cluster_scenarios import THREE
from millrace.sim.run import Plan, Run, run_scenario

LOOPS = {
    *("metadata-follow", "metadata-reconcile", "broker-session", "controller"),
    *(
        "log-directory-0",
        "log-mover",
        "log-cleaner",
        "log-scrubber",
        "retention",
        "failed-disks",
        "tenant-storage",
    ),
    *("in-sync-replicas", "mender", "prune-share-state"),
}
"""All that a broker of a cluster does beside requests, for as long as it runs."""


def test_every_loop_of_a_broker_is_begun_again_after_a_failure_in_its_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any of them ended the broker; and one that nobody begins again is missed when it is too late."""
    original = Background.keep
    starts: dict[Background, Counter[str]] = {}
    pages: list[str] = []

    def keep(owner: Background, name: str, work: Loop, **rules: Any) -> asyncio.Task[None]:
        counts = starts.setdefault(owner, Counter())

        async def broken_off_once() -> None:
            counts[name] += 1
            # The TimeoutError stands for a bug.
            async with asyncio.timeout(3.0 if counts[name] == 1 else None):
                await work()

        return original(owner, name, broken_off_once, **rules)

    build = BrokerMetrics.__init__
    metrics: list[BrokerMetrics] = []

    def build_metrics(each: BrokerMetrics, *parts: Any, **more: Any) -> None:
        build(each, *parts, **more)
        metrics.append(each)

    async def look(run: Run) -> None:
        await run.sleep(8.0)
        for node in run.nodes:
            assert node.broker is not None
            assert set(starts[node.broker.background]) == LOOPS
            assert set(starts[node.broker.background].values()) == {2}
            assert node.broker.background.failures.counts == dict.fromkeys(LOOPS, 1)
        pages.extend([(await each.render()).decode() for each in metrics])
        await run.create_topic("afterwards")

    monkeypatch.setattr(Background, "keep", keep)
    monkeypatch.setattr(BrokerMetrics, "__init__", build_metrics)
    outcome = run_scenario(1, look, THREE, seconds=20)
    assert len(outcome.violations) == 3 * len(LOOPS), [str(violation) for violation in outcome.violations]
    assert all(
        violation.check == "failure" and "and is tried again in" in violation.what
        for violation in outcome.violations
    )
    assert len(pages) == 3
    for page in pages:
        for name in LOOPS:
            assert f'millrace_background_failures_total{{task="{name}"}} 1.0' in page


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


@pytest.mark.parametrize(
    "error, is_handed_over",
    [(MillraceError("a disk is gone"), True), (StoreWentBack(seen=7, found=3), False)],
)
def test_a_broker_that_cannot_go_on_hands_over_what_the_metadata_lets_it(
    error: MillraceError, is_handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot follow the metadata would wait for an answer of it while its clients wait for it."""
    original = Membership.hand_over
    handed_over: list[bool] = []

    async def hand_over(membership: Membership) -> None:
        await original(membership)
        handed_over.append(True)

    async def give_up(run: Run) -> None:
        node = run.nodes[0]
        assert node.broker is not None
        await run.sleep(2.0)
        node.broker.background.cannot_go_on("a loop", error)
        await run.cluster.until(lambda: not node.is_running, deadline_s=30, what="the stop")
        assert node.exit_error is error
        assert bool(handed_over) == is_handed_over
        node.start()
        await run.cluster.until_ready()

    monkeypatch.setattr(Membership, "hand_over", hand_over)
    outcome = run_scenario(1, give_up, THREE, seconds=10)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]


def test_a_start_that_hangs_is_broken_off_by_what_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever for something that the failed work was to bring."""
    original = Broker._start
    error = StoreWentBack(seen=7, found=3)
    may_hang = False

    async def start(broker: Broker, pages: Pages) -> Running:
        if may_hang:
            asyncio.get_running_loop().call_later(1.0, broker.background.cannot_go_on, "a loop", error)
            await asyncio.Event().wait()
        return await original(broker, pages)

    async def hang(run: Run) -> None:
        nonlocal may_hang
        (node,) = run.nodes
        await node.stop()
        may_hang = True
        node.start()
        await run.cluster.until(lambda: not node.is_running, deadline_s=30, what="the end")
        assert node.exit_error is error
        may_hang = False
        node.start()
        await run.cluster.until_ready()

    monkeypatch.setattr(Broker, "_start", start)
    outcome = run_scenario(1, hang, Plan(with_groups=False), seconds=10)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_step_of_the_stop_that_fails_or_hangs_keeps_no_log_from_being_closed(
    is_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Server.stop
    found: list[bool] = []

    async def stop(server: Server, grace_s: float) -> None:
        await original(server, grace_s)
        if is_stuck:
            await asyncio.Event().wait()
        raise AssertionError("a bug in the stop")

    async def end(run: Run) -> None:
        (node,) = run.nodes
        await run.sleep(2.0)
        await node.stop()
        assert node.exit_error is None
        found.append(read_clean_shutdown(node.volume, DATA_DIRECTORY))
        monkeypatch.setattr(Server, "stop", original)
        node.start()
        await run.cluster.until_ready()

    monkeypatch.setattr(Server, "stop", stop)
    outcome = run_scenario(1, end, Plan(with_groups=False), seconds=10)
    assert found == [True]
    told = [] if is_stuck else ["failure"]
    assert [violation.check for violation in outcome.violations] == told, outcome.violations
