"""For a while the disk's calls lack what any of them may need: descriptors, or room.

A lack of descriptors is no failure of the disk: when it is over, everything goes on as before, without a
restart. A broker that ends or gives a directory up because of it has failed the run.
"""

from __future__ import annotations

import errno
from typing import Final

from millrace.sim.cluster import Node
from millrace.sim.faults import restart_if_offline, start_again
from millrace.sim.run import Run
from millrace.sim.volume import Shortage

NEEDS_DESCRIPTOR: Final = ("open", "create", "list")
NEEDS_ROOM: Final = ("create", "write", "truncate", "rename", "remove", "sync", "create directory")
"""A file system that copies on write needs room even to delete, and one that allocates late to sync."""
SHARES: Final = (0.02, 0.2, 0.6, 1.0)
"""Which share of the calls fails: from now and then to all of them."""


async def no_descriptors(run: Run) -> None:
    """The process can open no further file, or now and then cannot."""
    node = run.node
    await _suffer(run, node, Shortage(errno.EMFILE, NEEDS_DESCRIPTOR, run.chance.choice(SHARES)))
    if node.broker is not None and node.broker.directories.offline:
        run.cluster.loop.failures.append(f"broker {node.node_id} gave a disk up for a lack of descriptors")
    await restart_if_offline(run, node)


async def no_room_for_any_call(run: Run) -> None:
    """The disk is full at calls that write nothing, too. A broker gives a directory up where a sync fails
    like this."""
    node = run.node
    await _suffer(run, node, Shortage(errno.ENOSPC, NEEDS_ROOM, run.chance.choice(SHARES)))
    await restart_if_offline(run, node)


async def power_loss_after_a_shortage(run: Run) -> None:
    """What could not be synced during the shortage must have been synced since, or at least before anything
    was acknowledged."""
    for _ in range(run.chance.randint(1, 3)):
        node = run.node
        await _suffer(run, node, Shortage(errno.EMFILE, NEEDS_DESCRIPTOR, 0.2))
        await run.sleep(0.2, 0.7)
        if node.is_running:
            node.lose_power(lose_everything=True)
        await start_again(run, node, (0.2, 1.0))
        await run.sleep(1.0, 4.0)


async def _suffer(run: Run, node: Node, shortage: Shortage) -> None:
    process = node.process
    run.cluster.note(
        f"broker {node.node_id}: {errno.errorcode[shortage.code]} at {shortage.share:.0%} of calls"
    )
    node.volume.shortage = shortage
    await run.sleep(0.2, 15.0)
    # The process may have been replaced meanwhile, and with it the object.
    node.volume.shortage = None
    run.cluster.note(f"broker {node.node_id}: {errno.errorcode[shortage.code]} is over")
    if node.exit_error is not None:
        run.cluster.loop.failures.append(f"broker {node.node_id} ended for a shortage: {node.exit_error}")
    assert node.process is process, "only one fault at a time may happen to a broker here"
