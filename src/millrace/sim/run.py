"""One run of a scenario: topics, clients, faults for a while, then everything healed, read and checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.broker.app import Broker
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.sim.checkers import Violation, violations
from millrace.sim.clients.admin import create_topic
from millrace.sim.clients.client import ErrorAnswer
from millrace.sim.clients.connection import Unanswered
from millrace.sim.clients.consumer import Consumer, read_everything
from millrace.sim.clients.consumer_member import ConsumerMember
from millrace.sim.clients.copier import Copier
from millrace.sim.clients.group_member import GroupMember
from millrace.sim.clients.offsets import fetch_offsets
from millrace.sim.clients.producer import IdempotentProducer, Workload
from millrace.sim.clients.reading import LATEST, list_offset
from millrace.sim.clients.transactional_producer import TransactionalProducer
from millrace.sim.cluster import ClientFailed, Cluster, Node, TooLate
from millrace.sim.history import ReplicaRead
from millrace.sim.loop import Stuck
from millrace.sim.process import DiskSpeed, Process
from millrace.sim.volume import UNBOUNDED, SimVolume
from millrace.wire.batch_header import BatchHeader, read_header
from millrace.wire.records import split_batches

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
COPIES: Final = "copies"
PARTITIONS: Final = (0, 1)
GROUP: Final = "workers"
CONSUMER_GROUP: Final = "helpers"
"""A group of the classic protocol and one of the consumer protocol."""
TRANSACTION_TIMEOUT_MS: Final = 15_000
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "16384"}
"""So that every kind of file comes to its turn."""
COPIES_S: Final = 20.0
"""For followers to catch up and to hear what is committed."""
END_S: Final = 600.0
"""How long after the last fault clients may take to come to an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a scenario needs before it begins."""

    nodes: int = 1
    replicas: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    workload: Workload = field(default_factory=Workload)
    with_transactions: bool = True
    with_groups: bool = True


Scenario = Callable[["Run"], Awaitable[None]]


@dataclass(slots=True)
class Outcome:
    seed: int
    digest: str
    simulated_s: float
    events: int
    callbacks: int
    acked: int
    violations: list[Violation]


class Run:
    """Handed to a scenario; `seconds` is how long it should keep on making trouble."""

    def __init__(
        self, seed: int, plan: Plan, seconds: float, new_broker: Callable[..., Broker] = Broker
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.seconds = seconds
        self.cluster = Cluster(seed, nodes=plan.nodes, settings=plan.settings, new_broker=new_broker)
        self.chance = self.cluster.fork()
        self.producers: list[IdempotentProducer] = []
        self.transactional: list[TransactionalProducer] = []
        self.copiers: list[Copier] = []
        self.consumers: list[Consumer] = []
        self.members: list[GroupMember] = []
        self.topics: dict[str, tuple[int, ...]] = {}
        """What is read and checked in the end, with the partitions."""
        self.damaged: dict[str, None] = {}
        """Files in which a bit was flipped."""
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self.admin, self.admin_process = self.cluster.client("admin")

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    @property
    def node(self) -> Node:
        return self.chance.choice(self.nodes)

    async def sleep(self, least: float, most: float | None = None) -> None:
        await asyncio.sleep(least if most is None else self.chance.uniform(least, most))

    def time_left(self) -> float:
        return self.seconds - self.cluster.loop.time()

    # The beginning.

    async def begin(self) -> None:
        self.cluster.start()
        await self.cluster.until_ready()
        for topic in (ORDERS, PAYMENTS, COPIES):
            await self.create_topic(topic)
        self._start_clients()

    async def create_topic(self, name: str, configs: Mapping[str, str] | None = None) -> None:
        work = create_topic(
            self.admin,
            name,
            partitions=len(PARTITIONS),
            replicas=self.plan.replicas,
            configs={**SMALL_SEGMENTS, **self.plan.topic_configs, **(configs or {})},
        )
        await self.by_admin(work)
        self.topics[name] = PARTITIONS

    async def by_admin(self, work: Any) -> Any:
        return await self.cluster.run_in(self.admin_process, work)

    def _start_clients(self) -> None:
        load = self.plan.workload
        for number in (1, 2):
            client, process = self.cluster.client(f"producer-{number}")
            producer = IdempotentProducer(client, ORDERS, PARTITIONS, load)
            self.producers.append(producer)
            self.start(producer, process)
        self._start_consumer(ORDERS, committed_only=False)
        if self.plan.with_transactions:
            self._start_transactions(load)
        if self.plan.with_groups:
            for number in (1, 2, 3):
                self._start_member(GroupMember, GROUP, number)
            for number in (1, 2):
                self._start_member(ConsumerMember, CONSUMER_GROUP, number)

    def _start_member(self, kind: type[GroupMember], group: str, number: int) -> None:
        client, process = self.cluster.client(f"{group}-{number}")
        member = kind(client, group, ORDERS, PARTITIONS, pause_s=2 * self.plan.workload.pause_s)
        self.members.append(member)
        self.start(member, process)

    def _start_transactions(self, load: Workload) -> None:
        places = [(topic, partition) for topic in (PAYMENTS, ORDERS) for partition in PARTITIONS]
        for is_new in (False, True):
            client, process = self.cluster.client(f"ledger-{'new' if is_new else 'old'}")
            writer = TransactionalProducer(
                client, places, load, is_new=is_new, timeout_ms=TRANSACTION_TIMEOUT_MS
            )
            self.transactional.append(writer)
            self.start(writer, process)
        client, process = self.cluster.client("copier")
        copier = Copier(
            client,
            ORDERS,
            COPIES,
            PARTITIONS,
            load,
            is_new=self.chance.random() < 0.5,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        self.copiers.append(copier)
        self.start(copier, process)
        self._start_consumer(PAYMENTS, committed_only=True)

    def _start_consumer(self, topic: str, *, committed_only: bool) -> None:
        client, process = self.cluster.client(f"consumer-of-{topic}")
        consumer = Consumer(
            client, topic, PARTITIONS, committed_only=committed_only, pause_s=self.plan.workload.pause_s
        )
        self.consumers.append(consumer)
        self.start(consumer, process)

    def start(self, who: Any, process: Process) -> None:
        task = self.cluster.run_in(process, who.run())
        task.add_done_callback(lambda done: self._ended(process.name, done))
        self._tasks[who] = task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Clients deal with everything that a broker may rightly answer: what gets out of them is a
        finding."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.cluster.problem = f"{name}: {type(error).__name__}: {error}"

    # The end.

    async def finish(self) -> None:
        self.cluster.note("heal everything")
        await self.heal()
        await self._end(*self.producers, *self.transactional)
        await self._until_stable()
        await self._until_all_is_read()
        await self._end(*self.copiers, *self.consumers, *self.members)
        await self._until_stable()
        for topic, partitions in self.topics.items():
            for partition in partitions:
                for committed_only in (False, True):
                    await self.by_admin(
                        read_everything(self.admin, topic, partition, committed_only=committed_only)
                    )

        if len(self.nodes) > 1:
            await self._read_copies()

    async def _read_copies(self) -> None:
        """Let followers hear what is committed, then note what each broker has."""
        await asyncio.sleep(COPIES_S)
        for node in self.nodes:
            assert node.broker is not None
            for place, log in node.broker.directory.logs.items():
                if log.config.cleanup_compact:
                    # Each broker compacts when it likes.
                    continue
                batches = [
                    (header.base_offset, header.crc)
                    for segment in log.segments
                    for header in _headers(node.volume, segment.file.path)
                ]
                self.cluster.history.add(
                    ReplicaRead(
                        at=int(self.cluster.loop.time() * 1000),
                        node_id=node.node_id,
                        topic=place.topic,
                        partition=place.partition,
                        log_start=log.log_start_offset,
                        high_watermark=log.high_watermark,
                        batches=tuple(batches),
                    )
                )

    async def heal(self) -> None:
        """All machines up and sound, all links whole, and every broker serving."""
        cluster = self.cluster
        cluster.store.set_available(True)
        for node in self.nodes:
            node.volume.capacity_bytes = UNBOUNDED
            node.volume.is_read_only = False
            node.volume.faults.clear()
            node.resume()
            if node.process is not None:
                node.process.disk_speed = DiskSpeed()
            if node.broker is not None and node.broker.directory.offline_reason is not None:
                node.kill()
            if not node.is_running:
                node.start()
        cluster.network.heal_all()
        await cluster.until_ready(120.0)

    async def _end(self, *who: Any) -> None:
        for each in who:
            each.is_stopping = True
        for each in who:
            task = self._tasks.pop(each)
            self.cluster.stop_if_problem()
            try:
                async with asyncio.timeout(END_S):
                    await asyncio.shield(task)
            except TimeoutError:
                raise TooLate(f"{each.client.name} has not ended in {END_S:g} s") from None
            except Exception:
                self.cluster.stop_if_problem()
                raise

    async def _until_stable(self) -> None:
        """Until no transaction is open any more, or should be; the checkers judge what is found then."""
        deadline = self.cluster.loop.time() + 4 * TRANSACTION_TIMEOUT_MS / 1000
        while not await self._is_stable():
            await asyncio.sleep(0.5)
            if self.cluster.loop.time() > deadline:
                return

    async def _is_stable(self) -> bool:
        for topic, partitions in self.topics.items():
            for partition in partitions:
                stable = await self._end_of(topic, partition, committed_only=True)
                if stable < await self._end_of(topic, partition, committed_only=False):
                    return False
        return True

    async def _end_of(self, topic: str, partition: int, *, committed_only: bool) -> int:
        for _ in range(1_000):
            work = list_offset(self.admin, topic, partition, LATEST, committed_only=committed_only)
            try:
                return int(await self.by_admin(work))
            except (Unanswered, ErrorAnswer):
                self.admin.forget_leader(topic)
                await asyncio.sleep(0.2)
        raise TooLate(f"{topic}-{partition} does not tell where it ends")

    async def _until_all_is_read(self) -> None:
        for copier in self.copiers:
            copier.is_idle = False
        await self.cluster.until(
            lambda: all(copier.is_idle for copier in self.copiers),
            deadline_s=END_S,
            what="the end of the copying",
        )
        await self._until_stable()
        for consumer in self.consumers:
            await self._until_at_the_end(consumer)
        for group in dict.fromkeys(member.group for member in self.members):
            await self._until_group_is_done(group)

    async def _until_at_the_end(self, consumer: Consumer) -> None:
        ends = {
            partition: await self._end_of(consumer.topic, partition, committed_only=consumer.committed_only)
            for partition in PARTITIONS
        }
        await self.cluster.until(
            lambda: all(consumer.positions[partition] >= end for partition, end in ends.items()),
            deadline_s=END_S,
            what=f"{consumer.client.name} at the end",
        )

    async def _until_group_is_done(self, group: str) -> None:
        ends = {
            partition: await self._end_of(ORDERS, partition, committed_only=True) for partition in PARTITIONS
        }
        deadline = self.cluster.loop.time() + END_S
        while self.cluster.loop.time() < deadline:
            try:
                found = await self.by_admin(fetch_offsets(self.admin, group, ORDERS, PARTITIONS))
            except (Unanswered, ErrorAnswer):
                found = {}
            if found and all(found[partition] >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(1.0)
        raise TooLate(f"the group {group} has not read everything in {END_S:g} s")


def _headers(volume: SimVolume, path: str) -> Iterator[BatchHeader]:
    inode = volume.names.get(path)
    if inode is not None:
        for batch in split_batches(memoryview(bytes(inode.content))):
            yield read_header(batch)


def run_scenario(
    seed: int,
    scenario: Scenario,
    plan: Plan,
    *,
    seconds: float,
    new_broker: Callable[..., Broker] = Broker,
) -> Outcome:
    """Run it from its seed and judge what happened."""
    with _watched_log() as logged:
        run = Run(seed, plan, seconds, new_broker)
        found: list[Violation] = []
        try:
            run.cluster.loop.run(_play(run, scenario))
        except (TooLate, Stuck) as error:
            found.append(Violation("liveness", str(error)))
        except ClientFailed as error:
            found.append(Violation("client failed", str(error)))
        finally:
            run.cluster.close()
        history = run.cluster.history
        found += violations(history)
        found += [Violation("failure", failure) for failure in run.cluster.loop.failures]
        found += [Violation("failure", each) for each in logged]
    return Outcome(
        seed=seed,
        digest=history.digest(),
        simulated_s=run.cluster.loop.time(),
        events=len(history.events),
        callbacks=run.cluster.loop.callbacks_count,
        acked=sum(producer.acked_count for producer in run.producers),
        violations=found,
    )


async def _play(run: Run, scenario: Scenario) -> None:
    await run.begin()
    await scenario(run)
    await run.finish()


class _Failures(logging.Handler):
    """Broker code that did not expect what it met says so in the log, and nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not record.name.startswith("millrace.sim."):
            error = record.exc_info[1]
            if not isinstance(error, MillraceError | OSError):
                self.found.append(f"{record.name}: {record.getMessage()}: {error!r}")


@contextmanager
def _watched_log() -> Iterator[list[str]]:
    logger = logging.getLogger("millrace")
    handler = _Failures()
    level = logger.level
    logger.addHandler(handler)
    if not logger.isEnabledFor(logging.ERROR) or logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
