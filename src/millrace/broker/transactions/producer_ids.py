"""Producer ids for idempotent producers, taken from the metadata store in blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from millrace.core.ids import ProducerId


class ProducerIdBlocks(Protocol):
    """Where the ids of the whole cluster come from: the metadata."""

    async def allocate_producer_ids(self) -> range:
        """A block of ids that nobody else ever gets."""


class ProducerIds:
    """Gives out every id once. What is left of a block is lost with the process, as in Kafka."""

    def __init__(self, blocks: ProducerIdBlocks) -> None:
        self._blocks = blocks
        self._left: Iterator[int] = iter(())
        self._refill = asyncio.Lock()

    async def next(self) -> ProducerId:
        """A fresh id; raises what the metadata raises when no block can be had."""
        producer_id = next(self._left, None)
        if producer_id is None:
            # One refill serves all who wait for it.
            async with self._refill:
                producer_id = next(self._left, None)
                if producer_id is None:
                    self._left = iter(await self._blocks.allocate_producer_ids())
                    producer_id = next(self._left)
        return ProducerId(producer_id)
