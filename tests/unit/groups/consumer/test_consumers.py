"""Patterns of all groups follow the topics of the cluster, and one that cannot be read stops nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.core.patterns import InvalidPattern
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.commands import ConsumerSettings, PatternsResolved
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.consumer.group import ConsumerGroup
from millrace.groups.consumer.member import ConsumerMember
from millrace.groups.machine import GroupMachine
from millrace.metadata.commands import Policy
from millrace.metadata.service import Metadata, NewTopic
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.worlds import CountedIds, broker


class Loaded:
    """The groups of one partition, and what they are told."""

    def __init__(self, **patterns: str) -> None:
        self.machine = GroupMachine(GroupSettings())
        self.told: list[tuple[str, dict[str, list[str]]]] = []
        for group_id, pattern in patterns.items():
            group = self.machine.groups[group_id] = ConsumerGroup(group_id)
            group.apply(ConsumerMember(member_id="m", topic_pattern=pattern).metadata_record(group_id))

    def machines(self) -> Iterator[GroupMachine]:
        yield self.machine

    def submit(self, group_id: str, command: object) -> object:
        assert isinstance(command, PatternsResolved)
        assert command.group_id == group_id
        self.told.append((group_id, {text: sorted(found) for text, found in command.resolved.items()}))
        return None


@asynccontextmanager
async def following(groups: Loaded) -> AsyncIterator[tuple[Consumers, Metadata]]:
    async with background() as tasks:
        metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
        await metadata.start(tasks)
        await metadata.register_broker(broker(1))
        consumers = Consumers(metadata, ConsumerSettings())
        consumers.start(groups, tasks)
        try:
            yield consumers, metadata
        finally:
            await metadata.close()


async def create(metadata: Metadata, *names: str) -> None:
    await metadata.create_topics([NewTopic(name=name, partition_count=1, configs={}) for name in names])


async def told(groups: Loaded, count: int) -> None:
    while len(groups.told) < count:
        await asyncio.sleep(0)


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body

    asyncio.run(bounded())


def test_a_pattern_matches_the_topics_that_there_are() -> None:
    async def body() -> None:
        async with following(Loaded()) as (consumers, metadata):
            assert await consumers.resolve("x.*") == frozenset()
            await create(metadata, "x1", "y1", "x2")
            assert await consumers.resolve("x.*") == frozenset({"x1", "x2"})
            with pytest.raises(InvalidPattern):
                await consumers.resolve("(")

    run(body())


def test_groups_with_patterns_hear_of_topics_that_come_and_go() -> None:
    async def body() -> None:
        groups = Loaded(a="x.*", b="y.*", c="")
        async with following(groups) as (_, metadata):
            await create(metadata, "x1")
            await told(groups, 2)
            assert groups.told == [("a", {"x.*": ["x1"]}), ("b", {"y.*": []})]
            groups.told.clear()
            await metadata.delete_topics(["x1"])
            await told(groups, 2)
            assert groups.told == [("a", {"x.*": []}), ("b", {"y.*": []})]

    run(body())


def test_a_stored_pattern_that_cannot_be_read_matches_nothing_and_is_complained_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        groups = Loaded(a="(", b="x.*")
        async with following(groups) as (_, metadata):
            await create(metadata, "x1")
            await told(groups, 2)
            await create(metadata, "x2")
            await told(groups, 4)
            assert groups.told[2:] == [("a", {"(": []}), ("b", {"x.*": ["x1", "x2"]})]

    run(body())
    assert len([entry for entry in caplog.records if "matches nothing" in entry.getMessage()]) == 1


def test_nobody_hears_of_topics_after_the_end() -> None:
    async def body() -> None:
        groups = Loaded(a="x.*")
        async with following(groups) as (consumers, metadata):
            consumers.stop()
            await create(metadata, "x1")
            await asyncio.sleep(0)
            assert not groups.told

    run(body())
