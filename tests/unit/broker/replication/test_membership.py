"""A broker's place, alone or in a cluster: what it tells the store when it comes and when it goes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from millrace.broker.replication.membership import HAND_OVER_S_MAX, Alone, Membership, MembershipSettings
from millrace.core.background import Background
from millrace.core.ids import NodeId, TopicId
from millrace.core.override import override
from millrace.metadata.commands import Policy
from millrace.metadata.controller_task import ControllerSettings
from millrace.metadata.image import Endpoint
from millrace.metadata.service import Metadata, NewTopic
from millrace.metadata.session import DiskState, SessionSettings
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.virtual_time import run_virtually
from tests.unit.metadata.worlds import CountedIds, broker

ME = NodeId(1)
SETTINGS = MembershipSettings(
    session=SessionSettings(timeout_ms=6_000, heartbeat_ms=1_000),
    controller=ControllerSettings(
        is_rebalance_enabled=False, rebalance_interval_ms=300_000, imbalance_percent=10
    ),
    hands_over=True,
)


class Broker:
    def __init__(self, store: MemoryStore, node_id: int = ME) -> None:
        self.fences: list[bool] = []
        self.metadata = Metadata(
            store, policy=Policy, ids=CountedIds(100 * node_id), chance=random.Random(node_id)
        )
        state = replace(
            broker(node_id, incarnation=f"run-{node_id}", directory_ids=[f"disk-{node_id}"]),
            endpoints=(Endpoint("PLAINTEXT", "host", 0, "PLAINTEXT"),),
        )
        self.membership = Membership(
            self.metadata,
            store,
            state,
            settings=SETTINGS,
            is_clean=True,
            chance=random.Random(node_id),
            on_fence=self.fences.append,
        )

    async def join(self, tasks: Background) -> None:
        await self.metadata.start(tasks)
        await self.membership.prepare()
        await self.membership.join(tasks, {"PLAINTEXT": 9092})


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[Broker, MemoryStore]]:
    store = MemoryStore()
    async with background() as tasks:
        found = Broker(store)
        await found.join(tasks)
        yield found, store
        await found.metadata.close()


def test_a_member_is_known_by_the_port_that_it_got_and_leads_from_then_on() -> None:
    async def main() -> None:
        async with joined() as (found, _):
            registered = found.metadata.image.brokers[ME]
            assert registered.endpoints == (Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),)
            assert registered.lease_id is not None
            assert not found.membership.is_fenced
            assert found.fences[-1] is False
            found.membership.before_requests()
            assert not found.membership.is_fenced

    run_virtually(main())


def test_somebody_becomes_the_controller() -> None:
    async def main() -> None:
        async with joined() as (found, _):
            await asyncio.sleep(5)
            assert found.metadata.image.controller_id == ME

    run_virtually(main())


def test_a_member_that_cannot_renew_its_lease_is_fenced_before_it_ends() -> None:
    async def main() -> None:
        async with joined() as (found, store):
            store.set_available(False)
            await asyncio.sleep(6)
            assert found.membership.is_fenced
            assert found.fences[-1] is True
            store.set_available(True)
            await asyncio.sleep(10)

    run_virtually(main())


def test_what_a_member_leads_is_handed_over_before_it_leaves() -> None:
    async def main() -> None:
        async with background() as tasks:
            store = MemoryStore()
            first, second = Broker(store, 1), Broker(store, 2)
            await first.join(tasks)
            await second.join(tasks)
            topic = NewTopic(name="t", assignments={0: [1, 2]}, configs={})
            await first.metadata.create_topics([topic])
            await first.membership.hand_over()
            state = first.metadata.image.partition("t", 0)
            assert state is not None
            assert state.leader == 2
            await first.membership.leave()
            await asyncio.sleep(1)
            assert list(second.metadata.image.brokers) == [2]
            for each in (first, second):
                await each.metadata.close()

    run_virtually(main())


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_store_that_does_not_answer_keeps_nobody_from_stopping(hands_over: bool) -> None:
    async def main() -> None:
        async with joined() as (found, store):
            found.membership.reconfigure(replace(SETTINGS, hands_over=hands_over))
            store.set_available(False)
            started = asyncio.get_running_loop().time()
            await found.membership.hand_over()
            assert asyncio.get_running_loop().time() - started <= HAND_OVER_S_MAX
            assert ME not in found.metadata.image.stopping
            store.set_available(True)

    run_virtually(main())


def test_who_is_alone_registers_for_good_with_the_replicas_that_it_lacks() -> None:
    class Disks(DiskState):
        asked = 0

        @override
        def offline_replicas(self) -> dict[TopicId, list[int]]:
            self.asked += 1
            return {}

    async def main() -> None:
        async with background() as tasks:
            metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await metadata.start(tasks)
            disks = Disks()
            alone = Alone(metadata, broker(1), disks)
            assert alone.before_requests is None
            await alone.prepare()
            assert disks.asked == 1
            await alone.join(tasks, {})
            await alone.hand_over()
            await alone.leave()
            assert list(metadata.image.brokers) == [ME]
            await metadata.close()

    run_virtually(main())
