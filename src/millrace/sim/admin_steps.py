"""What people do to a cluster while it is used: they create, grow and delete topics, delete records, change
settings, move replicas, put leaders back. Each is one step of a scenario, to be mixed with faults."""

from __future__ import annotations

from typing import Final

from millrace.sim import faults
from millrace.sim.clients.admin import (
    delete_records_behind,
    delete_topic,
    elect_preferred_leaders,
    grow_topic,
    reassign,
    set_topic_config,
)
from millrace.sim.clients.consumer import Consumer
from millrace.sim.clients.producer import IdempotentProducer
from millrace.sim.history import TopicDeleted
from millrace.sim.run import COPIES, PARTITIONS, Run

GROWING_MAX: Final = 3
"""How many topics may grow in a run: each has clients of its own until the end."""
GROWN_TO: Final = 3
CROWD_TOPICS: Final = 4
CROWD_PARTITIONS: Final = 100
CALL_OFF_CHANCE: Final = 0.2
KILL_CHANCE: Final = 0.4
FEWER_REPLICAS_CHANCE: Final = 0.25
KEPT_MAX: Final = 12
"""How many records a deletion leaves: a few batches, of which the first is mostly cut in two."""
SETTINGS: Final = (
    ("internal.segment.bytes", ("4096", "16384", "65536")),
    ("flush.messages", ("1", "1000", None)),
    ("compression.type", ("gzip", "producer", None)),
    ("index.interval.bytes", ("256", "4096", None)),
)


async def fleeting_topic(run: Run, *, restart_chance: float = 0.0) -> None:
    """A topic is deleted and created again under its name, with clients that do not know (F29).

    A broker that is started again just then has to tell the new topic from what it has left of the old."""
    cluster = run.cluster
    number = run.next_number()
    name = "fleeting"
    if name in run.in_use:
        return
    run.in_use[name] = None
    await run.create_topic(name)
    del run.topics[name]
    if run.chance.random() < restart_chance:
        await run.chance.choice((faults.restart, faults.kill))(run)
    client, process = cluster.client(f"visitor-{number}")
    producer = IdempotentProducer(client, name, PARTITIONS, run.plan.workload)
    reader_client, reader_process = cluster.client(f"watcher-{number}")
    consumer = Consumer(reader_client, name, PARTITIONS, committed_only=False, pause_s=0.3)
    _ = cluster.run_in(process, producer.run())
    _ = cluster.run_in(reader_process, consumer.run())
    await run.sleep(2.0, 10.0)
    cluster.note(f"delete {name}")
    while run.topic_exists(name):
        await run.by_admin(delete_topic(run.admin, name))
    cluster.history.add(TopicDeleted(at=int(cluster.loop.time() * 1000), topic=name))
    if run.chance.random() < KILL_CHANCE:
        await faults.kill(run)
    await run.sleep(0.0, 3.0)
    cluster.end_client(process)
    cluster.end_client(reader_process)
    del run.in_use[name]


async def crowd_of_logs(run: Run) -> None:
    """Hundreds of logs come at once, and most of them go again, while the rest of the work goes on."""
    names = [f"crowd-{run.next_number()}" for _ in range(CROWD_TOPICS)]
    for name in names:
        await run.create_topic(name, partitions=CROWD_PARTITIONS)
        # Nobody writes there, so there is nothing to read and compare in the end.
        del run.topics[name]
    run.cluster.note(f"delete {names[1:]}")
    for name in names[1:]:
        while run.topic_exists(name):
            await run.by_admin(delete_topic(run.admin, name))


async def growing_topic(run: Run) -> None:
    """A topic gets more partitions while it is written and read."""
    number = run.next_number()
    name = f"growing-{number}"
    if sum(topic.startswith("growing-") for topic in run.topics) >= GROWING_MAX:
        return
    await run.create_topic(name, partitions=1)
    run.start_pair(name, (0,))
    await run.sleep(2.0, 10.0)
    run.cluster.note(f"{name} grows")
    await run.by_admin(grow_topic(run.admin, name, GROWN_TO))
    run.topics[name] = tuple(range(GROWN_TO))
    run.start_pair(name, tuple(range(1, GROWN_TO)))


async def move_replicas(run: Run) -> None:
    """A partition gets other replicas, or the same ones in another order, or fewer; some moves are called
    off."""
    topic = run.chance.choice(list(run.topics))
    partition = run.chance.choice(run.topics[topic])
    count = run.plan.replicas
    if count > 2 and run.chance.random() < FEWER_REPLICAS_CHANCE:
        count -= 1
    replicas = run.chance.sample([node.node_id for node in run.nodes], count)
    run.cluster.note(f"move {topic}-{partition} to {replicas}")
    code = await run.by_admin(reassign(run.admin, topic, partition, replicas))
    if code:
        run.cluster.note(f"the move of {topic}-{partition} was refused with {code}")
    elif run.chance.random() < CALL_OFF_CHANCE:
        await run.sleep(0.0, 0.5)
        run.cluster.note(f"call the move of {topic}-{partition} off")
        await run.by_admin(reassign(run.admin, topic, partition, None))
    await run.sleep(0.0, 5.0)


async def delete_records(run: Run) -> None:
    """Most records of a partition go, up to an offset that is as often in the middle of a batch as not."""
    # The copies stay: in the end they are compared with what was copied.
    topic = run.chance.choice([name for name in run.topics if name != COPIES])
    partition = run.chance.choice(run.topics[topic])
    kept = run.chance.randint(0, KEPT_MAX)
    start = await run.by_admin(
        delete_records_behind(run.admin, topic, partition, lambda start, end: max(start, end - kept))
    )
    run.cluster.note(f"delete records of {topic}-{partition}: it begins at {start}")


async def put_leaders_back(run: Run) -> None:
    run.cluster.note("elect the preferred leaders")
    await run.by_admin(elect_preferred_leaders(run.admin))


async def change_settings(run: Run) -> None:
    topic = run.chance.choice(list(run.topics))
    name, values = run.chance.choice(SETTINGS)
    value = run.chance.choice(values)
    run.cluster.note(f"{name} of {topic}: {value}")
    await run.by_admin(set_topic_config(run.admin, topic, name, value))
