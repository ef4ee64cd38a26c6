"""Which transactional batches of a Produce request may be appended: those of an open transaction that the
coordinator knows to have the partition, and whose producer it knows (KIP-890)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millrace.broker.wire_errors import error_code
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.core.errors import MillraceError
from millrace.log.errors import OutOfOrderSequence
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION
from millrace.metadata.topic_names import INTERNAL_TOPICS
from millrace.transactions.commands import AddPartitions, Identity, VerifyPartitions
from millrace.transactions.errors import EpochFenced, PartitionNotInTransaction, TransactionEnding
from millrace.wire.batch_header import ATTRIBUTES_AT, HEADER_SIZE, PRODUCER_ID_AT, TRANSACTIONAL_BIT
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.broker.transactions.remote_transactions import RemoteTransactions
    from millrace.coordinator.runtime import Answer
    from millrace.core.ids import TopicPartition
    from millrace.log.partition.appending import Appended
    from millrace.replica.partition import Partition
    from millrace.replica.partitions import Partitions
    from millrace.transactions.service import Transactions
    from millrace.wire.produce_codec import TopicRecords

ADDS_PARTITIONS_FROM: Final = 12
"""From this version on a Produce request itself adds its partitions to the transaction."""
ABORTABLE_FROM: Final = 11
_PRODUCER: Final = struct.Struct(">h20xqh")
"""From the attributes on: attributes, producer id, producer epoch."""
_SEQUENCE: Final = struct.Struct(">i")
SEQUENCE_AT: Final = PRODUCER_ID_AT + 10


class TransactionGate:
    """For one request of a producer with a transactional id."""

    __slots__ = ("_guards", "_others", "_transactional_id", "_transactions", "_verdicts", "_version")

    def __init__(
        self,
        transactions: Transactions,
        transactional_id: str,
        version: int,
        others: RemoteTransactions | None = None,
    ) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._version = version
        self._others = others
        self._verdicts: dict[Identity, Answer] = {}
        """What the coordinator says, where it lives on another broker."""
        self._guards: dict[Partition, tuple[int, int]] = {}
        """How many markers and leaders these partitions had had when the coordinator was asked. If there are
        more by now, its answer may be wrong."""

    def enter(self, partitions: Partitions, topics: Iterable[TopicRecords]) -> list[Answer]:
        """Bring the coordinator to know of all partitions; what has to be waited for before appending.

        Its refusals are not looked at here: the coordinator is asked again when each batch is appended, so
        that nothing can come between."""
        unknown: dict[Identity, list[Partition]] = {}
        for topic, topic_id, wanted in topics:
            by_index = partitions.by_name.get(topic) if topic_id is None else partitions.by_id.get(topic_id)
            for index, records in wanted:
                partition = None if by_index is None else by_index.get(index)
                if partition is None or records is None or not partition.is_leader:
                    continue
                if partition.topic in INTERNAL_TOPICS:
                    # Refused when it is to be appended; the transaction shall not wait for its marker.
                    continue
                producer = _transactional_producer(records)
                if producer is not None and not self._is_open(partition, producer):
                    unknown.setdefault(producer, []).append(partition)
        others = self._others
        if unknown and others is not None and others.is_elsewhere(self._transactions, self._transactional_id):
            return [self._ask_elsewhere(others, *each) for each in unknown.items()]
        outcomes = [
            self._ask(producer, [partition.topic_partition for partition in wanted])
            for producer, wanted in unknown.items()
        ]
        return [outcome for outcome in outcomes if isinstance(outcome, asyncio.Future)]

    def _ask_elsewhere(
        self, others: RemoteTransactions, producer: Identity, partitions: list[Partition]
    ) -> Answer:
        for partition in partitions:
            self._guards[partition] = _standing(partition)
        answer = self._verdicts[producer] = others.ask(
            self._transactions,
            self._transactional_id,
            producer,
            [partition.topic_partition for partition in partitions],
            adds=self._version >= ADDS_PARTITIONS_FROM,
        )
        return answer

    def _ask(self, producer: Identity, places: list[TopicPartition]) -> object:
        name = self._transactional_id
        command: object = VerifyPartitions(name, producer, places)
        if self._version >= ADDS_PARTITIONS_FROM:
            command = AddPartitions(
                transactional_id=name,
                producer=producer,
                partitions=places,
                transaction_version=EPOCH_PER_TRANSACTION,
            )
        return self._transactions.submit(name, command)

    def append(self, partition: Partition, records: memoryview, now_ms: int) -> Appended:
        producer = _transactional_producer(records)
        if producer is None:
            return partition.append(records, now_ms)
        if self._is_open(partition, producer):
            return partition.append_transactional(records, now_ms)
        error = self._verify(partition, producer)
        if error is not None:
            raise error
        if self._version >= ADDS_PARTITIONS_FROM:
            _check_first(partition, producer, records)
        appended = partition.append_transactional(records, now_ms)
        partition.transaction_owners[producer.producer_id] = self._transactional_id
        return appended

    def _is_open(self, partition: Partition, producer: Identity) -> bool:
        """Whether the coordinator has said that this transactional id has this producer's transaction open
        here. Without the id anybody could write into it who finds out the producer's: they are numbers in a
        row."""
        owner = partition.transaction_owners.get(producer.producer_id)
        return owner == self._transactional_id and partition.has_open_transaction(*producer)

    def _verify(self, partition: Partition, producer: Identity) -> MillraceError | None:
        verdict = self._verdicts.get(producer)
        if verdict is None:
            places = (partition.topic_partition,)
            return self._transactions.verify(VerifyPartitions(self._transactional_id, producer, places))
        outcome = verdict.result()
        if isinstance(outcome, MillraceError):
            return outcome
        if self._guards.get(partition) != _standing(partition):
            # A marker may have ended the very transaction that was just found open: ask again.
            return CoordinatorNotAvailable(f"{partition.topic_partition} has changed since it was verified")
        return None

    def code_of(self, error: MillraceError) -> int:
        """Older clients give up on errors that they do not know, so they are told one that they do."""
        match error:
            case CoordinatorLoading() | CoordinatorNotAvailable() | NotCoordinator():
                return ErrorCode.NOT_ENOUGH_REPLICAS
            case TransactionEnding() if self._version < ADDS_PARTITIONS_FROM:
                return ErrorCode.NOT_ENOUGH_REPLICAS
            case EpochFenced():
                return ErrorCode.INVALID_PRODUCER_EPOCH
            case PartitionNotInTransaction() if self._version < ABORTABLE_FROM:
                return ErrorCode.INVALID_TXN_STATE
            case _:
                return error_code(error)


def _standing(partition: Partition) -> tuple[int, int]:
    return (partition.markers_count, partition.leaders_count)


def _check_first(partition: Partition, producer: Identity, records: memoryview) -> None:
    """A transaction's first batch has the number 0. Another one has overtaken it: the first was told to come
    again, because the transaction before was still being ended."""
    (sequence,) = _SEQUENCE.unpack_from(records, SEQUENCE_AT)
    if sequence and producer.producer_id not in partition.log.producers.entries:
        raise OutOfOrderSequence(producer.producer_id, expected=0, sequence=sequence)


def copied(topics: Iterable[TopicRecords]) -> list[TopicRecords]:
    """The same request with records of its own."""
    return [
        (
            topic,
            topic_id,
            [
                (index, None if records is None else memoryview(bytearray(records)))
                for index, records in wanted
            ],
        )
        for topic, topic_id, wanted in topics
    ]


def is_transactional(records: memoryview) -> bool:
    """Whether a batch claims to be of a transaction."""
    return _transactional_producer(records) is not None


def _transactional_producer(records: memoryview) -> Identity | None:
    """The producer of a transactional batch; None for all else, which the log judges by itself."""
    if len(records) < HEADER_SIZE:
        return None
    attributes, producer_id, epoch = _PRODUCER.unpack_from(records, ATTRIBUTES_AT)
    return Identity(producer_id, epoch) if attributes & TRANSACTIONAL_BIT else None
