"""Delivers what is due from one partition of the store, while this broker leads it.

A round takes what is due, reads it, and plans a batch for each target. The plan is committed to the store
first (an intent names the messages and the numbers of the batch), then the batches are appended to their
targets, then the next round's write says that they are there. Whoever leads after a crash finds the intents
that nobody called done and appends their batches again, under the same numbers: a target that has one knows
it. So each message is delivered once, and no round waits for another partition's.

A target that is away keeps only its own messages: its batch is tried until it is there, and what is due for
it meanwhile waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.broker.internal_appends import InternalAppends, NoSuchPartition, may_pass
from millrace.broker.queues.delayed.reading import off_loop, read_at
from millrace.broker.queues.delayed.tailing import Tail
from millrace.core.background import Tasks
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition, format_topic_id
from millrace.log.errors import OutOfOrderSequence, ProducerFenced
from millrace.metadata.service import Metadata
from millrace.queues.delayed.codec import (
    Entry,
    Intent,
    StoredMessage,
    Target,
    encode_done,
    encode_intent,
    encode_settled,
)
from millrace.queues.delayed.lateness import DelayedFigures
from millrace.queues.delayed.planning import EPOCH_MAX, Found, Planned, delivery_batch, plan
from millrace.queues.delayed.wheel import Wheel
from millrace.replica.partition import NotLeader, Partition
from millrace.wire.records import build_plain_batch

logger: Final = logging.getLogger(__name__)

SENDS_AWAITED_S: Final = 0.5
"""How long a round waits for its targets before the next one leaves those out that have not answered."""
TRY_AGAIN_S: Final = 1.0
AHEAD_MS: Final = 60_000
"""What is due within this time is in memory."""
HELD_MAX: Final = 500_000
"""So many entries may be in memory: those to come, and those whose targets are away."""
HELD_FOR_ABSENT_MAX: Final = HELD_MAX // 2
"""So many of them may be for targets that are away; more are left in the index until one of these is back."""
HELD_FOR_TARGET_MAX: Final = HELD_MAX // 4
ROUND_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryParts:
    """What all partitions of the store need of the broker."""

    metadata: Metadata
    appends: InternalAppends
    clock: Clock
    next_producer_id: Callable[[], Awaitable[int]]
    figures: DelayedFigures
    rate_max: Callable[[], int]
    """How many messages a second each partition of the store may deliver."""


class Delivery:
    """The deliveries of one term of leadership. Nothing of it outlives the term but what is in the store."""

    def __init__(self, partition: Partition, tail: Tail, parts: DeliveryParts, tasks: Tasks) -> None:
        tail.index.hand_out_again()
        self.epoch = partition.leader_epoch
        self._partition = partition
        self._tail = tail
        self._parts = parts
        self._tasks = tasks
        self._wheel = Wheel()
        self._sending: dict[Target, asyncio.Task[None]] = {}
        self._held: dict[Target, list[Entry]] = {}
        """What is due for targets that have not taken what came before."""
        self._held_count = 0
        self._aside: dict[Target, int] = {}
        """How many entries of targets that are away are left to the index, because memory has enough."""
        self._is_to_reload = False
        self._done: list[int] = []
        """Intents that were carried out, which the store has not been told."""
        self._settled: list[Entry] = []
        self._producer_id = -1
        self._producer_epoch = EPOCH_MAX
        self._now_ms = 0
        self._is_taken_over = False
        self._failure: Exception | None = None
        """Why a batch was given up whose intent is stored: only a new term carries it out."""
        self._budget = 0.0
        self._budget_at: float | None = None

    @property
    def is_current(self) -> bool:
        return self._partition.is_leader and self._partition.leader_epoch == self.epoch

    @property
    def next_due_ms(self) -> int | None:
        """When the next one of those in memory may be due."""
        return self._wheel.next_due_ms()

    def end(self) -> None:
        for task in list(self._sending.values()):
            task.cancel()

    def added(self, entries: Sequence[Entry]) -> None:
        """These were stored just now, and are due so soon that they belong in memory."""
        self._wheel.add(entries)

    async def round(self) -> bool:
        """Deliver what is due at this moment; whether there may be more. After an error the term begins again
        from what is stored."""
        if self._failure is not None:
            raise self._failure
        if not self._is_taken_over:
            await self._take_over()
        if self._is_to_reload:
            self._reload()
        # A clock that jumps back must not make those wait that are due.
        now_ms = self._now_ms = max(self._now_ms, self._parts.clock.wall_ms())
        await self._load(now_ms)
        limit = self._allowed()
        entries = self._wheel.take(now_ms, limit) if limit else []
        found = await self._find(entries)
        planned: list[Planned] = []
        if found:
            epoch = await self._next_epoch()
            planned, left = plan(found, producer_id=self._producer_id, producer_epoch=epoch)
            self._wheel.add(left)
        if not planned and not self._done and not self._settled:
            return False
        offset = await self._store(planned)
        sent = self._send_all([(offset + number, each) for number, each in enumerate(planned)])
        if sent:
            await asyncio.wait(sent, timeout=SENDS_AWAITED_S)  # noqa: TID251 - a list keeps its order
        return len(entries) == ROUND_MAX

    # What is due.

    async def _take_over(self) -> None:
        """Carry out what an earlier leader, or this one before a crash, may not have."""
        tail = self._tail
        intents = sorted(tail.index.state.open_intents)
        found = await read_at(tail.log, tail.volume, intents)
        again: list[tuple[int, Planned]] = []
        for offset in intents:
            intent = found.get(offset)
            batch = await self._batch_of(intent) if isinstance(intent, Intent) else None
            if isinstance(intent, Intent) and batch is not None:
                again.append((offset, Planned(intent, batch)))
                continue
            # The log is damaged. To build the batch from what is left would deliver some of it twice.
            logger.error(
                "%s: the intent at %d cannot be carried out again: it or its messages are not in the log; "
                "what it names counts as delivered",
                tail.log.topic_partition,
                offset,
            )
            if isinstance(intent, Intent):
                self._parts.figures.dropped += len(intent.entries)
            self._done.append(offset)
        self._send_all(again, is_again=True)
        self._is_taken_over = True

    async def _batch_of(self, intent: Intent) -> bytes | None:
        """What carries an intent out; None if its messages are not all there."""
        tail = self._tail
        found = await read_at(tail.log, tail.volume, [offset for _, offset in intent.entries])
        messages = [found.get(offset) for _, offset in intent.entries]
        stored = [message for message in messages if isinstance(message, StoredMessage)]
        return delivery_batch(intent, stored) if stored and len(stored) == len(messages) else None

    async def _load(self, now_ms: int) -> None:
        """Have in memory what is due within the next minute."""
        tail = self._tail
        while len(self._wheel) + self._held_count < HELD_MAX:
            slot = tail.index.next_slot()
            if slot is None or slot.start_ms > now_ms + AHEAD_MS:
                return
            self._wheel.add(await off_loop(tail.volume, tail.log.path, partial(tail.index.load, slot.name)))

    def _allowed(self) -> int:
        """How many may be delivered now: as many as were due at the permitted rate since the last time."""
        now = asyncio.get_running_loop().time()
        rate = self._parts.rate_max()
        since = 1.0 if self._budget_at is None else now - self._budget_at
        self._budget = min(self._budget + since * rate, float(rate))
        self._budget_at = now
        return min(int(self._budget), ROUND_MAX)

    async def _find(self, entries: Sequence[Entry]) -> list[Found]:
        """Read messages; those that were cancelled are settled, those whose target is busy wait."""
        if not entries:
            return []
        self._budget -= len(entries)
        tail, figures = self._tail, self._parts.figures
        records = await read_at(tail.log, tail.volume, [offset for _, offset in entries])
        found: list[Found] = []
        for entry in entries:
            stored = records.get(entry[1])
            if not isinstance(stored, StoredMessage):
                logger.error("%s: there is no message at %d", tail.log.topic_partition, entry[1])
                figures.dropped += 1
                self._settled.append(entry)
                continue
            if tail.index.state.is_cancelled(stored, entry[1]):
                figures.cancelled += 1
                self._settled.append(entry)
                continue
            target = Target(stored.id.topic_id, stored.id.partition)
            if target in self._sending:
                self._hold(target, entry)
            else:
                found.append(Found(entry, stored))
        return found

    def _hold(self, target: Target, entry: Entry) -> None:
        """Keep what a target cannot take yet. What one does not take must not fill the memory that all others
        need: the rest is left to the index, which still counts it as pending."""
        held = self._held.setdefault(target, [])
        if len(held) >= HELD_FOR_TARGET_MAX or self._held_count >= HELD_FOR_ABSENT_MAX:
            self._aside[target] = self._aside.get(target, 0) + 1
            return
        held.append(entry)
        self._held_count += 1

    def _reload(self) -> None:
        """Begin with the first entry of the index again. All intents of earlier rounds are in it by now, so
        that it hands out exactly what nobody has begun to deliver."""
        self._is_to_reload = False
        self._wheel = Wheel()
        self._held.clear()
        self._held_count = 0
        self._aside.clear()
        self._tail.index.hand_out_again()

    async def _next_epoch(self) -> int:
        if self._producer_epoch >= EPOCH_MAX:
            self._producer_id = await self._parts.next_producer_id()
            self._producer_epoch = -1
        self._producer_epoch += 1
        return self._producer_epoch

    # The store.

    async def _store(self, planned: Sequence[Planned]) -> int:
        """Commit what is about to be done, and what was done before; where the first intent is."""
        records: list[tuple[bytes, bytes | None]] = [encode_intent(each.intent) for each in planned]
        done, self._done = self._done, []
        if done:
            records.append(encode_done(sorted(done)))
        settled, self._settled = self._settled, []
        if settled:
            records.append(encode_settled(settled))
        return await self.write(records)

    async def write(self, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append to the store as its leader of this term, and return when it is committed."""
        partition, now_ms = self._partition, self._parts.clock.wall_ms()
        if not self.is_current:
            raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)
        partition.refuse_if_too_few_replicas()
        appended = partition.append(memoryview(build_plain_batch(records, now_ms)), now_ms)
        if not partition.is_acknowledged(appended):
            committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            partition.waiting_produces.add(
                appended.last_offset + 1, lambda is_there: _tell(committed, is_there)
            )
            if not await committed:
                raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)
        return appended.base_offset

    # The targets.

    def _send_all(
        self, planned: Sequence[tuple[int, Planned]], *, is_again: bool = False
    ) -> list[asyncio.Task[None]]:
        by_target: dict[Target, list[tuple[int, Planned]]] = {}
        for each in planned:
            by_target.setdefault(each[1].intent.target, []).append(each)
        for target, its_batches in by_target.items():
            self._sending[target] = self._tasks.start(
                "deliver-delayed", self._send(target, its_batches, is_again=is_again)
            )
        return [self._sending[target] for target in by_target]

    async def _send(self, target: Target, batches: Sequence[tuple[int, Planned]], *, is_again: bool) -> None:
        """Append the batches of a target, in their order, however long that takes."""
        try:
            for number, (offset, (intent, batch)) in enumerate(batches):
                outcome = await self._append(target, batch)
                if is_again and isinstance(outcome, OutOfOrderSequence | ProducerFenced):
                    # Later ones of this producer are there, and so this one is.
                    outcome = None
                if isinstance(outcome, NoSuchPartition):
                    self._parts.figures.dropped += len(intent.entries)
                elif outcome is not None:
                    logger.warning("%s: %s", self._partition.topic_partition, outcome)
                    await self._send_one_by_one(target, batches[number:])
                    return
                else:
                    now_ms = self._parts.clock.wall_ms()
                    self._parts.figures.delivered_at(now_ms, [due_ms for due_ms, _ in intent.entries])
                self._done.append(offset)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._sending.pop(target, None)
            released = self._held.pop(target, [])
            self._held_count -= len(released)
            self._wheel.add(released)
            if self._aside.pop(target, 0):
                self._is_to_reload = True

    async def _append(self, target: Target, batch: bytes) -> MillraceError | None:
        """Append to a target until it is there, or will never be; None if it is there."""
        while True:
            topic = self._parts.metadata.image.topics_by_id.get(target.topic_id)
            if topic is None:
                return _gone(target)
            outcome = await self._parts.appends.append(
                topic.name, target.partition, batch, topic_id=target.topic_id
            )
            if not isinstance(outcome, MillraceError):
                return None
            if not may_pass(outcome):
                return outcome
            await asyncio.sleep(TRY_AGAIN_S)

    async def _send_one_by_one(self, target: Target, refused: Sequence[tuple[int, Planned]]) -> None:
        """A target refuses a batch for good, for the sake of one message: find it and leave it out. Each of
        the others gets an epoch of its own, so that none waits for the sequence of one that is dropped."""
        entries = [entry for _, (intent, _) in refused for entry in intent.entries]
        single: list[Planned] = []
        for entry in entries:
            epoch = await self._next_epoch()
            intent = Intent(target, self._producer_id, epoch, 0, True, (entry,))
            batch = await self._batch_of(intent)
            if batch is None:
                self._parts.figures.dropped += 1
                logger.error("%s: there is no message at %d", self._partition.topic_partition, entry[1])
                continue
            single.append(Planned(intent, batch))
        records: list[tuple[bytes, bytes | None]] = [encode_intent(each.intent) for each in single]
        base_offset = await self.write([*records, encode_done([offset for offset, _ in refused])])
        for offset, (intent, batch) in enumerate(single, base_offset):
            error = await self._append(target, batch)
            if error is None:
                now_ms = self._parts.clock.wall_ms()
                self._parts.figures.delivered_at(now_ms, [intent.entries[0][0]])
            else:
                self._parts.figures.dropped += 1
                logger.warning("%s: a delayed message is dropped: %s", self._partition.topic_partition, error)
            self._done.append(offset)


def _tell(waiting: asyncio.Future[bool], is_there: bool) -> None:
    if not waiting.done():
        waiting.set_result(is_there)


def _gone(target: Target) -> NoSuchPartition:
    return NoSuchPartition(TopicPartition(format_topic_id(target.topic_id), target.partition))
