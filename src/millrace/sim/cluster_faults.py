"""What can befall brokers of a cluster: cuts between them, quick failovers, disks that come back empty."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.app import Broker
from millrace.metadata.fold import image_of
from millrace.sim.admin_steps import delete_records
from millrace.sim.cluster import Node
from millrace.sim.faults import flip_bit, kill, pick_running, start_again
from millrace.sim.history import RefusedConnections
from millrace.sim.run import Run
from millrace.sim.store_client import STORE_HOST
from millrace.sim.volume import SimVolume

CRASH_CHANCE: Final = 0.3


async def cut_brokers(run: Run) -> None:
    """Two brokers do not hear each other, or one does not hear the other."""
    network, chance = run.cluster.network, run.chance
    first, second = chance.sample(run.nodes, 2)
    both_ways = chance.random() < 0.5
    run.cluster.note(f"cut {first.host} -> {second.host}{', both ways' if both_ways else ''}")
    network.cut(first.host, second.host, both_ways=both_ways)
    await run.sleep(0.5, 40.0)
    run.cluster.note(f"heal {first.host} - {second.host}")
    network.heal(first.host, second.host)


async def cut_off_one(run: Run) -> None:
    """One broker is alone: without the others, and perhaps without the store or without clients."""
    network, chance = run.cluster.network, run.chance
    node = chance.choice(run.nodes)
    hosts = [other.host for other in run.nodes if other is not node]
    if chance.random() < 0.5:
        hosts.append(STORE_HOST)
    if chance.random() < 0.5:
        hosts += [client.host for client in run.cluster.clients]
    run.cluster.note(f"cut broker {node.node_id} off from {len(hosts)} hosts")
    for host in hosts:
        network.cut(node.host, host)
    await run.sleep(1.0, 40.0)
    run.cluster.note(f"broker {node.node_id} is back in the network")
    for host in hosts:
        network.heal(node.host, host)


async def cut_off_from_the_cluster(run: Run) -> None:
    """A broker reaches neither the others nor the store, for longer than its lease; clients still reach it
    (F11)."""
    network = run.cluster.network
    node = run.chance.choice(run.nodes)
    hosts = [STORE_HOST, *(other.host for other in run.nodes if other is not node)]
    run.cluster.note(f"cut broker {node.node_id} off from the cluster, not from clients")
    for host in hosts:
        network.cut(node.host, host)
    await run.sleep(8.0, 40.0)
    run.cluster.note(f"broker {node.node_id} is back in the cluster")
    for host in hosts:
        network.heal(node.host, host)


async def quick_failovers(run: Run) -> None:
    """One leader after the other goes before the rest has come to rest (F1, F2). Only one of them may lose
    power: two that do at the same time take with them what both had acknowledged and neither had flushed."""
    gone: list[Node] = []
    has_power_to_lose = True
    for _ in range(run.chance.randint(2, 4)):
        node = pick_running(run)
        if node is None:
            break
        if has_power_to_lose and run.chance.random() < 0.5:
            node.lose_power()
            has_power_to_lose = False
        else:
            node.kill()
        gone.append(node)
        await run.sleep(0.0, 3.0)
        if run.chance.random() < 0.7:
            await start_again(run, gone.pop(0), (0.0, 0.5))
    for node in gone:
        await start_again(run, node, (0.0, 1.0))


async def failover_with_slow_replication(run: Run) -> None:
    """A leader goes while the others are behind: records that only the leader had must not have been
    acknowledged, and must be gone when it is back (F1, F5)."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    network = run.cluster.network
    others = [other.host for other in run.nodes if other is not node]
    delay = run.chance.uniform(0.3, 1.5)
    run.cluster.note(f"{delay:.2f} s between broker {node.node_id} and the others")
    for host in others:
        network.slow_links[node.host, host] = network.slow_links[host, node.host] = delay
    await run.sleep(1.0, 4.0)
    if run.chance.random() < 0.5:
        node.kill()
    else:
        node.lose_power()
    for host in others:
        network.slow_links.pop((node.host, host), None)
        network.slow_links.pop((host, node.host), None)
    await start_again(run, node, (1.0, 8.0))


async def last_one_loses_power(run: Run) -> None:
    """All brokers but one are down long enough to leave the in-sync set; then the last one forgets what it
    did not flush, and is the first to be back (F4)."""
    nodes = [node for node in run.nodes if node.is_ready]
    if len(nodes) < 2:
        return
    run.chance.shuffle(nodes)
    *others, last = nodes
    for node in others:
        node.kill()
        await run.sleep(0.5, 20.0)
    if last.is_running:
        last.lose_power()
    await start_again(run, last, (0.5, 5.0))
    for node in others:
        await start_again(run, node, (0.5, 10.0))


async def last_two_go_together(run: Run) -> None:
    """Two brokers are in sync. At the same moment one loses power, which nobody notices, and the other is
    killed: that one has everything, and must lead, whoever comes back first (F4)."""
    if not await _is_all_in_sync(run):
        return
    third, powerless, intact = run.chance.sample(run.nodes, 3)
    third.kill()
    # Long enough that the cluster counts it out, and that it misses something.
    await run.sleep(10.0, 20.0)
    if powerless.is_ready and intact.is_ready:
        powerless.lose_power()
        await run.sleep(0.0, 0.05)
        intact.kill()
    await asyncio.gather(
        start_again(run, intact, (0.0, 15.0)),
        start_again(run, powerless, (0.0, 15.0)),
        start_again(run, third, (0.0, 30.0)),
    )


async def _is_all_in_sync(run: Run) -> bool:
    """Whether one broker can be lost without leaving another as the last that has everything."""
    image = image_of(await run.cluster.store.load())
    return all(node.is_ready for node in run.nodes) and all(
        sorted(state.isr) == sorted(state.replicas)
        for topic in image.topics.values()
        for state in topic.partitions
    )


async def empty_disk(run: Run) -> None:
    """A broker comes back with its old number and nothing on its disk (F33)."""
    if not all(node.is_ready for node in run.nodes):
        return
    node = run.chance.choice(run.nodes)
    node.lose_power()
    run.cluster.note(f"broker {node.node_id} gets an empty disk")
    node.volume = SimVolume(run.cluster.fork(), wall_ms=node.clock.wall_ms)
    await start_again(run, node, (0.5, 10.0))
    # A second disk must not go before the first is whole again: three copies bear one such loss at a time.
    await run.sleep(60.0, 90.0)


async def records_go_while_one_is_away(run: Run) -> None:
    """The records that a broker needs next are deleted while it is down, up to the middle of a batch. It
    comes back with what it had, or with nothing."""
    if not all(node.is_ready for node in run.nodes):
        return
    node = run.chance.choice(run.nodes)
    is_empty = run.chance.random() < 0.5
    if is_empty:
        node.lose_power()
        run.cluster.note(f"broker {node.node_id} gets an empty disk")
        node.volume = SimVolume(run.cluster.fork(), wall_ms=node.clock.wall_ms)
    else:
        node.kill()
    await run.sleep(5.0, 15.0)
    for _ in range(run.chance.randint(2, 6)):
        await delete_records(run)
    await start_again(run, node, (0.5, 3.0))
    if is_empty:
        await run.sleep(60.0, 90.0)


async def refuse_connections(run: Run) -> None:
    """Something in front of a broker refuses every new connection in its place, while the broker runs on;
    open connections stay or are reset."""
    node = pick_running(run)
    if node is None or node.process is None:
        return
    cluster, process = run.cluster, node.process
    cluster.note(f"connections to broker {node.node_id} are refused")
    before = cluster.registrations.lost_count(node.host)
    cluster.network.refuse(node.host)
    cluster.registrations.expect_mistakes(node.host, are_possible=True)
    for _ in range(run.chance.randint(2, 6)):
        other = run.chance.choice([each for each in run.nodes if each is not node])
        cluster.network.reset_connections(process, other.host)
        await run.sleep(1.0, 10.0)
    cluster.network.stop_refusing(node.host)
    # A broker that is just connecting may still be wrong about this one.
    await run.sleep(1.0)
    cluster.registrations.expect_mistakes(node.host, are_possible=False)
    cluster.note(f"broker {node.node_id} can be connected to again")
    cluster.history.add(
        RefusedConnections(
            at=int(cluster.loop.time() * 1000),
            node_id=node.node_id,
            leases_lost=cluster.registrations.lost_count(node.host) - before,
            others=len(run.nodes) - 1,
        )
    )


async def rolling_restart(run: Run) -> None:
    for node in run.nodes:
        if node.is_ready:
            await node.stop()
            await start_again(run, node, (0.0, 1.0))
            await run.sleep(1.0, 10.0)


async def roll_forward_and_back(run: Run) -> None:
    """Every broker is replaced by the next release, one after the other, and by the last one again; now and
    then one crashes on the way (F31)."""
    before = run.plan.first_broker
    assert before is not None
    for release in (Broker, before):
        for node in run.chance.sample(run.nodes, len(run.nodes)):
            run.cluster.note(f"broker {node.node_id} becomes a {release.__name__}")
            node.new_broker = release
            if node.is_ready:
                await node.stop()
            await start_again(run, node, (0.0, 1.0))
            await run.sleep(1.0, 10.0)
            if run.chance.random() < CRASH_CHANCE:
                await kill(run)


async def flipped_bit_on_one(run: Run) -> None:
    """A bit of a stored batch turns on one of several copies: nothing may be lost (F7)."""
    node = pick_running(run)
    if node is None or not all(each.is_ready for each in run.nodes):
        return
    node.kill()
    flip_bit(run, node, is_only_copy=False)
    await start_again(run, node)
    await run.sleep(30.0, 60.0)
