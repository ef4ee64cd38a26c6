"""The store of delayed messages is made as the settings say, and deliveries follow the partitions of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

from millrace.broker.assembly.coordinators import Coordinators
from millrace.broker.assembly.delayed import start_delayed
from millrace.broker.replication.local_replicas import LocalReplicas
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


class Parts:
    """Stands for the coordinators, none of which is asked here."""

    appends = None

    class producer_ids:  # noqa: N801 - stands for an object
        @staticmethod
        async def next() -> int:
            return 7


def test_deliveries_hear_of_partitions_from_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with background() as tasks:
            ground = ground_of(tmp_path, background=tasks)
            metadata = Metadata(MemoryStore(), policy=Policy, ids=CountedIds(), chance=random.Random(1))
            await metadata.start(tasks)
            replicas = Replicas()
            found = start_delayed(
                ground,
                metadata,
                Partitions(),
                cast("LocalReplicas", replicas),
                cast("Coordinators", Parts()),
            )
            assert replicas.listeners == [found.delivery.partition_changed]
            assert found.delivery.pending_count == 0
            await found.delivery.close()
            await metadata.close()

    asyncio.run(main())
