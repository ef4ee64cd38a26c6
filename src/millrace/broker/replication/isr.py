"""Tells the metadata which replicas are in sync with the partitions that this broker leads. It adds those
that have caught up at once, and takes those out that have been behind for too long.

The controller takes brokers that are gone out of the in-sync replicas, with one exception: a leader that
would be left alone, where one replica is enough. Then the leader commits nothing until it asks for this
itself, and it asks only when all that was committed is on its own disk: the replica that it leaves behind may
have the only other copy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from millrace.broker.replication.replica_sessions import steady_ms
from millrace.core.ids import Epoch, NodeId
from millrace.metadata.commands import AlterIsr
from millrace.metadata.election import is_left_to_leader
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import Image, PartitionState
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)

CHECKS_PER_LAG: Final = 4
"""How often the keeper looks for lagging followers within the time that they have."""
PARTITIONS_PER_REQUEST: Final = 500
RETRY_S: Final = 0.2


class IsrChanges(Protocol):
    """What the keeper needs of the metadata."""

    @property
    def image(self) -> Image: ...
    async def alter_isrs(self, requests: Sequence[AlterIsr]) -> list[PartitionState | MetadataError]: ...


class IsrKeeper:
    """Collects wishes to change in-sync replicas and asks the metadata for many of them at once."""

    def __init__(
        self,
        metadata: IsrChanges,
        partitions: Partitions,
        *,
        node_id: NodeId,
        lag_ms_max: Callable[[], int],
        applied: Callable[[Partition, PartitionState], None],
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._node_id = node_id
        self._lag_ms_max = lag_ms_max
        self._applied = applied
        self._pending: dict[Partition, None] = {}
        self._flushing: dict[Partition, None] = {}
        self._asked: list[tuple[Partition, AlterIsr]] = []
        """The wishes that the metadata is being asked for. They are in force until it is known what became of
        them."""
        self._wakened = asyncio.Event()
        self.shrinks_count = 0
        self.expansions_count = 0

    def wanted(self, partition: Partition) -> None:
        """A follower of this partition has caught up, or lost records."""
        self._pending[partition] = None
        self._wakened.set()

    def check(self, partition: Partition) -> None:
        """The partition has a new state, or brokers came or went: some that are in sync may be gone."""
        leadership = partition.leadership
        if leadership is not None and len(self._willing(leadership.isr)) < len(leadership.isr):
            self.wanted(partition)

    def check_all(self) -> None:
        for partition in self._partitions:
            self.check(partition)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_check = loop.time()
        while self._asked:
            await self._ask_some()
        while True:
            try:
                async with asyncio.timeout_at(next_check):
                    await self._wakened.wait()
            except TimeoutError:
                next_check = loop.time() + self._lag_ms_max() / CHECKS_PER_LAG / 1000
                self._look_for_lag()
            self._wakened.clear()
            pending, self._pending = self._pending, {}
            self._asked = self._wishes(pending)
            while self._asked:
                await self._ask_some()

    async def _ask_some(self) -> None:
        wishes = self._asked[:PARTITIONS_PER_REQUEST]
        await self._ask(wishes)
        del self._asked[: len(wishes)]

    def _look_for_lag(self) -> None:
        for partition in self._partitions:
            if partition.leadership is not None:
                self._pending[partition] = None

    def _wishes(self, partitions: Mapping[Partition, None]) -> list[tuple[Partition, AlterIsr]]:
        now_ms = steady_ms()
        wishes = []
        for partition in partitions:
            leadership = partition.leadership
            if leadership is None:
                continue
            leadership.tick(now_ms)
            partition.commit_what_is_replicated()
            isr = self._wished_isr(partition, leadership, now_ms)
            if isr is None:
                continue
            log.info(
                "%s: asking for a change of the in-sync replicas from %s to %s",
                partition.topic_partition,
                list(leadership.isr),
                list(isr),
            )
            request = AlterIsr(
                topic_id=partition.topic_id,
                partition=partition.index,
                leader_id=self._node_id,
                leader_epoch=Epoch(leadership.leader_epoch),
                partition_epoch=leadership.partition_epoch,
                isr=[NodeId(node_id) for node_id in isr],
                broker_epochs={NodeId(node): epoch for node, epoch in leadership.broker_epochs.items()},
            )
            wishes.append((partition, request))
        return wishes

    def _wished_isr(
        self, partition: Partition, leadership: Leadership, now_ms: int
    ) -> tuple[int, ...] | None:
        isr = leadership.wish(
            log_end_offset=partition.log.log_end_offset,
            high_watermark=partition.log.high_watermark,
            now_ms=now_ms,
            is_eligible=lambda node_id: len(self._willing((node_id,))) == 1,
        )
        if leadership.wished_isr != isr:
            # An earlier wish may still come true.
            return None
        present = self._willing(leadership.isr if isr is None else isr)
        if len(leadership.isr) == 1 or not is_left_to_leader(
            len(present), replica_count=len(leadership.replicas), min_isr=partition.min_insync_replicas
        ):
            return isr
        # Before this leader's term more may have been committed than it has heard of.
        if partition.log.flushed_offset < max(partition.log.high_watermark, leadership.epoch_start_offset):
            self._flush(partition)
            leadership.refused()
            return None
        return present

    def _willing(self, node_ids: Sequence[int]) -> tuple[int, ...]:
        """Those that are there and not about to stop. This broker itself is, whatever the image says."""
        image = self._metadata.image
        return tuple(
            node_id
            for node_id in node_ids
            if node_id == self._node_id or (node_id in image.brokers and node_id not in image.stopping)
        )

    def _flush(self, partition: Partition) -> None:
        """Ask again when all that the log has now is on disk."""
        if partition in self._flushing:
            return
        waiting = partition.log.wait_flushed(partition.log.log_end_offset)
        assert waiting is not None, partition.topic_partition
        self._flushing[partition] = None
        waiting.add_done_callback(lambda done: self._flushed(partition, done))

    def _flushed(self, partition: Partition, done: asyncio.Future[None]) -> None:
        del self._flushing[partition]
        # A directory whose disk fails goes offline, and others lead; a log that was closed needs no care.
        if not done.cancelled() and done.exception() is None:
            self.wanted(partition)

    async def _ask(self, wishes: Sequence[tuple[Partition, AlterIsr]]) -> None:
        outcomes: list[PartitionState | MetadataError] | None = None
        obstacle = ""
        while outcomes is None:
            try:
                outcomes = await self._metadata.alter_isrs([request for _, request in wishes])
            except MetadataError as error:
                # The change may have happened: the wish stays in force until the answer is known.
                if str(error) != obstacle:
                    obstacle = str(error)
                    log.warning("the in-sync replicas cannot be changed now: %s", obstacle)
                await asyncio.sleep(RETRY_S)
        if obstacle:
            log.info("the in-sync replicas can be changed again")
        for (partition, request), outcome in zip(wishes, outcomes, strict=True):
            self._answered(partition, request, outcome)

    def _answered(
        self, partition: Partition, request: AlterIsr, outcome: PartitionState | MetadataError
    ) -> None:
        leadership = partition.leadership
        if leadership is None or leadership.leader_epoch != request.leader_epoch:
            return
        if isinstance(outcome, MetadataError):
            log.info("%s: the in-sync replicas stay as they are: %s", partition.topic_partition, outcome)
            self._refused(partition, leadership, request)
            return
        if len(outcome.isr) < len(leadership.isr):
            self.shrinks_count += 1
        else:
            self.expansions_count += 1
        self._applied(partition, outcome)

    def _refused(self, partition: Partition, leadership: Leadership, request: AlterIsr) -> None:
        topic = self._metadata.image.topics_by_id.get(request.topic_id)
        if topic is None or request.partition >= len(topic.partitions):
            return
        state = topic.partitions[request.partition]
        if state.partition_epoch > leadership.partition_epoch:
            # The wish was about a state that is gone, perhaps by an earlier attempt at this very wish.
            if (state.leader, state.leader_epoch) == (self._node_id, leadership.leader_epoch):
                self._applied(partition, state)
        elif leadership.partition_epoch == request.partition_epoch:
            leadership.refused()
            partition.commit_what_is_replicated()
