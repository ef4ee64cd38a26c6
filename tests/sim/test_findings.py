"""What the simulator found once stays found, each as a scenario of its own."""

from __future__ import annotations

from millrace.log.segments.checkpoints import PARTITION_METADATA
from millrace.sim.cluster_scenarios import THREE
from millrace.sim.run import ORDERS, Plan, Run, run_scenario

FULL_S = 30.0


def test_a_coordinator_on_a_full_disk_does_not_load_without_end() -> None:
    """Its writes failed, so it loaded again, wrote, failed: a hundred times a second (F10)."""
    loads: list[int] = []

    async def full_disk(run: Run) -> None:
        node = run.nodes[0]
        await run.sleep(5.0)
        assert node.broker is not None
        assert node.broker.running is not None
        runtime = node.broker.running.cluster.coordinators.transactions.runtime
        before = runtime.loads_count
        node.volume.capacity_bytes = node.volume.used_bytes()
        await run.sleep(FULL_S)
        loads.append(runtime.loads_count - before)

    outcome = run_scenario(1, full_disk, Plan(with_groups=False), seconds=FULL_S)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    # Two partitions, each at most once a second and a few times more.
    assert 0 < loads[0] <= 2 * (FULL_S + 5), loads


def test_followers_do_not_storm_a_leader_that_has_lost_its_lease() -> None:
    """It leads nothing any more and says so at once; its followers asked again at once, thousands of times a
    second, for as long as the store was away (F12)."""
    answers: list[int] = []

    async def store_away(run: Run) -> None:
        await run.sleep(5.0)
        run.cluster.store.set_available(False)
        await run.sleep(20.0)
        before = _answers_to_followers(run)
        await run.sleep(10.0)
        answers.append(_answers_to_followers(run) - before)

    outcome = run_scenario(1, store_away, THREE, seconds=35.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    # Six pairs of brokers, each with a handful of answers a second.
    assert answers[0] <= 6 * 10 * 50, answers


def test_a_flipped_bit_in_the_id_of_a_log_loses_no_record() -> None:
    """The broker put the log aside as that of another topic, and began an empty one (F7)."""
    ends: list[int] = []

    async def flipped_id(run: Run) -> None:
        (node,) = run.nodes
        await run.sleep(5.0)
        assert node.broker is not None
        partition = node.broker.partitions.find(ORDERS, 0)
        assert partition is not None
        ends.append(partition.log.log_end_offset)
        path = f"{partition.log.path}/{PARTITION_METADATA}"
        await node.stop()
        text = node.volume.read_bytes(path)
        # The first letter of the id: the changed one may be no letter of an id, which is found out anyway.
        at = text.index(b"topic_id: ") + len(b"topic_id: ")
        bit = next(bit for bit in range(8) if chr(text[at] ^ 1 << bit).isalnum())
        node.volume.flip_bit(path, at, bit)
        node.start()
        await run.cluster.until_ready()
        assert node.broker is not None
        partition = node.broker.partitions.find(ORDERS, 0)
        assert partition is not None
        ends.append(partition.log.log_end_offset)

    outcome = run_scenario(1, flipped_id, Plan(with_groups=False), seconds=10.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert 0 < ends[0] <= ends[1], ends


def _answers_to_followers(run: Run) -> int:
    count = 0
    for node in run.nodes:
        assert node.broker is not None
        assert node.broker.running is not None
        neighbours = node.broker.running.cluster.neighbours
        assert neighbours is not None
        count += sum(fetcher.answers_count for fetcher in neighbours.replication.fetchers.fetchers)
    return count
