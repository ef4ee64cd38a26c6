"""Writing to partitions as a producer does: idempotent, and inside a transaction where one is asked for.

Everything here may be repeated after a lost connection: batches carry sequence numbers, and the other
requests mean the same the second time. The protocol used is that of transaction version 1, in which
partitions are added explicitly and ending a transaction twice is one ending; every producer begins with an
epoch of its own, so that nothing of an earlier transaction can reach a later one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from millrace.client.broker_client import GROUP, TRANSACTION, BrokerClient
from millrace.client.errors import BrokerRefused, ClientError, ConnectionFailed, InvalidOption, refuse
from millrace.client.topic_creation import NewTopics, find_or_create
from millrace.core.ids import NO_EPOCH, TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.batch_header import (
    CRC_AT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL_BIT,
    UINT32,
)
from millrace.wire.compression import Codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millrace.wire.messages.end_txn import EndTxnRequest
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

# The last versions of transaction version 1, and of requests that name topics and not their ids.
_PRODUCE_VERSIONS: Final = (3, 8)
_INIT_PRODUCER_ID_VERSIONS: Final = (3, 4)
_ADD_PARTITIONS_VERSIONS: Final = (1, 3)
_ADD_OFFSETS_VERSIONS: Final = (1, 3)
_TXN_OFFSET_COMMIT_VERSIONS: Final = (3, 3)
_END_TXN_VERSIONS: Final = (1, 3)
_OFFSET_FETCH_VERSIONS: Final = (8, 9)

_ACKS_ALL: Final = -1
_REQUEST_BYTES_MAX: Final = 16 << 20
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_MAX_S: Final = 1.0

FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Codes that say that this transaction is over, and was not ended by its producer."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class EncodedBatch(NamedTuple):
    """The records of one batch, compressed; what only the producer knows is not in it."""

    partition: TopicPartition
    record_count: int
    base_timestamp: int
    max_timestamp: int
    codec: Codec
    payload: bytes | memoryview


class Fenced(ClientError):
    """The transaction is not ours any more: a newer producer took over, or it was open for too long."""

    def __init__(self, transactional_id: str, timeout_ms: int | None = None) -> None:
        limit = "" if timeout_ms is None else f"={timeout_ms}"
        super().__init__(
            f"the transaction of {transactional_id} has been taken away: either a newer attempt of the same "
            f"task has taken over, or it was open for longer than transaction.timeout.ms{limit}"
        )
        self.transactional_id = transactional_id


class RecordTooLarge(ClientError):
    def __init__(self, batch: EncodedBatch) -> None:
        size = len(batch.payload) + HEADER_SIZE
        advice = (
            "raise max.message.bytes of the topic, or leave the record out"
            if batch.record_count == 1
            else "set the option batch.size below max.message.bytes of the topic"
        )
        super().__init__(
            f"{batch.partition} refuses {batch.record_count} records, {size} bytes, in one batch: {advice}"
        )


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who a producer is to the brokers; a later epoch of the same id fences it."""

    transactional_id: str | None
    producer_id: int
    epoch: int


class Marker(NamedTuple):
    """A committed offset that says how far a task has come, with a note beside it."""

    offset: int
    note: str


def init_producer(client: BrokerClient, transactional_id: str | None, timeout_ms: int) -> ProducerIdentity:
    """A producer id and epoch. Whoever had the transactional id before is fenced, its transaction aborted."""

    def attempt() -> ProducerIdentity:
        node_id = None if transactional_id is None else client.coordinator(transactional_id, TRANSACTION)
        message = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        version = client.version(ApiKey.INIT_PRODUCER_ID, *_INIT_PRODUCER_ID_VERSIONS, node_id)
        response = client.request(ApiKey.INIT_PRODUCER_ID, version, message, node_id)
        if response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise InvalidOption(
                f"transaction.timeout.ms={timeout_ms} is more than the broker allows: "
                "see its transaction.max.timeout.ms"
            )
        refuse(response.error_code, f"producer id for {transactional_id or 'an idempotent producer'}")
        return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)

    return client.retrying(attempt)


def end_transaction(client: BrokerClient, identity: ProducerIdentity, *, is_commit: bool) -> None:
    """Commit or abort; Fenced if the transaction is no longer this producer's."""
    transactional_id = identity.transactional_id
    assert transactional_id is not None, identity

    def attempt() -> None:
        node_id = client.coordinator(transactional_id, TRANSACTION)
        message = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=is_commit,
        )
        version = client.version(ApiKey.END_TXN, *_END_TXN_VERSIONS, node_id)
        response = client.request(ApiKey.END_TXN, version, message, node_id)
        if response.error_code in FENCED:
            raise Fenced(transactional_id)
        refuse(response.error_code, f"end of the transaction of {transactional_id}")

    client.retrying(attempt)


def read_marker(
    client: BrokerClient, group: str, place: TopicPartition, *, is_stable: bool = True
) -> Marker | None:
    """The committed offset of a group for one partition.

    Waits while a transaction with a newer one is undecided, unless `is_stable` is false.
    """

    def attempt() -> Marker | None:
        node_id = client.coordinator(group, GROUP)
        topics = [OffsetFetchRequestTopics(name=place.topic, partition_indexes=[place.partition])]
        message = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=is_stable
        )
        version = client.version(ApiKey.OFFSET_FETCH, *_OFFSET_FETCH_VERSIONS, node_id)
        response = client.request(ApiKey.OFFSET_FETCH, version, message, node_id)
        (answer,) = response.groups
        refuse(answer.error_code, f"group {group}")
        for topic in answer.topics:
            for each in topic.partitions:
                refuse(each.error_code, f"offset of group {group} for {place}")
                if each.committed_offset >= 0:
                    return Marker(each.committed_offset, each.metadata or "")
        return None

    return client.retrying(attempt)


class TaskProducer:
    """Appends the batches of one task in order, each exactly once; one request at a time for each."""

    def __init__(
        self,
        client: BrokerClient,
        identity: ProducerIdentity,
        *,
        timeout_ms: int,
        new_topics: NewTopics | None = None,
    ) -> None:
        self.identity = identity
        self._new_topics = new_topics or NewTopics()
        self._client = client
        self._timeout_ms = timeout_ms
        self._attributes = 0 if identity.transactional_id is None else TRANSACTIONAL_BIT
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self.is_open = False
        """Whether anything has been written or marked in the transaction."""

    def partition_count(self, topic: str) -> int:
        """Makes the topic if it is missing and may be made."""
        return len(find_or_create(self._client, topic, self._new_topics).partitions)

    def produce(self, batches: Iterable[EncodedBatch]) -> None:
        """Append all batches and wait until they are acknowledged."""
        waiting: dict[TopicPartition, deque[tuple[EncodedBatch, bytes]]] = {}
        for batch in batches:
            waiting.setdefault(batch.partition, deque()).append((batch, self._seal(batch)))
        if self.identity.transactional_id is not None:
            self._add_partitions([each for each in waiting if each not in self._added])
        deadline = time.monotonic() + self._client.timeout_ms / 1000
        delay = _BACKOFF_FIRST_S
        while waiting:
            failure = self._round(waiting)
            if failure is None:
                deadline = time.monotonic() + self._client.timeout_ms / 1000
                delay = _BACKOFF_FIRST_S
                continue
            if time.monotonic() + delay >= deadline:
                raise failure
            for partition in waiting:
                self._client.forget_leader(partition)
            time.sleep(delay)
            delay = min(2 * delay, _BACKOFF_MAX_S)

    def mark(self, group: str, place: TopicPartition, marker: Marker) -> None:
        """Commit an offset of a group as part of the transaction."""
        self._client.retrying(lambda: self._add_group(group))
        self.is_open = True
        self._client.retrying(lambda: self._commit_offset(group, place, marker))

    def abort(self) -> None:
        """Give up what was written. What cannot be aborted now ends with the next attempt or its time-out."""
        if not self.is_open:
            return
        try:
            end_transaction(self._client, self.identity, is_commit=False)
        except ClientError:
            # Whatever failed before is what the user has to hear of.
            return
        self.is_open = False

    # One attempt of each.

    def _round(self, waiting: dict[TopicPartition, deque[tuple[EncodedBatch, bytes]]]) -> ClientError | None:
        """The first batch of each partition, as many as fit in a request; returns a failure that may pass."""
        failure: ClientError | None = None
        by_leader: dict[int, list[TopicPartition]] = {}
        size = 0
        try:
            for partition, queue in waiting.items():
                size += len(queue[0][1])
                if by_leader and size > _REQUEST_BYTES_MAX:
                    break
                by_leader.setdefault(self._client.leader(partition), []).append(partition)
        except (BrokerRefused, ConnectionFailed) as refused:
            if not _may_pass(refused):
                raise
            failure = refused
        for node_id, partitions in by_leader.items():
            try:
                response = self._send(node_id, [(each, waiting[each][0][1]) for each in partitions])
            except ConnectionFailed as lost:
                failure = lost
                continue
            for topic in response.responses:
                for result in topic.partition_responses:
                    partition = TopicPartition(topic.name, result.index)
                    judged = self._judge(waiting[partition][0][0], result)
                    if judged is not None:
                        failure = judged
                        continue
                    waiting[partition].popleft()
                    if not waiting[partition]:
                        del waiting[partition]
        return failure

    def _judge(self, batch: EncodedBatch, result: Any) -> BrokerRefused | None:
        """None if the batch is there; an error that may pass; any other is raised."""
        code = result.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return None
        if code in FENCED and self.identity.transactional_id is not None:
            raise Fenced(self.identity.transactional_id, self._timeout_ms)
        if code in _TOO_LARGE:
            raise RecordTooLarge(batch)
        texts = (each.batch_index_error_message for each in result.record_errors)
        detail = result.error_message or next(filter(None, texts), None)
        refused = BrokerRefused(code, f"{batch.partition}" + (f" ({detail})" if detail else ""))
        if not refused.retriable:
            raise refused
        return refused

    def _send(self, node_id: int, parts: Sequence[tuple[TopicPartition, bytes]]) -> Any:
        topics: dict[str, list[PartitionProduceData]] = {}
        for partition, records in parts:
            topics.setdefault(partition.topic, []).append(
                PartitionProduceData(index=partition.partition, records=records)
            )
        message = ProduceRequest(
            transactional_id=self.identity.transactional_id,
            acks=_ACKS_ALL,
            timeout_ms=self._client.timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        version = self._client.version(ApiKey.PRODUCE, *_PRODUCE_VERSIONS, node_id)
        return self._client.request(ApiKey.PRODUCE, version, message, node_id)

    def _seal(self, batch: EncodedBatch) -> bytes:
        """The whole batch with its header, the next in its partition's sequence."""
        sequence = self._sequences.get(batch.partition, 0)
        self._sequences[batch.partition] = sequence + batch.record_count & _SEQUENCE_MASK
        header = bytearray(
            HEADER.pack(
                0,
                HEADER_SIZE - LENGTH_END + len(batch.payload),
                NO_EPOCH,
                MAGIC,
                0,
                self._attributes | batch.codec,
                batch.record_count - 1,
                batch.base_timestamp,
                batch.max_timestamp,
                self.identity.producer_id,
                self.identity.epoch,
                sequence,
                batch.record_count,
            )
        )
        checksum = crc32c(batch.payload, crc32c(memoryview(header)[CRC_START:]))
        UINT32.pack_into(header, CRC_AT, checksum)
        return b"".join((header, batch.payload))

    def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.partition)
        self._client.retrying(lambda: self._add(topics))
        self.is_open = True
        self._added.update(partitions)

    def _add(self, topics: dict[str, list[int]]) -> None:
        transactional_id = self._transactional_id()
        node_id = self._client.coordinator(transactional_id, TRANSACTION)
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()
            ],
        )
        version = self._client.version(ApiKey.ADD_PARTITIONS_TO_TXN, *_ADD_PARTITIONS_VERSIONS, node_id)
        response = self._client.request(ApiKey.ADD_PARTITIONS_TO_TXN, version, message, node_id)
        for topic in response.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                self._check(each.partition_error_code, f"transaction on {topic.name}-{each.partition_index}")

    def _add_group(self, group: str) -> None:
        transactional_id = self._transactional_id()
        node_id = self._client.coordinator(transactional_id, TRANSACTION)
        message = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group,
        )
        version = self._client.version(ApiKey.ADD_OFFSETS_TO_TXN, *_ADD_OFFSETS_VERSIONS, node_id)
        response = self._client.request(ApiKey.ADD_OFFSETS_TO_TXN, version, message, node_id)
        self._check(response.error_code, f"group {group} in a transaction")

    def _commit_offset(self, group: str, place: TopicPartition, marker: Marker) -> None:
        node_id = self._client.coordinator(group, GROUP)
        offset = TxnOffsetCommitRequestPartition(
            partition_index=place.partition, committed_offset=marker.offset, committed_metadata=marker.note
        )
        message = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id(),
            group_id=group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place.topic, partitions=[offset])],
        )
        version = self._client.version(ApiKey.TXN_OFFSET_COMMIT, *_TXN_OFFSET_COMMIT_VERSIONS, node_id)
        response = self._client.request(ApiKey.TXN_OFFSET_COMMIT, version, message, node_id)
        for topic in response.topics:
            for each in topic.partitions:
                self._check(each.error_code, f"offset of group {group} for {place}")

    def _check(self, code: int, subject: str) -> None:
        if code in FENCED:
            raise Fenced(self._transactional_id(), self._timeout_ms)
        refuse(code, subject)

    def _transactional_id(self) -> str:
        assert self.identity.transactional_id is not None, self.identity
        return self.identity.transactional_id


def _may_pass(failure: ClientError) -> bool:
    return isinstance(failure, ConnectionFailed) or (isinstance(failure, BrokerRefused) and failure.retriable)
