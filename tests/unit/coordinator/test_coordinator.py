"""A command reaches the machine that holds its key, or the answer says why there is none to ask."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest

from millrace.coordinator.coordinator import Coordinator
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.internal_topic import InternalTopic
from millrace.core.ids import TopicPartition
from millrace.metadata.commands import Policy
from millrace.metadata.service import Metadata
from millrace.sim.store import MemoryStore
from millrace.sim.volume import SimVolume
from tests.harness.background import background
from tests.unit.coordinator.test_runtime import TOPIC, Get, Put, Shelf, World
from tests.unit.metadata.worlds import CountedIds, broker

HERE, ELSEWHERE = "b", "a"
"""Of two partitions the first, which this broker leads, and the second."""


class Plan:
    partition_count = 2
    replication_factor = 1

    def configs(self, replicas: int) -> Mapping[str, str]:
        return {}


class Shell:
    def __init__(self) -> None:
        self.world = World(SimVolume(random.Random(1)), "/data")
        self.metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
        topic = InternalTopic(TOPIC, self.metadata, Plan())
        self.coordinator = Coordinator(topic, self.world.runtime, Shelf)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Coordinator[Shelf]]:
        async with background() as tasks:
            await self.metadata.start(tasks)
            await self.metadata.register_broker(broker(1))
            self.coordinator.start(tasks)
            try:
                yield self.coordinator
            finally:
                self.coordinator.stop()
                await self.metadata.close()


@pytest.fixture
def shell() -> Iterator[Shell]:
    made = Shell()
    yield made
    made.world.disk.dispose()


def test_a_command_reaches_the_machine_of_its_key(shell: Shell) -> None:
    async def body() -> None:
        shell.world.lead()
        async with shell.started() as coordinator:
            await coordinator.topic.ensure()
            assert (coordinator.topic.partition_of(HERE), coordinator.topic.partition_of(ELSEWHERE)) == (0, 1)
            await shell.world.loaded()
            stored = coordinator.submit(HERE, Put(HERE, b"1"))
            assert (await stored if isinstance(stored, asyncio.Future) else stored) == "stored"
            assert coordinator.submit(HERE, Get(HERE)) == b"1"
            machine = coordinator.machine_of(HERE)
            assert isinstance(machine, Shelf)
            assert machine.values == {HERE: b"1"}
            assert list(coordinator.machines()) == [machine]
            coordinator.submit_to_all(Put("everywhere", b"2"))
            assert machine.values["everywhere"] == b"2"

    shell.world.run(body())


def test_the_answer_says_why_there_is_no_machine_to_ask(shell: Shell) -> None:
    async def body() -> None:
        async with shell.started() as coordinator:
            for answer in (coordinator.submit(HERE, Get(HERE)), coordinator.machine_of(HERE)):
                assert isinstance(answer, CoordinatorNotAvailable)
                assert str(answer) == f"there is no {TOPIC} yet"
            await coordinator.topic.ensure()
            coordinator.runtime.leadership_changed(shell.world.lead())
            for answer in (coordinator.submit(HERE, Get(HERE)), coordinator.machine_of(HERE)):
                assert isinstance(answer, CoordinatorLoading)
            await shell.world.loaded()
            for answer in (coordinator.submit(ELSEWHERE, Get("")), coordinator.machine_of(ELSEWHERE)):
                assert isinstance(answer, NotCoordinator)
                assert str(TopicPartition(TOPIC, 1)) in str(answer)

    shell.world.run(body())


def test_after_its_end_it_coordinates_nothing(shell: Shell) -> None:
    async def body() -> None:
        shell.world.lead()
        async with shell.started() as coordinator:
            await coordinator.topic.ensure()
            await shell.world.loaded()
            coordinator.stop()
            assert isinstance(coordinator.submit(HERE, Get(HERE)), NotCoordinator)
            assert list(coordinator.machines()) == []

    shell.world.run(body())
