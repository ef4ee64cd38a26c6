"""What can befall a broker with several data directories: logs move between them, and a directory fails."""

from __future__ import annotations

import errno
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.core.ids import TopicPartition
from millrace.sim.clients.client import ErrorAnswer
from millrace.sim.cluster import PORT, Node
from millrace.sim.faults import pick_running, start_again
from millrace.sim.process import DiskSpeed
from millrace.sim.run import Run
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)

DIRECTORIES: Final = ("/data", "/disk2")
SETTINGS: Final = {"log.dirs": ",".join(DIRECTORIES)}
ALTER_VERSION: Final = 2


async def move_logs(run: Run) -> None:
    """Some logs of a broker are to move to one of its directories, where they may be already."""
    node = pick_running(run)
    if node is None or node.broker is None:
        return
    names = sorted(node.broker.directories.logs)
    path = run.chance.choice(DIRECTORIES)
    chosen = run.chance.sample(names, min(len(names), run.chance.randint(1, 3)))
    run.cluster.note(f"broker {node.node_id}: {', '.join(map(str, chosen))} to {path}")
    try:
        await run.by_admin(_ask(run, node, path, chosen))
    except (ConnectionFailed, ErrorAnswer):
        return


async def _ask(run: Run, node: Node, path: str, names: list[TopicPartition]) -> None:
    topics = [AlterReplicaLogDirTopic(name=name.topic, partitions=[name.partition]) for name in names]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    await run.admin.ask((node.host, PORT), ApiKey.ALTER_REPLICA_LOG_DIRS, ALTER_VERSION, request)


async def crash_in_a_move(run: Run) -> None:
    """The process or the power goes while logs move, on slow disks that leave time for it."""
    for each in run.nodes:
        if each.process is not None:
            each.process.disk_speed = DiskSpeed(0.005, 0.1)
    await move_logs(run)
    node = pick_running(run)
    if node is None:
        return
    await run.sleep(0.0, 1.0)
    for each in run.nodes:
        if each.process is not None:
            each.process.disk_speed = DiskSpeed()
    if node.is_running:
        if run.chance.random() < 0.5:
            node.kill()
        else:
            node.lose_power()
    await start_again(run, node)


async def failing_directory(run: Run) -> None:
    """Writes to one directory fail for as long as the broker runs; other brokers take over what it led
    there."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    path = run.chance.choice(DIRECTORIES)
    run.cluster.note(f"broker {node.node_id}: {path} fails")
    for operation in ("write", "sync"):
        node.volume.fail(operation, errno.EIO, path_contains=f"{path}/", times=2**40)
    await run.sleep(5.0, 30.0)
    if run.chance.random() < 0.3 and node.is_running:
        # The broker is started again, and finds the directory as bad as it was.
        node.kill()
        node.start()
        node.volume.fail("list", errno.EIO, path_contains=path, times=2)
        await run.sleep(5.0, 20.0)
    run.cluster.note(f"broker {node.node_id}: {path} is sound again")
    node.volume.faults.clear()
    if node.is_running:
        node.kill()
    await start_again(run, node)
    await run.sleep(20.0, 40.0)
