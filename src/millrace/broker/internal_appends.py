"""Appends of this broker's own to any partition of the cluster: here, or at the broker that leads it.

For records that no client sends at this moment: dead letters, messages whose time has come, and what the
store of delayed messages keeps of them. They are committed when `append` returns, as with acks=all. A leader
that moves, is away or lacks replicas is waited for until the deadline; what no time mends is told at once.

A batch with producer id, epoch and sequence may be tried any number of times and is stored once. One without
them may be stored twice if its leader dies at the wrong moment.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from millrace.broker.replication.peers import Lane, Peers, PeerUnreachable
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicId, TopicPartition
from millrace.log.batches.validation import prepare
from millrace.log.errors import (
    LogClosed,
    LogDirectoryOffline,
    OutOfOrderSequence,
    ProducerFenced,
    StorageError,
)
from millrace.log.partition.appending import Appended
from millrace.metadata.image import NO_LEADER, TopicState
from millrace.metadata.service import Metadata
from millrace.replica.partition import NotEnoughReplicas, NotLeader, Partition
from millrace.replica.partitions import Partitions
from millrace.wire.api_keys import ApiKey
from millrace.wire.batch_header import read_header
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

BETWEEN_BROKERS: Final = "__millrace_between_brokers"
"""The transactional id of what brokers append at each other's. It opens no transaction: it says that the
records were accepted before, from whoever wrote them first."""
PRODUCE_VERSION: Final = 13
"""Names topics by id: a topic that was deleted and made again under its name gets nothing of the old one."""
ACKS_ALL: Final = -1
COMMIT_TIMEOUT_MS: Final = 5_000
"""How long a leader may wait for its replicas; less than a connection between brokers waits for answers."""
DEADLINE_S: Final = 30.0
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0


class NoSuchPartition(MillraceError):
    """There is no such partition, perhaps not any more: nothing will ever be appended to it."""

    def __init__(self, place: TopicPartition) -> None:
        super().__init__(f"there is no partition {place}")


class CommitAwaited(MillraceError):
    """A batch is in the log of this broker, and its replicas do not have it in time; later they may."""

    def __init__(self, place: TopicPartition) -> None:
        super().__init__(f"{place}: its replicas have not stored a batch within {COMMIT_TIMEOUT_MS} ms")


class AppendRefused(MillraceError):
    """A partition's leader did not take a batch."""

    def __init__(self, place: TopicPartition, code: ErrorCode, detail: str | None) -> None:
        super().__init__(f"{place}: its leader refuses a batch: {detail or code.message}")
        self.code = code


class InternalAppends:
    """Appends wherever a partition is led."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        clock: Clock,
        node_id: NodeId,
        peers: Peers | None = None,
    ) -> None:
        """`peers` is None where there is only one broker."""
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._node_id = node_id
        self._peers = peers

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        topic_id: TopicId | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Appended | MillraceError:
        """Return when the batch is committed, or why it is not. With `topic_id` only the topic of that id is
        meant, not a later one of its name. A repeated batch of an idempotent producer is a success, too."""
        place = TopicPartition(topic, partition)
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        pause_s = PAUSE_S
        while True:
            outcome = await self._try(place, topic_id, batch)
            if not may_pass(outcome) or loop.time() + pause_s >= ends:
                return outcome
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _try(
        self, place: TopicPartition, topic_id: TopicId | None, batch: bytes
    ) -> Appended | MillraceError:
        topic = self._metadata.image.topics.get(place.topic)
        if (
            topic is None
            or not 0 <= place.partition < len(topic.partitions)
            or (topic_id is not None and topic.topic_id != topic_id)
        ):
            return NoSuchPartition(place)
        leader = topic.partitions[place.partition].leader
        try:
            if leader == self._node_id:
                return await self._append_here(place, topic, batch)
            if leader == NO_LEADER or self._peers is None:
                return NotLeader(place, leader_id=leader)
            return await self._append_at(self._peers, leader, place, topic, batch)
        except MillraceError as error:
            return error

    # Here.

    async def _append_here(self, place: TopicPartition, topic: TopicState, batch: bytes) -> Appended:
        partition = self._partitions.find(*place)
        if partition is None or partition.topic_id != topic.topic_id:
            # The metadata says so, and it is not carried out yet.
            raise NotLeader(place, leader_id=NO_LEADER)
        # The log writes offsets into what it is given.
        records = memoryview(bytearray(batch))
        if partition.log.prepares_batches:
            work = partial(prepare, records, partition.log.config, now_ms=self._clock.wall_ms())
            records = await asyncio.get_running_loop().run_in_executor(None, work)
        partition.refuse_if_too_few_replicas()
        appended = partition.append(records, self._clock.wall_ms())
        if not partition.is_acknowledged(appended):
            await _committed(partition, appended)
        return appended

    # Elsewhere.

    async def _append_at(
        self, peers: Peers, leader: NodeId, place: TopicPartition, topic: TopicState, batch: bytes
    ) -> Appended | MillraceError:
        data = PartitionProduceData(index=place.partition, records=batch)
        request = ProduceRequest(
            transactional_id=BETWEEN_BROKERS,
            acks=ACKS_ALL,
            timeout_ms=COMMIT_TIMEOUT_MS,
            topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=[data])],
        )
        response = await peers.call(leader, ApiKey.PRODUCE, PRODUCE_VERSION, request, lane=Lane.APPENDS)
        for answered in response.responses:
            for result in answered.partition_responses:
                return _outcome(place, batch, result.error_code, result.base_offset, result.error_message)
        return AppendRefused(place, ErrorCode.UNKNOWN_SERVER_ERROR, "it answers without a result")


async def _committed(partition: Partition, appended: Appended) -> None:
    """Return when the batch is committed; raises NotLeader if this broker will never commit it, and
    CommitAwaited if its replicas take too long: whoever waits has a deadline, here as elsewhere."""
    committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def ended(is_there: bool) -> None:
        if not committed.done():
            committed.set_result(is_there)

    partition.waiting_produces.add(appended.last_offset + 1, ended)
    try:
        is_there = await asyncio.wait_for(committed, COMMIT_TIMEOUT_MS / 1000)
    except TimeoutError:
        raise CommitAwaited(partition.topic_partition) from None
    if not is_there:
        raise NotLeader(partition.topic_partition, leader_id=partition.leader_id)


def _outcome(
    place: TopicPartition, batch: bytes, code: int, base_offset: int, message: str | None
) -> Appended | MillraceError:
    header = read_header(batch)
    match code:
        case ErrorCode.NONE | ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            is_duplicate = code != ErrorCode.NONE
            return Appended(base_offset, base_offset + header.last_offset_delta, -1, is_duplicate)
        case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return OutOfOrderSequence(header.producer_id, expected=-1, sequence=header.base_sequence)
        case ErrorCode.INVALID_PRODUCER_EPOCH | ErrorCode.PRODUCER_FENCED:
            return ProducerFenced(header.producer_id, epoch=header.producer_epoch, current_epoch=-1)
        case _:
            return AppendRefused(place, ErrorCode(code), message)


_PASSING: Final = (
    NotLeader,
    NotEnoughReplicas,
    StorageError,
    LogDirectoryOffline,
    LogClosed,
    PeerUnreachable,
    CommitAwaited,
)
"""What an append here may meet that another attempt may not."""


def may_pass(outcome: Appended | MillraceError) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(outcome, AppendRefused):
        # A topic that this broker knows may not have reached the other one yet.
        return outcome.code.retriable or outcome.code == ErrorCode.UNKNOWN_TOPIC_ID
    return isinstance(outcome, _PASSING)
