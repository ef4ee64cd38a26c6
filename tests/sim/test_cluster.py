"""Three brokers under faults keep what they acknowledged, in one history; without the guards that see to it
they are condemned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.replication.fetcher import Key, LeaderFetcher
from millrace.broker.replication.followed import Followed
from millrace.broker.replication.peers import Peers
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH
from millrace.log.partition.partition_log import PartitionLog
from millrace.metadata import election
from millrace.metadata.session import BrokerSession
from millrace.replica import following
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.sim.clients.admin import delete_records_behind
from millrace.sim.clients.producer import Workload
from millrace.sim.run import ORDERS, PARTITIONS, Run, run_scenario
from millrace.sim.scenarios import BY_NAME

SLOW_REPLICATION = "C-F1-F5-slow-replication"
LAST_TWO = "C-F4-last-two"
LEASE = "C-F11-lease"
DELETE_RECORDS = "C-delete-records"
REFUSED = "C-refused-connections"
SEEDS = range(1, 6)


@pytest.mark.parametrize(
    "name",
    [
        "C-F25-no-fault",
        SLOW_REPLICATION,
        LAST_TWO,
        "C-one-in-sync",
        "C-F5-power-loss",
        "C-F11-pause",
        LEASE,
        "C-F29-topics-come-and-go",
        "C-F31-rolling-upgrade",
        DELETE_RECORDS,
        REFUSED,
        "C-partitions",
        "C-reassign",
        "C-reassign-throttled",
        "C-admin",
    ],
)
def test_nothing_is_violated(name: str) -> None:
    scenario = BY_NAME[name]
    outcome = run_scenario(1, scenario.play, scenario.plan, seconds=20.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert outcome.acked > 0, "nothing was acknowledged: the run shows nothing"


def is_condemned_for(*checks: str, name: str = SLOW_REPLICATION, seconds: float) -> bool:
    """Whether one of the checks condemns a run. Others may, too: a broken cluster may also come to a stop."""
    scenario = BY_NAME[name]
    for seed in SEEDS:
        outcome = run_scenario(seed, scenario.play, scenario.plan, seconds=seconds)
        if any(violation.check in checks for violation in outcome.violations):
            return True
    return False


def test_acknowledging_what_followers_do_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Partition._await_followers

    def commit(partition: Partition, size_bytes: int) -> None:
        original(partition, size_bytes)
        partition._advance_high_watermark(partition.log.log_end_offset, 1)

    monkeypatch.setattr(Partition, "_await_followers", commit)
    monkeypatch.setattr(Leadership, "committed_up_to", lambda leadership, own_end_offset: own_end_offset)
    assert is_condemned_for("lost", "lost write", "inconsistent offsets", seconds=40)


def test_following_without_a_look_at_epochs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that led keeps records that nobody else has, and goes on behind them."""
    monkeypatch.setattr(PartitionLog, "last_record_epoch", lambda _log: NO_EPOCH)
    assert is_condemned_for("copies differ", "inconsistent offsets", "lost write", seconds=40)


def test_leading_on_without_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it acknowledges can be wrong, since nobody replicates it; but it answers readers as if it
    still led, while somebody else does."""

    def stay(session: BrokerSession, reason: str) -> None:
        return

    monkeypatch.setattr(BrokerSession, "_fence", stay)
    assert is_condemned_for("served without a lease", name=LEASE, seconds=40)


def test_leaving_the_last_one_in_sync_before_it_says_so_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost power and not be missed yet: it comes back without what it had not flushed, and leads,
    though the other one in sync has everything (found by the simulator, with committed offsets)."""
    monkeypatch.setattr(election, "is_left_to_leader", lambda *count, **rules: False)
    assert is_condemned_for("lost", "lost write", "committed offset went back", name=LAST_TWO, seconds=40)


def test_a_follower_that_cannot_begin_inside_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its leader's log does, after DeleteRecords: it never has what the others have."""
    monkeypatch.setattr(following, "_end_is_inside", lambda log, records: None)
    assert is_condemned_for("liveness", name=DELETE_RECORDS, seconds=30)


def test_a_follower_that_asks_again_at_once_for_what_it_cannot_use_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(fetcher: LeaderFetcher, key: Key, followed: Followed, error: MillraceError | None) -> None:
        if fetcher._followed.get(key) is followed:
            fetcher._unnamed[key] = None

    async def play(run: Run) -> None:
        await run.sleep(10.0)
        node = run.nodes[0]
        node.kill()
        await run.sleep(5.0)
        for partition in PARTITIONS:
            work = delete_records_behind(run.admin, ORDERS, partition, lambda start, end: end - 1)
            assert await run.by_admin(work) is not None
        node.start()

    monkeypatch.setattr(following, "_end_is_inside", lambda log, records: None)
    monkeypatch.setattr(LeaderFetcher, "_failed", at_once)
    plan = replace(
        BY_NAME[DELETE_RECORDS].plan,
        with_transactions=False,
        with_groups=False,
        workload=Workload(pause_s=0.5, batches_max=1, values_max=10),
    )
    outcome = run_scenario(1, play, plan, seconds=1.0)
    assert "spinning" in [violation.check for violation in outcome.violations]


def test_records_are_gone_on_all_brokers_when_their_deletion_is_answered() -> None:
    """Whoever leads next has deleted them, too. The leader answered as soon as it had deleted alone."""
    checked = 0

    async def play(run: Run) -> None:
        nonlocal checked
        for _ in range(10):
            await run.sleep(0.5, 2.0)
            for partition in PARTITIONS:
                work = delete_records_behind(run.admin, ORDERS, partition, lambda start, end: end - 1)
                start = await run.by_admin(work)
                assert start is not None
                for node in run.nodes:
                    assert node.broker is not None
                    copy = node.broker.partitions.find(ORDERS, partition)
                    assert copy is not None
                    assert copy.log.log_start_offset >= start, (node.node_id, partition)
                    checked += 1

    outcome = run_scenario(1, play, BY_NAME[DELETE_RECORDS].plan, seconds=1.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert checked >= 30


def test_taking_a_process_for_dead_that_came_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever refuses connections in its place would take its lease again and again."""
    monkeypatch.setattr(Peers, "_has_survived", lambda peers, broker: False)
    assert is_condemned_for("taken for dead", name=REFUSED, seconds=40)
