"""The delayed messages of a broker: a keeper for each partition of the store that it holds."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.broker.queues.delayed.delivery import Delivery, DeliveryParts
from millrace.broker.queues.delayed.stragglers import move_stragglers
from millrace.broker.queues.delayed.tailing import Tail
from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.log.disk.volume import Volume
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.index import IndexDamaged
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions

logger: Final = logging.getLogger(__name__)

TICK_S: Final = 0.1
FOLLOWER_TICK_S: Final = 1.0
"""A follower only keeps its index up."""
AFTER_FAILURE_S: Final = 1.0
TRIM_AFTER_S: Final = 10.0


class Keeper:
    """One partition of the store on this broker."""

    def __init__(
        self, partition: Partition, volume: Volume, parts: DeliveryParts, background: Background
    ) -> None:
        self.partition = partition
        self._volume = volume
        self._parts = parts
        self._background = background
        self.tail = Tail(partition.log, volume, parts.clock)
        self._delivery: Delivery | None = None
        self.trimmed_at = 0.0
        self._is_told_of_failure = False

    @property
    def pending_count(self) -> int:
        """How many messages wait here; only the leader's count is told."""
        return self.tail.index.state.pending_count if self.partition.is_leader else 0

    @property
    def next_due_ms(self) -> int | None:
        """When the next one may be due, to the second if it is near and to the minute or hour else."""
        if not self.partition.is_leader:
            return None
        soon_ms = None if self._delivery is None else self._delivery.next_due_ms
        return self.tail.index.next_due_ms() if soon_ms is None else soon_ms

    async def run(self) -> None:
        """Index and deliver until this is cancelled."""
        while True:
            try:
                is_more = await self.step()
            except IndexDamaged as damage:
                self._begin_term_again()
                await self.tail.begin_again(damage)
                continue
            except MillraceError as error:
                # A disk, a leader or replicas that may come back. What is stored says where to go on.
                self._begin_term_again()
                if not self._is_told_of_failure:
                    self._is_told_of_failure = True
                    logger.warning("%s: delayed messages wait: %s", self.partition.topic_partition, error)
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            except Exception:
                self._begin_term_again()
                raise
            self._is_told_of_failure = False
            if not is_more:
                await asyncio.sleep(TICK_S if self.partition.is_leader else FOLLOWER_TICK_S)

    async def step(self) -> bool:
        """Index what is new, deliver what is due; whether there may be more at once."""
        partition, now = self.partition, asyncio.get_running_loop().time()
        if partition.log is not self.tail.log:
            # The log lives in another data directory now, where it has no index yet.
            self._begin_term_again()
            self.tail = Tail(partition.log, self._volume, self._parts.clock)
        tail = self.tail
        added = await tail.follow()
        is_more = False
        if not partition.is_leader:
            self._begin_term_again()
        elif tail.is_at_end and partition.knows_its_end:
            delivery = self._delivery
            if delivery is None or not delivery.is_current:
                self._begin_term_again()
                delivery = self._delivery = Delivery(partition, tail, self._parts, self._background)
            else:
                delivery.added(added)
            is_more = await delivery.round()
            await self._trim(delivery, now)
        await tail.save(now)
        return is_more

    async def _trim(self, delivery: Delivery, now: float) -> None:
        """Delete what nobody needs any more from the start of the log."""
        if now - self.trimmed_at < TRIM_AFTER_S:
            return
        self.trimmed_at = now
        tail = self.tail
        log, index = tail.log, tail.index
        await move_stragglers(tail, delivery, self._parts.figures, self._parts.clock.wall_ms())
        # Never behind the checkpoint, from which a start goes on.
        offset = min(index.state.needed_offset, index.checkpoint_offset)
        if offset > log.log_start_offset:
            await log.delete_records_before(offset)
            self.partition.changed()

    def _begin_term_again(self) -> None:
        if self._delivery is not None:
            self._delivery.end()
            self._delivery = None

    async def close(self) -> None:
        self._begin_term_again()
        await self.tail.save(0.0, at_once=True)


class DelayedDelivery:
    """All partitions of the store on this broker."""

    def __init__(
        self, partitions: Partitions, volume: Volume, parts: DeliveryParts, background: Background
    ) -> None:
        self._partitions = partitions
        self._volume = volume
        self._parts = parts
        self._background = background
        self._keepers: dict[int, tuple[Keeper, asyncio.Task[None]]] = {}
        self.figures = parts.figures

    @property
    def pending_count(self) -> int:
        return sum(keeper.pending_count for keeper, _ in self._keepers.values())

    @property
    def next_due_ms(self) -> int | None:
        dues = [keeper.next_due_ms for keeper, _ in self._keepers.values()]
        return min((due for due in dues if due is not None), default=None)

    def start(self) -> None:
        for partition in list(self._partitions.by_name.get(DELAYED_TOPIC, {}).values()):
            self.partition_changed(partition)

    def partition_changed(self, partition: Partition) -> None:
        """A partition came, went or may have another leader."""
        if partition.topic != DELAYED_TOPIC:
            return
        known = self._keepers.get(partition.index)
        is_here = self._partitions.find(DELAYED_TOPIC, partition.index) is partition
        if known is not None and (known[0].partition is not partition or not is_here):
            del self._keepers[partition.index]
            known[1].cancel()
            known = None
        if known is None and is_here:
            keeper = Keeper(partition, self._volume, self._parts, self._background)
            task = self._background.keep(f"delayed-messages-{partition.index}", keeper.run)
            self._keepers[partition.index] = (keeper, task)

    async def close(self) -> None:
        """Stop delivering, and leave indexes that need no reading at the next start."""
        keepers, self._keepers = self._keepers, {}
        for _, task in keepers.values():
            task.cancel()
        if keepers:
            await asyncio.wait([task for _, task in keepers.values()])  # noqa: TID251 - a list keeps its order
        for keeper, _ in keepers.values():
            try:
                await keeper.close()
            except MillraceError as error:
                logger.warning(
                    "%s: its index is read again at the next start: %s", keeper.partition.index, error
                )
