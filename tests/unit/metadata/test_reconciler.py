"""What the reconciler asks of the broker's partitions, for every kind of change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.metadata import reconciler as reconciler_module
from millrace.metadata.commands import (
    Alteration,
    AlterConfigs,
    AlterOperation,
    BrokerResource,
    Command,
    CreatePartitions,
    DeleteTopic,
    RaiseLeaderEpochs,
    TopicResource,
)
from millrace.metadata.config_definitions import BrokerLayers, TopicSettings
from millrace.metadata.errors import StoreUnavailable
from millrace.metadata.image import Image, TopicState
from millrace.metadata.reconciler import Reconciler
from tests.harness.background import background
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import apply, cluster, new_topic, topic_id

ME = NodeId(1)


class FakeReplicas:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.settings: dict[str, TopicSettings] = {}
        self.failures: list[MillraceError] = []
        self.on_start: Callable[[], None] = lambda: None

    async def start(self, topic: TopicState, partitions: Sequence[int], settings: TopicSettings) -> None:
        self.calls.append(("start", topic.name, list(partitions)))
        self.settings[topic.name] = settings
        self.on_start()
        failure = self.failures.pop() if self.failures else None
        await asyncio.sleep(0)
        if failure is not None:
            raise failure

    def update(self, topic: TopicState, partitions: Sequence[int]) -> None:
        self.calls.append(("update", topic.name, list(partitions)))

    def configure(self, topic: TopicState, settings: TopicSettings) -> None:
        self.calls.append(("configure", topic.name))
        self.settings[topic.name] = settings

    async def release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        self.calls.append(("release", topic.name, list(partitions)))

    async def delete(self, name: str, topic_id: TopicId) -> None:
        self.calls.append(("delete", name, topic_id[-1]))
        if self.failures:
            raise self.failures.pop()

    def taken(self) -> list[tuple[object, ...]]:
        calls, self.calls = self.calls, []
        return calls


class FakeMetadata:
    def __init__(self, image: Image) -> None:
        self.image = image
        self.confirmed: list[TopicId] = []
        self.is_available = True
        self._callbacks: list[Callable[[Image, Image], None]] = []

    def subscribe(self, callback: Callable[[Image, Image], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: None

    async def confirm_deletions(self, topic_ids: Sequence[TopicId], node_id: NodeId) -> None:
        if not self.is_available:
            raise StoreUnavailable("away")
        self.confirmed += topic_ids

    def replace(self, image: Image) -> None:
        old, self.image = self.image, image
        for callback in self._callbacks:
            callback(old, image)


class World:
    """A reconciler that follows an image which the test changes."""

    def __init__(self, image: Image) -> None:
        self.metadata = FakeMetadata(image)
        self.replicas = FakeReplicas()
        self.layers: list[BrokerLayers] = []
        self.reconciler = Reconciler(
            self.metadata,
            self.replicas,
            node_id=ME,
            static={"log.retention.hours": "1"},
            on_broker_settings=self.layers.append,
        )

    async def do(self, *commands: Command) -> list[tuple[object, ...]]:
        return await self.show(apply(self.metadata.image, *commands))

    async def show(self, image: Image) -> list[tuple[object, ...]]:
        self.metadata.replace(image)
        await self.reconciler.wait_until_applied(image.revision)
        await asyncio.sleep(0)
        return self.replicas.taken()


def play(image: Image, body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Let a test act on a world with a running reconciler."""

    async def main() -> None:
        async with asyncio.timeout(10), background() as tasks:
            world = World(image)
            await world.reconciler.start(tasks)
            await body(world)
            world.reconciler.close()

    asyncio.run(main())


def test_the_present_image_is_made_so_at_the_start() -> None:
    image = apply(
        cluster(None, None),
        new_topic("here", 1, assignments={0: [1, 2], 1: [2, 1]}),
        new_topic("elsewhere", 2, assignments={0: [2]}),
    )

    async def body(world: World) -> None:
        assert world.replicas.taken() == [("start", "here", [0, 1])]
        assert world.replicas.settings["here"].log.retention_ms == 3_600_000
        assert world.reconciler.applied is image

    play(image, body)


def test_what_a_bug_broke_off_is_made_so_without_another_change() -> None:
    """Nobody would say again that the image has changed: the new topic would have no log until the next."""

    async def main() -> None:
        owner = Background(random.Random(1))
        world = World(cluster(None))
        await world.reconciler.start(owner)
        errors = iter([ValueError("a bug")])

        def fail_once() -> None:
            if (error := next(errors, None)) is not None:
                raise error

        world.replicas.on_start = fail_once
        async with asyncio.timeout(60):
            calls = await world.do(new_topic("a", 1))
        assert calls == [("start", "a", [0]), ("start", "a", [0])]
        assert owner.failures.counts == {"metadata-reconcile": 1}
        await owner.end()

    run_virtually(main())


def test_topics_come_grow_and_go() -> None:
    async def body(world: World) -> None:
        assert await world.do(new_topic("a", 1, partitions=2)) == [("start", "a", [0, 1])]
        assert await world.do(CreatePartitions(name="a", count=4)) == [("start", "a", [2, 3])]
        assert await world.do(DeleteTopic(name="a")) == [("delete", "a", 1)]
        assert world.metadata.confirmed == [topic_id(1)]

    play(cluster(None), body)


def test_a_topic_created_again_is_started_after_the_old_one_is_deleted() -> None:
    # F29. Both changes may arrive at once, when the broker was busy.
    async def body(world: World) -> None:
        await world.do(new_topic("a", 1))
        assert await world.do(DeleteTopic(name="a"), new_topic("a", 2)) == [
            ("delete", "a", 1),
            ("start", "a", [0]),
        ]

    play(cluster(None), body)


def test_a_topic_that_vanishes_without_proof_loses_nothing() -> None:
    # F8: an image without the topic, as from a store that was lost or set back.
    full = apply(cluster(None), new_topic("a", 1))

    async def body(world: World) -> None:
        world.replicas.taken()
        empty = apply(cluster(None), new_topic("b", 2), CreatePartitions(name="b", count=2))
        assert empty.revision > full.revision
        assert await world.show(empty) == [("start", "b", [0, 1])]

    play(full, body)


def test_a_deletion_from_before_the_start_is_finished() -> None:
    image = apply(cluster(None), new_topic("a", 1), DeleteTopic(name="a"))

    async def body(world: World) -> None:
        assert world.replicas.taken() == [("delete", "a", 1)]
        assert world.metadata.confirmed == [topic_id(1)]

    play(image, body)


def test_a_deletion_that_could_not_be_confirmed_is_confirmed_later() -> None:
    async def body(world: World) -> None:
        world.metadata.is_available = False
        await world.do(new_topic("a", 1), DeleteTopic(name="a"))
        world.metadata.is_available = True
        await world.do(new_topic("b", 2))
        assert world.metadata.confirmed == [topic_id(1)]

    play(cluster(None), body)


def test_settings_of_a_topic_take_effect_live() -> None:
    async def body(world: World) -> None:
        await world.do(new_topic("a", 1), new_topic("b", 2))
        change = AlterConfigs(TopicResource("a"), [Alteration("retention.ms", AlterOperation.SET, "5")])
        assert await world.do(change) == [("configure", "a")]
        assert world.replicas.settings["a"].log.retention_ms == 5
        # Topics that set nothing share one object: thousands of them cost nothing.
        assert world.replicas.settings["b"] is world.reconciler.settings_of(world.metadata.image.topics["b"])

    play(cluster(None), body)


def test_settings_of_brokers_take_effect_on_all_topics() -> None:
    async def body(world: World) -> None:
        await world.do(new_topic("a", 1), new_topic("b", 2, configs={"retention.ms": "5"}))
        change = AlterConfigs(BrokerResource(None), [Alteration("log.retention.ms", AlterOperation.SET, "9")])
        assert sorted(await world.do(change)) == [("configure", "a"), ("configure", "b")]
        assert world.replicas.settings["a"].log.retention_ms == 9
        assert world.replicas.settings["b"].log.retention_ms == 5
        assert world.layers[-1].dynamic_default == {"log.retention.ms": "9"}
        mine = AlterConfigs(BrokerResource(ME), [Alteration("max.connections", AlterOperation.SET, "3")])
        await world.do(mine)
        assert world.layers[-1].dynamic_broker == {"max.connections": "3"}

    play(cluster(None), body)


def test_a_change_of_one_partition_touches_no_other() -> None:
    async def body(world: World) -> None:
        await world.do(new_topic("a", 1, partitions=3), new_topic("b", 2))
        raised = RaiseLeaderEpochs(topic_id(1), {1: Epoch(7)})
        assert await world.do(raised) == [("update", "a", [1])]

    play(cluster(None), body)


class TestManyNewPartitions:
    """Creating their logs takes seconds, and a failover must not wait for that."""

    STEP = reconciler_module.PARTITIONS_PER_STEP
    FAILOVER = RaiseLeaderEpochs(topic_id(1), {0: Epoch(7)})

    def starts(self) -> list[tuple[object, ...]]:
        return [
            ("start", "many", list(range(at, at + self.STEP))) for at in range(0, 3 * self.STEP, self.STEP)
        ]

    def test_roles_that_change_meanwhile_are_taken_up_at_once(self) -> None:
        async def body(world: World) -> None:
            await world.do(new_topic("a", 1))

            def fail_over_once() -> None:
                world.replicas.on_start = lambda: None
                world.metadata.replace(apply(world.metadata.image, self.FAILOVER))

            world.replicas.on_start = fail_over_once
            first, *others = self.starts()
            calls = await world.do(new_topic("many", 2, partitions=3 * self.STEP))
            await world.reconciler.wait_until_applied(world.metadata.image.revision)
            assert calls[:4] == [first, ("update", "a", [0]), *others]

        play(cluster(None), body)

    def test_roles_that_change_with_them_are_taken_up_first(self) -> None:
        async def body(world: World) -> None:
            await world.do(new_topic("a", 1))
            calls = await world.do(new_topic("many", 2, partitions=3 * self.STEP), self.FAILOVER)
            assert calls == [("update", "a", [0]), *self.starts()]

        play(cluster(None), body)

    def test_a_new_one_whose_role_changes_meanwhile_has_the_last_one_in_the_end(self) -> None:
        async def body(world: World) -> None:
            last = 3 * self.STEP - 1

            def fail_over_once() -> None:
                world.replicas.on_start = lambda: None
                raised = RaiseLeaderEpochs(topic_id(2), {last: Epoch(7)})
                world.metadata.replace(apply(world.metadata.image, raised))

            world.replicas.on_start = fail_over_once
            calls = await world.do(new_topic("many", 2, partitions=3 * self.STEP))
            await world.reconciler.wait_until_applied(world.metadata.image.revision)
            calls += world.replicas.taken()
            assert calls.index(("update", "many", [last])) > 0
            assert calls[-1] == ("update", "many", [last]), "it was not there yet when it was first told"

        play(cluster(None), body)

    def test_those_that_cannot_be_started_do_not_keep_others_from_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reconciler_module, "RETRY_MS", 10)

        async def body(world: World) -> None:
            world.replicas.failures = [MillraceError("the disk is full")]
            calls = await world.do(new_topic("many", 2, partitions=3 * self.STEP))
            assert calls == self.starts()
            while not world.replicas.calls:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)
            assert world.replicas.taken() == self.starts()

        play(cluster(None), body)


def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A full disk must not keep a topic down after there is room again, nor other topics meanwhile.
    monkeypatch.setattr(reconciler_module, "RETRY_MS", 10)

    async def body(world: World) -> None:
        world.replicas.failures = [MillraceError("disk full")]
        calls = await world.do(new_topic("a", 1), new_topic("b", 2))
        assert sorted(calls) == [("start", "a", [0]), ("start", "b", [0])]
        while not world.replicas.calls:
            await asyncio.sleep(0.002)
        assert len(world.replicas.taken()) == 1
        world.replicas.failures = [MillraceError("busy")]
        assert await world.do(DeleteTopic(name="a")) == [("delete", "a", 1)]
        while not world.metadata.confirmed:
            await asyncio.sleep(0.002)
        assert world.replicas.taken() == [("delete", "a", 1)]

    play(cluster(None), body)


def test_what_fails_again_and_again_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk with a thousand topics would fill the log as well."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(reconciler_module, "RETRY_MS", 1)

    async def body(world: World) -> None:
        world.replicas.failures = [MillraceError("disk full") for _ in range(4)]
        await world.do(new_topic("a", 1))
        while not caplog.messages[-1].endswith("started now"):
            await asyncio.sleep(0.001)
        assert caplog.messages == [
            "topic a: partitions cannot be started here: disk full",
            "topic a: partitions are started now",
        ]

    play(cluster(None), body)
