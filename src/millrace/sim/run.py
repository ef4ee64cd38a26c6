"""One run of a scenario: it creates topics, starts clients, plays faults for a while, then heals, reads and
checks everything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.broker.app import Broker
from millrace.core import background
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.metadata.fold import image_of
from millrace.sim.census import Census
from millrace.sim.checkers import Violation, violations
from millrace.sim.clients.admin import create_topic
from millrace.sim.clients.consumer import Consumer
from millrace.sim.clients.consumer_member import ConsumerMember
from millrace.sim.clients.copier import Copier
from millrace.sim.clients.group_member import SESSION_TIMEOUT_MS, GroupMember
from millrace.sim.clients.producer import IdempotentProducer, Workload
from millrace.sim.clients.transactional_producer import TransactionalProducer
from millrace.sim.cluster import ClientFailed, Cluster, Node, TooLate
from millrace.sim.few_epochs import few_epochs
from millrace.sim.history import OffsetsExpire, RecordsStay
from millrace.sim.loop import Stuck
from millrace.sim.process import DiskSpeed, Process
from millrace.sim.small_tails import small_tails
from millrace.sim.volume import UNBOUNDED

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
COPIES: Final = "copies"
PARTITIONS: Final = (0, 1)
GROUP: Final = "workers"
CONSUMER_GROUP: Final = "helpers"
"""A group of the classic protocol and one of the consumer protocol."""
TRANSACTION_TIMEOUT_MS: Final = 15_000
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "16384"}
"""With small segments every kind of file gets its turn."""
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
    with_readers: bool = True
    """Whether anybody reads before the end."""
    keeps_records: bool = False
    """Whether there is no retention, of time or of bytes, so that nothing may be gone unasked."""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    """The time-out of members of classic groups; those of the consumer protocol have what the settings
    say."""
    offsets_expire_ms: int | None = None
    """How long after the last commit a group's offsets may be gone, if ever."""
    first_broker: type[Broker] | None = None
    """The release that brokers run at first, where it changes; clients then ask each broker for the versions
    that it serves."""
    epochs_max: int | None = None
    """How many epochs a transactional id has before it needs a new producer id; None for all 32767."""
    variants: Sequence[Mapping[str, str]] = ()
    """Further sets of settings, of which the seed takes one."""

    def settings_for(self, seed: int) -> Mapping[str, str]:
        variant = self.variants[seed % len(self.variants)] if self.variants else {}
        return {**self.settings, **variant}


Scenario = Callable[["Run"], Awaitable[None]]


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    seed: int
    digest: str
    simulated_s: float
    quiet_s: float
    """The part of it in which clients were sent to rest."""
    events: int
    callbacks: int
    acked: int
    violations: list[Violation]
    census: list[str] = field(default_factory=list)
    """What ran how often, if that was asked for."""


class Run:
    """The cluster and its clients, handed to a scenario; `seconds` is how long it should keep on making
    trouble."""

    def __init__(
        self, seed: int, plan: Plan, seconds: float, new_broker: Callable[..., Broker] = Broker
    ) -> None:
        self.seed = seed
        self.plan = plan
        self.seconds = seconds
        self.cluster = Cluster(
            seed,
            nodes=plan.nodes,
            settings=plan.settings_for(seed),
            new_broker=new_broker if plan.first_broker is None else plan.first_broker,
            negotiates=plan.first_broker is not None,
        )
        self.chance = self.cluster.fork()
        self.producers: list[IdempotentProducer] = []
        self.transactional: list[TransactionalProducer] = []
        self.copiers: list[Copier] = []
        self.consumers: list[Consumer] = []
        self.members: list[GroupMember] = []
        self.topics: dict[str, tuple[int, ...]] = {}
        """The topics that are read and checked in the end, with their partitions."""
        self.damaged: dict[str, None] = {}
        """Files in which a bit was flipped."""
        self.in_use: dict[str, None] = {}
        """Names of topics that one step has to itself."""
        self.endings: list[Callable[[], Awaitable[None]]] = []
        """What a scenario has to bring to an end itself, when everything is healed and written."""
        self.quiet_s = 0.0
        self._number = 0
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
        for topic in (ORDERS, PAYMENTS):
            await self.create_topic(topic)
        # Records can be compared with their copies only if the copies outlive them.
        await self.create_topic(COPIES, {"retention.ms": "-1"})
        if self.plan.keeps_records:
            self.cluster.history.add(RecordsStay(at=int(self.cluster.loop.time() * 1000)))
        if self.plan.offsets_expire_ms is not None:
            self.cluster.history.add(
                OffsetsExpire(at=int(self.cluster.loop.time() * 1000), after_ms=self.plan.offsets_expire_ms)
            )
        self._start_clients()

    async def create_topic(
        self, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = len(PARTITIONS)
    ) -> None:
        while not self.topic_exists(name):
            work = create_topic(
                self.admin,
                name,
                partitions=partitions,
                replicas=self.plan.replicas,
                configs={**SMALL_SEGMENTS, **self.plan.topic_configs, **(configs or {})},
            )
            await self.by_admin(work)
        self.topics[name] = tuple(range(partitions))

    def topic_exists(self, name: str) -> bool:
        """Whether the store has the topic: a broker that does not reach the store says what it knew
        before."""
        return name in image_of(self.cluster.store.peek()).topics

    async def by_admin(self, work: Any) -> Any:
        return await self.cluster.run_in(self.admin_process, work)

    def next_number(self) -> int:
        """A number that makes a name unique."""
        self._number += 1
        return self._number

    def start_pair(self, topic: str, partitions: tuple[int, ...]) -> None:
        """A producer and a consumer of their own for these partitions."""
        name = f"{topic}-{'-'.join(map(str, partitions))}"
        self._start_producer(f"producer-of-{name}", topic, partitions)
        self._start_consumer(topic, committed_only=False, partitions=partitions, name=f"consumer-of-{name}")

    def _start_producer(self, name: str, topic: str, partitions: tuple[int, ...]) -> None:
        client, process = self.cluster.client(name)
        producer = IdempotentProducer(client, topic, partitions, self.plan.workload)
        self.producers.append(producer)
        self.start(producer, process)

    def _start_clients(self) -> None:
        load = self.plan.workload
        for number in (1, 2):
            self._start_producer(f"producer-{number}", ORDERS, PARTITIONS)
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
        member = kind(
            client,
            group,
            ORDERS,
            PARTITIONS,
            pause_s=2 * self.plan.workload.pause_s,
            session_timeout_ms=self.plan.session_timeout_ms,
        )
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
        expire_ms = self.plan.offsets_expire_ms
        copier = Copier(
            client,
            ORDERS,
            COPIES,
            PARTITIONS,
            load,
            is_new=self.chance.random() < 0.5,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            offsets_expire_s=None if expire_ms is None else expire_ms / 1000,
        )
        self.copiers.append(copier)
        self.start(copier, process)
        self._start_consumer(PAYMENTS, committed_only=True)

    def _start_consumer(
        self,
        topic: str,
        *,
        committed_only: bool,
        partitions: tuple[int, ...] = PARTITIONS,
        name: str | None = None,
    ) -> None:
        if not self.plan.with_readers:
            return
        client, process = self.cluster.client(name or f"consumer-of-{topic}")
        consumer = Consumer(
            client, topic, partitions, committed_only=committed_only, pause_s=self.plan.workload.pause_s
        )
        self.consumers.append(consumer)
        self.start(consumer, process)

    def start(self, who: Any, process: Process) -> None:
        task = self.cluster.run_in(process, who.run())
        task.add_done_callback(lambda done: self._ended(process.name, done))
        self._tasks[who] = task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Clients deal with everything that a broker may rightly answer: an exception that ends one is a
        finding."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.cluster.problem = f"{name}: {type(error).__name__}: {error}"

    # The end.

    async def heal(self) -> None:
        """Let all machines be up and sound, all links whole, and every broker serve."""
        cluster = self.cluster
        cluster.hours.open()
        cluster.store.set_available(True)
        for node in self.nodes:
            node.volume.capacity_bytes = UNBOUNDED
            node.volume.is_read_only = False
            node.volume.faults.clear()
            node.volume.shortage = None
            node.resume()
            if node.process is not None:
                node.process.disk_speed = DiskSpeed()
            if node.broker is not None and node.broker.directories.offline:
                node.kill()
            if not node.is_running:
                node.start()
        cluster.network.heal_all()
        await cluster.until_ready(120.0)

    async def end(self, *who: Any) -> None:
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


def run_scenario(
    seed: int,
    scenario: Scenario,
    plan: Plan,
    *,
    seconds: float,
    new_broker: Callable[..., Broker] = Broker,
    with_census: bool = False,
) -> Outcome:
    """Run a scenario from its seed and judge what happened."""
    with _watched_log() as logged:
        run = Run(seed, plan, seconds, new_broker)
        census = run.cluster.loop.census = Census() if with_census else None
        found: list[Violation] = []
        try:
            with few_epochs(plan.epochs_max), small_tails():
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
        quiet_s=run.quiet_s,
        events=len(history.events),
        callbacks=run.cluster.loop.callbacks_count,
        acked=sum(producer.acked_count for producer in run.producers),
        violations=found,
        census=[] if census is None else census.lines(run.cluster.loop.time()),
    )


async def _play(run: Run, scenario: Scenario) -> None:
    # Imported here, since the ending knows the run.
    from millrace.sim.ending import Ending

    await run.begin()
    await scenario(run)
    await Ending(run).finish()


_UNANSWERED: Final = ("millrace.broker.network.connection", "millrace.broker.network.wakeups")
"""A trace in one of these logs means that a request was left without an answer, whatever the reason."""


class _Failures(logging.Handler):
    """Finds what broker code did not expect: it says so in the log, and nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not record.name.startswith("millrace.sim."):
            error = record.exc_info[1]
            # A loop deals by itself with the errors that it expects: one that its supervisor sees is a bug.
            if record.name in (background.__name__, *_UNANSWERED) or not isinstance(
                error, MillraceError | OSError
            ):
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
