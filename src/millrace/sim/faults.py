"""What can befall a cluster. Each fault is one step of a scenario: it begins, waits, and puts things right
again."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.core.ids import TopicPartition
from millrace.log.segments import checkpoints
from millrace.sim.cluster import DATA_DIRECTORY, Node
from millrace.sim.history import MayBeLost
from millrace.sim.process import DiskSpeed
from millrace.sim.run import Run
from millrace.sim.store_client import STORE_HOST
from millrace.sim.volume import UNBOUNDED
from millrace.sim.volume import Fault as VolumeFault
from millrace.wire.batch_header import BatchHeader, read_header
from millrace.wire.records import check_batch, split_batches

Fault = Callable[[Run], Awaitable[None]]

CLOCK_OFFSET_MS_MAX: Final = 3_300_000
SLOW_DISK: Final = DiskSpeed(0.05, 1.5)
METADATA_FILES: Final = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    ".snapshot",
    ".index",
    ".timeindex",
)


async def start_again(run: Run, node: Node, down_s: tuple[float, float] = (0.2, 5.0)) -> None:
    await run.sleep(*down_s)
    if not node.is_running:
        node.start()
        run.cluster.note(f"start broker {node.node_id}")


def pick_running(run: Run) -> Node | None:
    candidates = [node for node in run.nodes if node.is_ready]
    return run.chance.choice(candidates) if candidates else None


async def kill(run: Run) -> None:
    node = pick_running(run)
    if node is not None:
        node.kill()
        await start_again(run, node)


async def power_loss(run: Run) -> None:
    node = pick_running(run)
    if node is not None:
        node.lose_power()
        await start_again(run, node, (1.0, 20.0))


async def power_loss_of_a_slow_disk(run: Run) -> None:
    """A broker loses power with much that is written and not yet flushed."""
    node = pick_running(run)
    if node is None or node.process is None:
        return
    node.process.disk_speed = SLOW_DISK
    await run.sleep(1.0, 5.0)
    if node.is_running:
        node.lose_power()
    await start_again(run, node, (1.0, 5.0))


async def power_loss_everywhere(run: Run) -> None:
    for node in run.nodes:
        if node.is_running:
            node.lose_power()
    for node in run.nodes:
        await start_again(run, node, (0.2, 3.0))


async def kill_while_starting(run: Run) -> None:
    """A crash in the middle of recovery: the next start begins with what the last one left."""
    node = pick_running(run)
    if node is None:
        return
    node.lose_power()
    for _ in range(run.chance.randint(1, 3)):
        await start_again(run, node, (0.2, 1.0))
        await run.sleep(0.0, 0.02)
        if node.is_running:
            node.lose_power()
    await start_again(run, node)


async def restart(run: Run) -> None:
    node = pick_running(run)
    if node is not None:
        await node.stop()
        await start_again(run, node, (0.0, 1.0))


async def pause(run: Run) -> None:
    node = pick_running(run)
    if node is None:
        return
    node.pause()
    await run.sleep(0.5, 30.0)
    node.resume()


async def pause_and_kill(run: Run) -> None:
    node = pick_running(run)
    if node is None:
        return
    node.pause()
    await run.sleep(0.5, 15.0)
    if run.chance.random() < 0.5:
        node.resume()
        await run.sleep(0.0, 0.01)
    node.kill()
    await start_again(run, node)


async def cut_off_client(run: Run) -> None:
    """A client and a broker do not hear each other, in both directions or in one."""
    network = run.cluster.network
    node, client = run.node, run.chance.choice(run.cluster.clients)
    way = (node.host, client.host) if run.chance.random() < 0.5 else (client.host, node.host)
    both_ways = run.chance.random() < 0.5
    run.cluster.note(f"cut {way[0]} -> {way[1]}{', both ways' if both_ways else ''}")
    network.cut(*way, both_ways=both_ways)
    await run.sleep(0.5, 45.0)
    run.cluster.note(f"heal {way[0]} - {way[1]}")
    network.heal(*way)


async def reset_connections(run: Run) -> None:
    node = pick_running(run)
    if node is None or node.process is None:
        return
    for client in run.cluster.clients:
        if run.chance.random() < 0.5:
            run.cluster.network.reset_connections(node.process, client.host)
    run.cluster.note(f"reset connections of broker {node.node_id}")


async def slow_link(run: Run) -> None:
    network = run.cluster.network
    node, client = run.node, run.chance.choice(run.cluster.clients)
    delay = run.chance.uniform(0.05, 3.0)
    run.cluster.note(f"{delay:.2f} s between {node.host} and {client.host}")
    network.slow_links[node.host, client.host] = delay
    network.slow_links[client.host, node.host] = delay
    await run.sleep(1.0, 20.0)
    network.slow_links.pop((node.host, client.host), None)
    network.slow_links.pop((client.host, node.host), None)


async def slow_disk(run: Run) -> None:
    node = pick_running(run)
    if node is None or node.process is None:
        return
    process = node.process
    run.cluster.note(f"slow disk of broker {node.node_id}")
    process.disk_speed = SLOW_DISK
    await run.sleep(1.0, 30.0)
    process.disk_speed = DiskSpeed()


async def full_disk(run: Run) -> None:
    node = run.node
    volume = node.volume
    room = run.chance.randrange(0, 2_000)
    run.cluster.note(f"disk of broker {node.node_id} full but for {room} bytes")
    volume.capacity_bytes = volume.used_bytes() + room
    await run.sleep(1.0, 30.0)
    # The process may have been replaced meanwhile, and with it the object.
    node.volume.capacity_bytes = UNBOUNDED
    run.cluster.note(f"disk of broker {node.node_id} has room again")


async def read_only_disk(run: Run) -> None:
    node = run.node
    run.cluster.note(f"disk of broker {node.node_id} read-only")
    node.volume.is_read_only = True
    await run.sleep(1.0, 20.0)
    node.volume.is_read_only = False
    await restart_if_offline(run, node)


async def failing_disk(run: Run) -> None:
    """One operation fails with EIO; after a while a broker that gave its directory up is started again."""
    node = run.node
    operation = run.chance.choice(("write", "sync", "sync", "read"))
    run.cluster.note(f"EIO at the next {operation} of broker {node.node_id}")
    node.volume.fail(operation, errno.EIO, path_contains=".log", after=run.chance.randrange(5))
    await run.sleep(2.0, 20.0)
    node.volume.faults.clear()
    await restart_if_offline(run, node)


async def failing_renames(run: Run) -> None:
    """One rename or some in a row fail: of a log that is deleted, of a segment, of any small file."""
    node = run.node
    code = run.chance.choice((errno.EBUSY, errno.EACCES, errno.EIO))
    contains, ends = run.chance.choice((("fleeting-", "0"), ("fleeting-", "1"), (".log", ""), ("", "")))
    after, times = (0 if ends else run.chance.randrange(6)), run.chance.randint(1, 4)
    run.cluster.note(f"{times} renames of {contains}{ends} fail at broker {node.node_id}")
    node.volume.faults.append(VolumeFault("rename", code, contains, after, times, ends))
    await run.sleep(1.0, 8.0)
    node.volume.faults[:] = [fault for fault in node.volume.faults if fault.operation != "rename"]
    await restart_if_offline(run, node)


async def restart_if_offline(run: Run, node: Node) -> None:
    if node.broker is not None and node.broker.directories.offline:
        node.kill()
    if not node.is_running:
        await start_again(run, node)


async def clock_jump(run: Run) -> None:
    node = run.node
    # Up to an hour away from the clients' clocks: beyond that a broker rightly refuses their timestamps.
    offset_ms = run.chance.randrange(-CLOCK_OFFSET_MS_MAX, CLOCK_OFFSET_MS_MAX)
    run.cluster.note(f"clock of broker {node.node_id} jumps to {offset_ms} ms from the right time")
    node.clock.offset_ms = offset_ms
    await run.sleep(1.0, 10.0)


async def store_outage(run: Run) -> None:
    store = run.cluster.store
    run.cluster.note("the store is away")
    store.set_available(False)
    await run.sleep(1.0, 60.0)
    store.set_available(True)
    run.cluster.note("the store is back")


async def store_cut_off(run: Run) -> None:
    node = run.node
    run.cluster.note(f"broker {node.node_id} does not reach the store")
    run.cluster.network.cut(node.host, STORE_HOST)
    await run.sleep(1.0, 30.0)
    run.cluster.network.heal(node.host, STORE_HOST)


async def store_compaction(run: Run) -> None:
    """The store forgets its history while nobody can watch it."""
    store = run.cluster.store
    run.cluster.note("the store is away and compacted")
    store.set_available(False)
    await run.sleep(0.5, 5.0)
    store.compact()
    store.set_available(True)


async def damaged_files(run: Run) -> None:
    """After a crash one of the small files beside a log is cut, flipped or gone: all can be made again."""
    node = pick_running(run)
    if node is None:
        return
    node.kill()
    volume = node.volume
    names = [name for name in volume.names if name.endswith(METADATA_FILES)]
    if names:
        name = run.chance.choice(names)
        size = len(volume.names[name].content)
        kind = run.chance.choice(("gone", "cut", "flipped"))
        run.cluster.note(f"{name}: {kind}")
        if kind == "gone":
            volume.remove(name)
        elif kind == "cut":
            volume.file(name).truncate(run.chance.randrange(size + 1))
        elif size:
            volume.flip_bit(name, run.chance.randrange(size), run.chance.randrange(8))
    await start_again(run, node)


async def flipped_bit(run: Run) -> None:
    """A bit of a stored batch turns while the broker is down: that batch is lost, and no other."""
    node = pick_running(run)
    if node is None:
        return
    node.kill()
    flip_bit(run, node, is_only_copy=True)
    await start_again(run, node)


def flip_bit(run: Run, node: Node, *, is_only_copy: bool) -> None:
    """Turn a bit of a batch that the next start has to look at."""
    logs = [
        name
        for name, inode in node.volume.names.items()
        if name.endswith(".log") and "/__" not in name and inode.content and name not in run.damaged
    ]
    if not logs:
        return
    name = run.chance.choice(logs)
    batches = batches_before_the_end(node, name)
    recovery_point = _recovery_point(node, name)
    # A start does not read what was flushed before the last checkpoint: readers find damage there by its
    # checksum.
    numbers = [
        number for number, batch in enumerate(batches) if read_header(batch).base_offset >= recovery_point
    ]
    if not numbers:
        return
    number = run.chance.choice(numbers)
    start = sum(len(batch) for batch in batches[:number])
    at = start + run.chance.randrange(len(batches[number]))
    header = check_batch(batches[number])
    run.damaged[name] = None
    run.cluster.note(f"a bit of {name} flips at {at}")
    if is_only_copy:
        note_that_it_may_be_lost(run, name, header)
    node.volume.flip_bit(name, at, run.chance.randrange(8))


def batches_before_the_end(node: Node, name: str) -> list[memoryview]:
    """The batches of a segment file, but not the last one of the log: damage at the very end looks like a
    write that was torn, and is cut off as such."""
    directory = name.rpartition("/")[0]
    batches = split_batches(memoryview(bytes(node.volume.names[name].content)))
    newest = max(each for each in node.volume.names if each.startswith(directory) and each.endswith(".log"))
    return batches[:-1] if name == newest else batches


def note_that_it_may_be_lost(run: Run, name: str, header: BatchHeader) -> None:
    """Tell the checkers that the only copy of a batch in this segment file was destroyed."""
    topic, partition = _partition_of(name)
    run.cluster.history.add(
        MayBeLost(
            at=int(run.cluster.loop.time() * 1000),
            topic=topic,
            partition=partition,
            first_offset=header.base_offset,
            last_offset=header.last_offset,
        )
    )


def _partition_of(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("/")[0].rpartition("/")[2].rpartition("-")
    return TopicPartition(topic, int(partition))


def _recovery_point(node: Node, name: str) -> int:
    points = checkpoints.read_offsets(node.volume, f"{DATA_DIRECTORY}/{checkpoints.RECOVERY_POINTS}")
    return points.get(_partition_of(name), 0)
