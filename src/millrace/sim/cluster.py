"""A cluster in one thread: unmodified brokers on simulated disks, clocks, network and store, which can be
killed, paused and lose power."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from millrace.broker.app import Broker
from millrace.broker.config import config as broker_config
from millrace.broker.surroundings import Surroundings
from millrace.core.errors import MillraceError
from millrace.log.cleaning.compaction_runner import InlineRunner
from millrace.sim.clients.client import Client
from millrace.sim.clients.hours import WorkingHours
from millrace.sim.clock import SimClock, SimIdSource
from millrace.sim.history import Happened, History
from millrace.sim.loop import SimLoop
from millrace.sim.network import Network
from millrace.sim.process import Process, State
from millrace.sim.registrations import Registrations
from millrace.sim.store import MemoryStore
from millrace.sim.store_client import StoreClient
from millrace.sim.volume import SimVolume

log = logging.getLogger(__name__)

T = TypeVar("T")

PORT: Final = 9092
DATA_DIRECTORY: Final = "/data"
SETTINGS: Final[Mapping[str, str]] = {
    "metrics.listener": "",
    "auto.create.topics.enable": "false",
    # Small values keep hours of simulation fast, and every kind of file gets its turn.
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "5000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "5000",
    "group.initial.rebalance.delay.ms": "500",
    "log.roll.ms": "60000",
    "log.index.interval.bytes": "512",
}
CLUSTER_SETTINGS: Final[Mapping[str, str]] = {
    "metadata.store": "etcd",
    "etcd.endpoints": "http://store:2379",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # This holds for committed offsets too: with one replica in sync they are only as safe as its page cache.
    "min.insync.replicas": "2",
}
STOP_S: Final = 60.0
LATENCIES_S: Final = ((0.000_1, 0.001), (0.001, 0.02), (0.01, 0.2))
"""The latencies of a machine room, of a city and of a bad day: the seed chooses one. With slow ones more is
in flight."""


class Node:
    """One machine: its disk and clock stay, processes come and go."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.node_id = node_id
        self.host = f"10.0.0.{node_id}"
        self.clock = SimClock(cluster.loop)
        self.volume = SimVolume(cluster.fork(), wall_ms=self.clock.wall_ms)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.new_broker = cluster.new_broker
        """What the next start runs, perhaps another release."""
        self.starts_count = 0
        self.exit_error: BaseException | None = None
        self._cluster = cluster
        self._boots_count = 1
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.state != State.DEAD

    @property
    def is_ready(self) -> bool:
        return self.is_running and self.broker is not None and self.broker.readiness.is_ready

    def start(self) -> None:
        assert not self.is_running, self.host
        cluster = self._cluster
        self.starts_count += 1
        self.exit_error = None
        self.volume = self.volume.hand_over()
        cluster.network.bring_up(self.host)
        self.process = process = Process(f"broker-{self.node_id}", self.host, cluster.fork())
        self._stop = asyncio.Event()
        self._serving = cluster.loop.start_in(process, self._serve(process, self._stop))

    async def _serve(self, process: Process, stop: asyncio.Event) -> None:
        cluster = self._cluster
        volume = self.volume
        settings = {
            **SETTINGS,
            "log.dirs": DATA_DIRECTORY,
            **(CLUSTER_SETTINGS if len(cluster.nodes) > 1 else {}),
            **cluster.settings,
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
        }
        surroundings = Surroundings(
            clock=self.clock,
            ids=SimIdSource(cluster.fork()),
            chance=cluster.fork(),
            volume=volume,
            open_store=lambda _config: StoreClient(cluster.store, cluster.loop, process),
            compaction=InlineRunner(volume),
            ticks=cluster.loop.time,
            open_file_count=lambda: 0,
            on_built=lambda: None,
            may_stay_awake=False,
            boot_id=f"{self.host}-{self._boots_count}",
            host_name=self.host,
        )
        try:
            self.broker = self.new_broker(broker_config.load(None, settings, {}), surroundings)
            await self.broker.serve(stop)
        except MillraceError as error:
            self.exit_error = error
            cluster.note(f"broker {self.node_id} ended: {error}")
        except Exception as error:
            if process.state == State.DEAD:
                # The process was killed in the middle of its work: this is no failure of its own.
                return
            self.exit_error = error
            log.exception("broker %d failed", self.node_id)
            cluster.loop.failures.append(f"broker {self.node_id}: {type(error).__name__}: {error}")
        finally:
            if process.state == State.RUNNING:
                cluster.loop.call_soon(self._ended, process, context=cluster.loop.kernel)

    def _ended(self, process: Process) -> None:
        if self.process is process and process.state != State.DEAD:
            self._end(with_reset=True)

    async def stop(self) -> None:
        """Stop the broker in order, as SIGTERM does."""
        if self.is_running and self._serving is not None:
            self._cluster.note(f"stop broker {self.node_id}")
            self._stop.set()
            await self._cluster.until(
                lambda: not self.is_running, deadline_s=STOP_S, what=f"the stop of broker {self.node_id}"
            )

    def kill(self) -> None:
        """The process is gone; the machine and what it had written stay."""
        self._cluster.note(f"kill broker {self.node_id}")
        self._end(with_reset=True)

    def lose_power(self, *, lose_everything: bool | None = None) -> None:
        """The machine is gone, with all that was not flushed, or as much of it as the seed says."""
        cluster = self._cluster
        cluster.note(f"power loss of broker {self.node_id}")
        cluster.network.take_down(self.host)
        self._boots_count += 1
        self._end(with_reset=False)
        if lose_everything is None:
            lose_everything = cluster.chance.random() < 0.5
        self.volume.crash(lose_everything=lose_everything)

    def _end(self, *, with_reset: bool) -> None:
        process = self.process
        if process is None or process.state == State.DEAD:
            return
        # This comes first: nothing that the process still does may reach disk or network.
        self.volume = self.volume.hand_over()
        for server in list(process.servers):
            server.close()
        for transport in list(process.transports):
            transport.vanish(with_reset=with_reset)
        process.die()
        self.broker = None

    def pause(self) -> None:
        self._cluster.note(f"pause broker {self.node_id}")
        assert self.process is not None
        self.process.state = State.PAUSED

    def resume(self) -> None:
        if self.process is not None and self.process.state == State.PAUSED:
            self._cluster.note(f"resume broker {self.node_id}")
            self._cluster.loop.resume(self.process)


class Cluster:
    """Everything that a scenario plays with, from one seed."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 1,
        settings: Mapping[str, str] | None = None,
        new_broker: Callable[..., Broker] = Broker,
        negotiates: bool = False,
    ) -> None:
        self.negotiates = negotiates
        self.chance = random.Random(seed)
        self.network = Network(self.fork())
        self.network.latency_s = self.chance.choice(LATENCIES_S)
        self.loop = SimLoop(self.network)
        self.history = History()
        self.store = MemoryStore()
        self.hours = WorkingHours()
        self.registrations = Registrations(lambda: int(self.loop.time() * 1000))
        self.store.on_change = self.registrations.changed
        self.settings = dict(settings or {})
        self.new_broker = new_broker
        self.problem: str | None = None
        """What a client met and could not deal with."""
        self.clients: list[Process] = []
        self._clients_count = 0
        self.nodes = [Node(self, node_id) for node_id in range(1, nodes + 1)]
        for node in self.nodes:
            self.registrations.add(node.node_id, node.host)

    def fork(self) -> random.Random:
        """A source of chance of its own for each part: what one part draws does not change another's."""
        return random.Random(self.chance.getrandbits(64))

    def note(self, what: str) -> None:
        self.history.add(Happened(at=int(self.loop.time() * 1000), what=what))
        log.info("%.3f %s", self.loop.time(), what)

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    async def until(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        deadline = self.loop.time() + deadline_s
        while not condition():
            self.stop_if_problem()
            if self.loop.time() > deadline:
                raise TooLate(f"{what} has not come true in {deadline_s:g} s")
            await asyncio.sleep(0.05)

    def stop_if_problem(self) -> None:
        if self.problem is not None:
            raise ClientFailed(self.problem)

    async def until_ready(self, deadline_s: float = 60.0) -> None:
        await self.until(
            lambda: all(node.is_ready for node in self.nodes), deadline_s=deadline_s, what="all brokers serve"
        )

    # Clients.

    def client(self, name: str) -> tuple[Client, Process]:
        """A client with a host and a process of its own."""
        self._clients_count += 1
        process = Process(name, f"10.1.0.{self._clients_count}", self.fork())
        self.clients.append(process)
        bootstrap = [(node.host, PORT) for node in self.nodes]
        client = Client(
            name,
            bootstrap,
            loop=self.loop,
            chance=process.chance,
            history=self.history,
            hours=self.hours,
            registrations=self.registrations,
            negotiates=self.negotiates,
        )
        return client, process

    def run_in(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.start_in(process, work)

    def end_client(self, process: Process) -> None:
        """A client's process is killed."""
        for transport in list(process.transports):
            transport.vanish(with_reset=True)
        process.die()
        self.clients.remove(process)

    def close(self) -> None:
        for node in self.nodes:
            node._end(with_reset=False)
        for process in self.clients:
            process.die()
        self.loop.close()


class ClientFailed(MillraceError):
    """A client met what no broker should have sent."""


class TooLate(MillraceError):
    """Something that must happen in the end has not happened."""
