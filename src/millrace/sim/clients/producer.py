"""An idempotent producer: it numbers its batches, has several on their way at once, and sends them again
until they are answered.

It never sends a value under two producer ids, so that nothing it does can make a duplicate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import Client, ErrorAnswer
from millrace.sim.history import Acked, Refused, Sent, SequenceBroken
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millrace.wire.records import Record, build_batch

PRODUCE_VERSION: Final = 12
INIT_VERSION: Final = 4
IN_FLIGHT_MAX: Final = 5
PRODUCE_TIMEOUT_MS: Final = 5_000
BETWEEN_BATCHES_S: Final = 0.02
_BROKEN: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


@dataclass(slots=True)
class Batch:
    """Values that are sent together, with the number of the first."""

    values: tuple[str, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Workload:
    """How much a client does: the mean pause between two turns, and how much there is in one."""

    pause_s: float = 0.5
    batches_max: int = 3
    values_max: int = 3


def produce_request(
    topic: str, partition: int, records: bytes, *, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
            )
        ],
    )


def result_of(response: ProduceResponse) -> PartitionProduceResponse:
    (topic,) = response.responses
    (result,) = topic.partition_responses
    return result


class IdempotentProducer:
    """Writes to the partitions of one topic until told to stop, and ends when all is answered."""

    def __init__(self, client: Client, topic: str, partitions: Sequence[int], workload: Workload) -> None:
        self.client = client
        self.topic = topic
        self.partitions = list(partitions)
        self.workload = workload
        self.is_stopping = False
        self.acked_count = 0
        self._producer_id = -1
        self._epoch = -1
        self._next_value = 0
        self._is_broken = False
        self._rests_until = 0.0
        self._lanes: dict[int, _Lane] = {index: _Lane() for index in self.partitions}

    async def run(self) -> None:
        await self._begin()
        chance = self.client.chance
        while not self.is_stopping:
            await self.client.next_turn(self.workload.pause_s)
            await asyncio.sleep(max(self._rests_until - self.client.loop.time(), 0.0))
            partition = chance.choice(self.partitions)
            self._fill(partition, self._lanes[partition])
            await self._empty(partition, self._lanes[partition])
            if self._is_broken:
                await self._begin()

    def rest(self, seconds: float) -> None:
        """Send nothing for a while."""
        self._rests_until = self.client.loop.time() + seconds

    async def _begin(self) -> None:
        """Get an identity, and number batches from 0 under it."""
        while True:
            try:
                response: InitProducerIdResponse = await self.client.ask_anybody(
                    ApiKey.INIT_PRODUCER_ID, INIT_VERSION, InitProducerIdRequest(transactional_id=None)
                )
            except ConnectionFailed:
                await self.client.pause()
                continue
            if not response.error_code:
                break
            await self.client.pause()
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch
        self._is_broken = False
        for lane in self._lanes.values():
            lane.next_sequence = 0

    def _fill(self, partition: int, lane: _Lane) -> None:
        client, chance = self.client, self.client.chance
        for _ in range(chance.randint(1, self.workload.batches_max)):
            values = []
            for _ in range(chance.randint(1, self.workload.values_max)):
                value = f"{self.topic}|{client.name}|{self._next_value}"
                self._next_value += 1
                values.append(value)
                client.note(
                    Sent(
                        at=client.now(),
                        producer=client.name,
                        topic=self.topic,
                        partition=partition,
                        value=value,
                    )
                )
            lane.batches.append(Batch(tuple(values), lane.next_sequence))
            lane.next_sequence += len(values)

    async def _empty(self, partition: int, lane: _Lane) -> None:
        """Send what is waiting, in order and again, until all of it has an answer."""
        while lane.batches:
            try:
                is_over = await self._attempt(partition, lane)
            except (ConnectionFailed, ErrorAnswer):
                self.client.forget_leader(self.topic)
                is_over = False
            if not is_over:
                await self.client.pause()

    async def _attempt(self, partition: int, lane: _Lane) -> bool:
        client = self.client
        address = await client.leader(self.topic, partition)
        connection = await client.connection(address)
        asked_at = client.now()
        wanted = [lane.batches[at] for at in range(min(len(lane.batches), IN_FLIGHT_MAX))]
        answers: list[asyncio.Future[Any]] = []
        try:
            for batch in wanted:
                if answers and batch.sequence % 2:
                    # Something may happen to the broker between two batches that are on their way.
                    await asyncio.sleep(BETWEEN_BATCHES_S)
                request = produce_request(self.topic, partition, self._encode(batch))
                answers.append(connection.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request))
            is_over = True
            for batch, answer in zip(wanted, answers, strict=True):
                result = result_of(await connection.answer_of(answer))
                # Answers to batches behind a refused one are looked at too: they must fit.
                if batch in lane.batches and self._take_answer(partition, lane, batch, result):
                    client.served(address, asked_at, "Produce")
                else:
                    is_over = False
        except ConnectionFailed:
            connection.abort()
            raise
        finally:
            for answer in answers:
                # An answer that nobody waits for any more must not be reported as forgotten.
                answer.cancel()
        return is_over

    def _encode(self, batch: Batch) -> bytes:
        now_ms = self.client.wall_ms()
        return build_batch(
            [Record(at, now_ms, None, value.encode()) for at, value in enumerate(batch.values)],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.sequence,
        )

    def _take_answer(
        self, partition: int, lane: _Lane, batch: Batch, result: PartitionProduceResponse
    ) -> bool:
        """Note the answer to a batch that waits; False if it has to be sent again."""
        client, code = self.client, ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            while lane.batches[0] is not batch:
                # As in librdkafka: since no number may be left out, the batches before this one are stored,
                # too, though nobody has said where.
                self._acknowledged(partition, lane.batches.popleft(), -1)
            self._acknowledged(partition, lane.batches.popleft(), result.base_offset)
            return True
        if code in _BROKEN:
            self._break(partition, code)
            raise ErrorAnswer("Produce", code)
        if not code.retriable:
            for value in batch.values:
                client.note(
                    Refused(
                        at=client.now(),
                        producer=client.name,
                        topic=self.topic,
                        partition=partition,
                        value=value,
                        code=code,
                    )
                )
            self._give_up()
        client.forget_leader(self.topic)
        return False

    def _acknowledged(self, partition: int, batch: Batch, base_offset: int) -> None:
        client = self.client
        for at, value in enumerate(batch.values):
            client.note(
                Acked(
                    at=client.now(),
                    producer=client.name,
                    topic=self.topic,
                    partition=partition,
                    value=value,
                    offset=base_offset + at if base_offset >= 0 else -1,
                )
            )
            self.acked_count += 1

    def _break(self, partition: int, code: int) -> None:
        client = self.client
        client.note(
            SequenceBroken(
                at=client.now(), producer=client.name, topic=self.topic, partition=partition, code=code
            )
        )
        self._give_up()

    def _give_up(self) -> None:
        """Go on under another identity, without the batches that wait: they may or may not be there, and are
        not sent again."""
        self._is_broken = True
        for lane in self._lanes.values():
            lane.batches.clear()


class _Lane:
    """The batches of one partition that have no answer yet."""

    __slots__ = ("batches", "next_sequence")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.next_sequence = 0
