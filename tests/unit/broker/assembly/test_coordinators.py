"""Coordinators hear of the partitions that this broker leads, and store groups as their release does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from millrace.broker.assembly.coordinators import start_coordinators
from millrace.broker.assembly.ground import Release
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.groups.records import GroupRecordCodec
from millrace.metadata.commands import Policy
from millrace.metadata.service import Metadata
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.broker.assembly.grounds import ground_of
from tests.unit.metadata.worlds import CountedIds


class Replicas:
    def __init__(self) -> None:
        self.listeners: list[Callable[[Partition], None]] = []

    def subscribe(self, listener: Callable[[Partition], None]) -> None:
        self.listeners.append(listener)


def test_all_coordinators_follow_the_leaders_and_stop_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            codec = GroupRecordCodec()
            ground = replace(ground_of(tmp_path, background=tasks), release=Release(group_records=codec))
            metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await metadata.start(tasks)
            replicas = Replicas()
            found = start_coordinators(ground, metadata, Partitions(), cast("LocalReplicas", replicas), None)
            assert replicas.listeners == [
                found.groups.runtime.leadership_changed,
                found.transactions.runtime.leadership_changed,
                found.share_state.runtime.leadership_changed,
                found.shares.leadership_changed,
            ]
            assert found.groups.runtime._codec is codec
            assert await found.producer_ids.next() == 0
            found.stop()
            await metadata.close()

    asyncio.run(main())
