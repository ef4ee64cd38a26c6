"""Brokers of a small cluster without logs and sockets: metadata, session and controller, on one store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from millrace.core.background import Background
from millrace.core.ids import NodeId
from millrace.metadata.commands import Policy
from millrace.metadata.controller_task import ControllerSettings, ControllerTask
from millrace.metadata.image import PartitionState, TopicState
from millrace.metadata.service import Metadata, NewTopic
from millrace.metadata.session import BrokerSession, SessionSettings
from millrace.metadata.store import Store
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.worlds import CountedIds, broker

TIMEOUT_MS = 6_000
REBALANCE_MS = 300_000


class LocalBroker:
    """One process of a broker, as far as the metadata knows it."""

    def __init__(
        self,
        store: Store,
        node_id: int,
        *,
        start: int = 1,
        directory: str | None = None,
        boot_id: str = "boot",
        is_clean: bool = False,
        is_filling: bool = False,
    ) -> None:
        self.node_id = NodeId(node_id)
        self.fenced_at_s: list[float] = []
        self.unfenced_at_s: list[float] = []
        ids = CountedIds(1_000 * node_id + start)
        policy = Policy(is_filling_enabled=is_filling)
        self.metadata = Metadata(store, policy=lambda: policy, ids=ids, chance=random.Random(node_id))
        state = broker(
            node_id, incarnation=f"{node_id}.{start}", directory_ids=(directory or f"disk-{node_id}",)
        )
        self.session = BrokerSession(
            self.metadata,
            store,
            replace(state, boot_id=boot_id),
            settings=SessionSettings(timeout_ms=TIMEOUT_MS, heartbeat_ms=1_000),
            is_clean=is_clean,
            chance=random.Random(node_id),
            on_change=self._changed,
        )
        self._controller = ControllerTask(
            self.metadata,
            node_id=self.node_id,
            incarnation=self.session.incarnation,
            settings=lambda: ControllerSettings(
                is_rebalance_enabled=True,
                rebalance_interval_ms=REBALANCE_MS,
                imbalance_percent=10,
                is_filling_enabled=is_filling,
                filling_partitions_max=2,
            ),
        )
        self._tasks: list[asyncio.Task[None]] = []

    def _changed(self, is_fenced: bool) -> None:
        times = self.fenced_at_s if is_fenced else self.unfenced_at_s
        times.append(asyncio.get_running_loop().time())

    async def start(self, tasks: Background) -> None:
        await self.metadata.start(tasks)
        await self.session.prepare()
        await self.session.enter(tasks)
        self._tasks = [tasks.keep("controller", self._controller.run)]

    async def stop(self) -> None:
        await self.session.leave()
        self.crash()

    def crash(self) -> None:
        """Nothing of it acts any more; the store does not know."""
        for task in self._tasks:
            task.cancel()
        for loop in (self.session._task, self.metadata._committed._follower):
            if loop is not None:
                loop.cancel()


class Cluster:
    def __init__(self, tasks: Background, store: MemoryStore, *, is_filling: bool = False) -> None:
        self.tasks = tasks
        self.store = store
        self.is_filling = is_filling
        self.brokers: dict[int, LocalBroker] = {}

    async def start(
        self,
        node_id: int,
        *,
        start: int = 1,
        directory: str | None = None,
        boot_id: str = "boot",
        is_clean: bool = False,
    ) -> LocalBroker:
        started = LocalBroker(
            self.store,
            node_id,
            start=start,
            directory=directory,
            boot_id=boot_id,
            is_clean=is_clean,
            is_filling=self.is_filling,
        )
        await started.start(self.tasks)
        self.brokers[node_id] = started
        return started

    def crash(self, node_id: int) -> None:
        self.brokers.pop(node_id).crash()

    @property
    def any(self) -> LocalBroker:
        return next(iter(self.brokers.values()))

    async def create_topic(
        self, assignments: Mapping[int, Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> TopicState:
        topic = NewTopic(name="t", assignments=assignments, configs=configs or {})
        (outcome,) = await self.any.metadata.create_topics([topic])
        assert isinstance(outcome, TopicState), outcome
        return outcome

    def partition(self, number: int = 0) -> PartitionState:
        return self.any.metadata.image.topics["t"].partitions[number]

    async def until_led_by(self, leader: int, *, number: int = 0, within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while self.partition(number).leader != leader:
                await asyncio.sleep(within_s / 2_000)


@asynccontextmanager
async def cluster_of(
    *node_ids: int, store: MemoryStore | None = None, is_filling: bool = False
) -> AsyncIterator[Cluster]:
    async with background() as tasks:
        cluster = Cluster(tasks, store or MemoryStore(operations_max=128), is_filling=is_filling)
        for node_id in node_ids:
            await cluster.start(node_id)
        yield cluster
        for member in list(cluster.brokers.values()):
            await member.stop()
        await cluster.store.close()
