"""The partitions that dead letters go to. This broker is an idempotent producer to each of them: a batch
whose answer was lost is sent again as it is, and whoever leads the partition by then knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from millrace.core.ids import TopicPartition
from millrace.log.state.producer_state import add_to_sequence
from millrace.queues.dead_letters import Stamp

if TYPE_CHECKING:
    from millrace.metadata.image import Image


class Place:
    """One partition. Whoever holds its lock may append to it, with the next stamp."""

    __slots__ = ("_producer_id", "_sequence", "at", "lock")

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.lock = asyncio.Lock()
        self._producer_id = -1
        self._sequence = 0

    async def stamp(self, next_producer_id: Callable[[], Awaitable[int]]) -> Stamp:
        """What the next batch is marked with, until it is known to be stored."""
        if self._producer_id < 0:
            self._producer_id = await next_producer_id()
        return Stamp(self._producer_id, self._sequence)

    def stored(self, records_count: int) -> None:
        """The batch with the last stamp is."""
        self._sequence = add_to_sequence(self._sequence, records_count)

    def begin_anew(self) -> None:
        """Nobody knows, or will know, what became of the last batch: the next one is another producer's."""
        self._producer_id = -1
        self._sequence = 0


class Places:
    """All of them that this broker has written to and that are still there."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def find(self, at: TopicPartition, image: Image) -> Place:
        place = self._places.get(at)
        if place is None:
            self._places = {
                at: place
                for at, place in self._places.items()
                if place.lock.locked() or at.topic in image.topics
            }
            place = self._places[at] = Place(at)
        return place
