"""Bits that turn in any file of a log, flushed long ago or just now, while a broker runs or is down.

The file with a directory's identity is left out: with damage there a broker refuses to start. The base offset
and the leader epoch of a batch and the index of aborted transactions have no checksum. A reader that begins
there finds the damage by comparing; for readers that come past it, the scrub finds it. So bits turn there
only on a follower, where nobody reads before the scrub.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.log.segments import checkpoints
from millrace.log.segments.checkpoints import RECOVERY_POINTS
from millrace.log.state.epochs import FILE_NAME as LEADER_EPOCHS
from millrace.sim.cluster import Node
from millrace.sim.faults import (
    batches_before_the_end,
    note_that_it_may_be_lost,
    pick_running,
    start_again,
)
from millrace.sim.run import Run
from millrace.wire.records import check_batch, split_batches

SCRUBBING: Final = {"log.scrub.interval.ms": "2000"}
"""Lets the scrub find damage within seconds."""
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "8192"}
_BESIDE: Final = (".index", ".timeindex", ".snapshot")
_SMALL: Final = (
    RECOVERY_POINTS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.CLEANER_OFFSETS,
    checkpoints.SCRUB_TIMES,
    checkpoints.CLEAN_SHUTDOWN,
    checkpoints.PARTITION_METADATA,
    LEADER_EPOCHS,
)
_IN_A_HEADER: Final = 0.4
_WITHOUT_CHECKSUM: Final = (*range(8), *range(12, 16))
"""Base offset and leader epoch."""
_HEADER_BYTES: Final = (8, 9, 10, 11, 16)
"""Length and format: bytes with another length or format are no batch."""
_CHECKSUM_AT: Final = 17


async def bits_anywhere(run: Run) -> None:
    """Bits turn on the only copy: a batch is lost, and nothing else (F7)."""
    node = pick_running(run)
    if node is not None:
        await _turn_bits(run, node, is_only_copy=True)


async def bits_on_one(run: Run) -> None:
    """Bits turn on one of several copies: nothing may be lost. Then the others go, so that this broker leads
    with what it mended (F7)."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    await _turn_bits(run, node, is_only_copy=False)
    await run.sleep(20.0, 30.0)
    for other in run.nodes:
        if other is not node and all(each.is_ready for each in run.nodes):
            other.kill()
            await run.sleep(2.0, 6.0)
            await start_again(run, other)
            await run.sleep(10.0, 15.0)


async def _turn_bits(run: Run, node: Node, *, is_only_copy: bool) -> None:
    how = run.chance.choice(("running", "stopped", "killed"))
    assert node.broker is not None
    # The directories of logs that others lead, as the broker knew while it ran.
    followed = [each.log.path for each in node.broker.partitions if not each.is_leader]
    if how == "stopped":
        await node.stop()
    elif how == "killed":
        node.kill()
    for _ in range(run.chance.randint(1, 3)):
        _turn_one(run, node, followed, is_only_copy=is_only_copy)
    if how != "running":
        await start_again(run, node)


def _turn_one(run: Run, node: Node, followed: Sequence[str], *, is_only_copy: bool) -> None:
    names = [
        name
        for name, inode in node.volume.names.items()
        if "/__" not in name and "." not in name.rpartition("/")[0] and inode.content
    ]
    beside = [name for name in names if name.endswith(_BESIDE)]
    logs = [name for name in names if name.endswith(".log") and name not in run.damaged]
    small = [name for name in names if name.endswith(_SMALL) and name not in run.damaged]
    aborted = [name for name in _closed_aborted(names) if name.rpartition("/")[0] in followed]
    kind = run.chance.random()
    if small and kind < 0.3:
        name = run.chance.choice(small)
        _turn_any(run, node, name)
        if name.endswith(checkpoints.PARTITION_METADATA):
            # With a second bit it could be the id of another topic, for all that anybody could tell.
            run.damaged[name] = None
    elif aborted and kind < 0.4:
        _turn_any(run, node, run.chance.choice(aborted))
    elif beside and kind < 0.6:
        _turn_any(run, node, run.chance.choice(beside))
    elif logs:
        name = run.chance.choice(logs)
        odd = _WITHOUT_CHECKSUM if name.rpartition("/")[0] in followed else ()
        _turn_batch(run, node, name, odd, is_only_copy=is_only_copy)


def _turn_any(run: Run, node: Node, name: str) -> None:
    at = run.chance.randrange(len(node.volume.names[name].content))
    run.cluster.note(f"a bit of {name} flips at {at}")
    node.volume.flip_bit(name, at, run.chance.randrange(8))


def _closed_aborted(names: list[str]) -> list[str]:
    """The indexes of aborted transactions beside closed segments, which the scrub compares."""
    last = {name.rpartition("/")[0]: name for name in sorted(names) if name.endswith(".log")}
    return [
        name
        for name in names
        if name.endswith(".txnindex") and name.removesuffix(".txnindex") + ".log" not in last.values()
    ]


def _turn_batch(run: Run, node: Node, name: str, odd_bytes: Sequence[int], *, is_only_copy: bool) -> None:
    batches = batches_before_the_end(node, name)
    if not batches:
        return
    number = run.chance.randrange(len(batches))
    header = check_batch(batches[number])
    start = sum(len(batch) for batch in batches[:number])
    # Headers get more than their share of the bits, since many read them and nothing else.
    covered = range(_CHECKSUM_AT, len(batches[number]))
    at = start + run.chance.choice(
        (*_HEADER_BYTES, *odd_bytes) if run.chance.random() < _IN_A_HEADER else covered
    )
    run.damaged[name] = None
    run.cluster.note(f"a bit of {name} flips at {at}, offset {header.base_offset}")
    if is_only_copy:
        note_that_it_may_be_lost(run, name, header)
    node.volume.flip_bit(name, at, run.chance.randrange(8))


async def bit_in_a_marker(run: Run) -> None:
    """The ends of transactions are damaged on a broker that was killed, and come back from the others; then
    that broker leads. What was aborted must stay hidden (F7)."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    node.kill()
    for name in [name for name in node.volume.names if name.endswith(".log") and "/__" not in name]:
        batches = split_batches(memoryview(bytes(node.volume.names[name].content)))[:-1]
        markers = [number for number, batch in enumerate(batches) if check_batch(batch).is_control]
        if markers and name not in run.damaged:
            run.damaged[name] = None
            number = markers[-1]
            run.cluster.note(
                f"a bit of the marker {check_batch(batches[number]).base_offset} of {name} flips"
            )
            node.volume.flip_bit(name, sum(len(batch) for batch in batches[: number + 1]) - 1, 1)
    for name in [name for name in node.volume.names if name.endswith(RECOVERY_POINTS)]:
        # So that the next start looks at all of the log, and builds everything from what it finds.
        node.volume.remove(name)
    await start_again(run, node)
    await run.sleep(30.0, 40.0)
    others = [other for other in run.nodes if other is not node]
    if all(each.is_ready for each in run.nodes):
        for other in others:
            other.kill()
        await run.sleep(20.0, 30.0)
        for other in others:
            await start_again(run, other)
