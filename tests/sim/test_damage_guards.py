"""Bits that turn at a known moment, in a known place: with what copes with them a run is sound, and without
it the checkers condemn it.

Chance decides elsewhere where bits turn (`F7-bits-anywhere`). Here each kind of file has its turn in every
run, so that one short run of each shows both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from millrace.core.ids import TopicPartition
from millrace.log.directories.scrubber import Scrubber
from millrace.log.partition import log_state
from millrace.log.partition.aborted_checks import IndexCheck
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair import recovery, scrubbing
from millrace.log.segments import checkpoints
from millrace.log.segments.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS
from millrace.log.segments.scanning import BatchReader
from millrace.log.segments.txn_index import ENTRY_SIZE
from millrace.log.state.epochs import FILE_NAME as LEADER_EPOCHS
from millrace.metadata.fold import image_of
from millrace.sim.bit_flips import SCRUBBING, SMALL_SEGMENTS
from millrace.sim.clients.admin import delete_records_behind
from millrace.sim.clients.producer import Workload
from millrace.sim.cluster import Node
from millrace.sim.history import MayBeLost
from millrace.sim.run import ORDERS, Plan, Run, Scenario, run_scenario
from millrace.wire.records import check_batch, split_batches

NO_SCRUB = {"log.scrub.io.max.bytes.per.second": "0"}
ALONE = Plan(
    with_groups=False,
    with_transactions=False,
    keeps_records=True,
    settings=SCRUBBING,
    topic_configs={"internal.segment.bytes": "2048"},
)
WITH_TRANSACTIONS = replace(
    ALONE, with_transactions=True, workload=Workload(pause_s=0.2), topic_configs=SMALL_SEGMENTS
)
THREE = replace(ALONE, nodes=3, replicas=3)
WRITING_S = 20.0


def failed_checks(play: Scenario, plan: Plan) -> list[str]:
    outcome = run_scenario(1, play, plan, seconds=60)
    assert outcome.acked > 50, "hardly anything was written: the run shows nothing"
    return [violation.check for violation in outcome.violations]


# Where bits are.


def closed(node: Node, suffix: str) -> Iterator[str]:
    """Files beside the segments that are not the last ones of their logs, if there is something in them."""
    names = sorted(name for name in node.volume.names if name.endswith(".log") and "/__" not in name)
    last = {name.rpartition("/")[0]: name for name in names}
    for name in names:
        path = name.removesuffix(".log") + suffix
        if name not in last.values() and path in node.volume.names and node.volume.names[path].content:
            yield path


def turn(run: Run, node: Node, path: str, at: int, bit: int) -> None:
    run.cluster.note(f"bit {bit} at {at} of {path} on broker {node.node_id} flips")
    node.volume.flip_bit(path, at, bit)


def turn_number(run: Run, node: Node, path: str, row: str, is_wanted: Callable[[int], bool]) -> None:
    """One bit of the number at the end of a row, so that it becomes one that is wanted."""
    content = bytes(node.volume.names[path].content)
    start = content.index(f"\n{row} ".encode()) + len(row) + 2
    digits = content[start:].split(maxsplit=1)[0]
    for at in range(len(digits)):
        for bit in range(8):
            changed = bytearray(digits)
            changed[at] ^= 1 << bit
            if changed.isdigit() and is_wanted(int(changed)):
                turn(run, node, path, start + at, bit)
                return
    raise AssertionError(f"no bit of {digits!r} gives such a number")


def number_in(node: Node, path: str, row: str) -> int:
    content = bytes(node.volume.names[path].content)
    start = content.index(f"\n{row} ".encode()) + len(row) + 2
    return int(content[start:].split(maxsplit=1)[0])


def destroy(run: Run, node: Node, path: str, batches: list[memoryview], number: int) -> None:
    """A bit of the records of one batch, of which there is no other copy."""
    header = check_batch(batches[number])
    topic, _, partition = path.split("/")[-2].rpartition("-")
    run.cluster.history.add(
        MayBeLost(
            at=int(run.cluster.loop.time() * 1000),
            topic=topic,
            partition=int(partition),
            first_offset=header.base_offset,
            last_offset=header.last_offset,
        )
    )
    turn(run, node, path, sum(map(len, batches[: number + 1])) - 1, 0)


def log_of(node: Node) -> PartitionLog:
    """Of the first partition."""
    assert node.broker is not None
    return node.broker.directories.logs[TopicPartition(ORDERS, 0)]


async def written(run: Run, node: Node, end_offset: int) -> None:
    """Until the first partition is so long. In numbers of three digits a bit makes more of a difference."""
    log = log_of(node)
    await run.cluster.until(
        lambda: log.log_end_offset >= end_offset,
        deadline_s=200.0,
        what=f"{end_offset} records",
    )


def leader_of(run: Run) -> Node | None:
    state = image_of(run.cluster.store.peek()).partition(ORDERS, 0)
    assert state is not None
    return next((node for node in run.nodes if node.node_id == state.leader), None)


async def with_records_of_its_own(run: Run) -> tuple[Node, Node, Node]:
    """The leader of the first partition, with records that the two others do not have, and those."""
    leader = leader_of(run)
    assert leader is not None
    one, other = (node for node in run.nodes if node is not leader)
    for node in (one, other):
        run.cluster.network.cut(leader.host, node.host)
    await run.sleep(3.0)
    return leader, one, other


# What happens.


async def bit_in_an_old_record(run: Run) -> None:
    """On the only broker, which runs: that batch is lost, and nothing else."""
    await run.sleep(WRITING_S)
    (node,) = run.nodes
    path = next(closed(node, ".log"))
    destroy(run, node, path, split_batches(memoryview(bytes(node.volume.names[path].content))), 0)
    await run.sleep(10.0)


async def bit_in_a_base_offset(run: Run) -> None:
    """On followers, which run: they have what their leader has."""
    await run.sleep(WRITING_S)
    for node in run.nodes:
        assert node.broker is not None
        followed = [each.log.path for each in node.broker.partitions if not each.is_leader]
        path = next(name for name in closed(node, ".log") if name.rpartition("/")[0] in followed)
        batches = split_batches(memoryview(bytes(node.volume.names[path].content)))
        offset = check_batch(batches[1]).base_offset
        bit = next(bit for bit in range(8) if not offset >> bit & 1)
        turn(run, node, path, len(batches[0]) + 7, bit)
    await run.sleep(20.0)


def turn_producer_ids(run: Run, node: Node) -> None:
    paths = list(closed(node, ".txnindex"))
    assert paths, "no transaction was aborted"
    for path in paths:
        for start in range(0, len(node.volume.names[path].content), ENTRY_SIZE):
            turn(run, node, path, start + 2 + 7, 6)


async def bits_in_old_aborted_transactions(run: Run) -> None:
    """While the broker runs: nobody reads there before the scrub."""
    await run.sleep(WRITING_S)
    (node,) = run.nodes
    turn_producer_ids(run, node)
    await run.sleep(10.0)


async def bits_in_aborted_transactions_before_a_start(run: Run) -> None:
    await run.sleep(WRITING_S)
    (node,) = run.nodes
    await node.stop()
    turn_producer_ids(run, node)
    node.start()
    await run.cluster.until_ready()


async def bit_in_where_a_log_begins(run: Run) -> None:
    """Moved up, but not out of the log."""
    await run.sleep(WRITING_S)
    (node,) = run.nodes
    start = await run.by_admin(delete_records_behind(run.admin, ORDERS, 0, lambda start, end: 3))
    assert start == 3
    end = log_of(node).log_end_offset
    await node.stop()
    turn_number(run, node, f"/data/{LOG_START_OFFSETS}", f"{ORDERS} 0", lambda number: 3 < number < end)
    node.start()
    await run.cluster.until_ready()


async def bit_in_a_recovery_point(run: Run) -> None:
    """Moved up within the log, past a batch that is damaged: the next start would not look at it. After an
    orderly end the point is where the log ends."""
    (node,) = run.nodes
    await written(run, node, 100)
    await node.stop()
    node.start()
    await run.cluster.until_ready()
    await written(run, node, 250)
    log = log_of(node)
    end, paths = log.log_end_offset, [segment.file.path for segment in log.segments]
    node.kill()
    row = f"{ORDERS} 0"
    before = number_in(node, f"/data/{RECOVERY_POINTS}", row)
    path, batches, number = next(
        (path, batches, number)
        for path in paths
        for batches in [split_batches(memoryview(bytes(node.volume.names[path].content)))]
        for number, batch in enumerate(batches)
        if check_batch(batch).base_offset >= before
    )
    last_offset = check_batch(batches[number]).last_offset
    turn_number(run, node, f"/data/{RECOVERY_POINTS}", row, lambda number: last_offset < number <= end)
    destroy(run, node, path, batches, number)
    node.start()
    await run.cluster.until_ready()


async def bit_in_where_an_epoch_began(run: Run) -> None:
    """A leader goes with records that nobody else has. Its successor is started again and believes that it
    began to lead behind them: then it would not have them cut off."""
    await written(run, run.nodes[0], 100)
    former, successor, third = await with_records_of_its_own(run)
    own_end = log_of(former).log_end_offset
    former.kill()
    run.cluster.network.heal_all()
    await run.cluster.until(
        lambda: leader_of(run) not in (None, former), deadline_s=60.0, what="another leader"
    )
    if leader_of(run) is third:
        successor, third = third, successor
    epoch = image_of(run.cluster.store.peek()).topics[ORDERS].partitions[0].leader_epoch
    log = log_of(successor)
    await written(run, successor, log.log_end_offset + 80)
    await third.stop()
    await successor.stop()
    end = log.log_end_offset
    path = f"{log.path}/{LEADER_EPOCHS}"
    turn_number(run, successor, path, str(epoch), lambda number: own_end <= number <= end)
    for node in (successor, third, former):
        node.start()
        await run.sleep(10.0)


# What copes with it, and how to take it out.


def without_the_scrub(patch: pytest.MonkeyPatch) -> None:
    async def look_at_nothing(scrubber: Scrubber) -> None:
        await asyncio.Event().wait()

    patch.setattr(Scrubber, "run", look_at_nothing)


def without_neighbours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchReader, "is_contradicted", lambda *_: False)


def without_comparing_closed_indexes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scrubbing, "aborted_if_wrong", lambda *_, **__: None)


def without_comparing_indexes_when_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexCheck, "look", lambda *_: None)


def without_checksums_of_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "is_intact", lambda line, *, fields: len(line.split()) == fields)


def without_any_look_at_epochs(patch: pytest.MonkeyPatch) -> None:
    without_checksums_of_rows(patch)
    for module in (log_state, recovery):
        patch.setattr(module, "is_contradicted", lambda *_, **__: False)


class Case(NamedTuple):
    play: Scenario
    plan: Plan
    take_out: Callable[[pytest.MonkeyPatch], None]
    condemned_for: str


CASES = {
    "an old record": Case(bit_in_an_old_record, ALONE, without_the_scrub, "liveness"),
    "a base offset": Case(bit_in_a_base_offset, THREE, without_neighbours, "copies differ"),
    "old aborted transactions": Case(
        bits_in_old_aborted_transactions, WITH_TRANSACTIONS, without_comparing_closed_indexes, "aborted read"
    ),
    "aborted transactions before a start": Case(
        bits_in_aborted_transactions_before_a_start,
        replace(WITH_TRANSACTIONS, settings=NO_SCRUB),
        without_comparing_indexes_when_read,
        "aborted read",
    ),
    "where a log begins": Case(bit_in_where_a_log_begins, ALONE, without_checksums_of_rows, "hidden"),
    "a recovery point": Case(
        bit_in_a_recovery_point, replace(ALONE, settings=NO_SCRUB), without_checksums_of_rows, "liveness"
    ),
    "where an epoch began": Case(
        bit_in_where_an_epoch_began,
        replace(THREE, settings=NO_SCRUB),
        without_any_look_at_epochs,
        "copies differ",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_flipped_bit_does_no_harm(name: str) -> None:
    assert failed_checks(CASES[name].play, CASES[name].plan) == []


@pytest.mark.parametrize("name", CASES)
def test_without_what_copes_with_it_it_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    case.take_out(monkeypatch)
    assert case.condemned_for in failed_checks(case.play, case.plan)
