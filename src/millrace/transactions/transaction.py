"""One transactional id: its producer, its transaction, and the rules of both. No I/O.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort

A transaction has ended when its Prepare record is stored; what follows, markers and Complete, only carries
that out, and is done again after a restart. From transaction version 2 on (KIP-890) every transaction has an
epoch of its own: ending a transaction raises the epoch, so that whatever arrives late carries an old one and
is refused.

Epochs that clients see go up to 32766. One more exists for the markers of the last of them; then the
transactional id goes on with a fresh producer id. A transaction that the coordinator itself ends (a new
producer takes over, or its time is up) raises the epoch by two, so that the producer's own attempt to end it
is not taken for a repeated request; where there is no room for two, 32767 itself says the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.ids import TopicPartition
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION
from millrace.transactions.commands import Identity
from millrace.wire.messages.transaction_records import PartitionsSchema, TransactionLogValue

EPOCH_MAX: Final = 2**15 - 1
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1
"""The last epoch that a producer is ever given."""
NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1


class State(enum.IntEnum):
    """The state of a transaction. The numbers are those of the stored records; tools show the names."""

    Empty = 0
    Ongoing = 1
    PrepareCommit = 2
    PrepareAbort = 3
    CompleteCommit = 4
    CompleteAbort = 5
    Dead = 6
    PrepareEpochFence = 7


PREPARED: Final = (State.PrepareCommit, State.PrepareAbort)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is stored of one transactional id. It is never changed, only replaced."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.Empty
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Given to the producer when its epochs were used up; counts from the Complete record on."""
    partitions: dict[TopicPartition, None]
    started_ms: int = -1
    updated_ms: int = -1
    transaction_version: int = 0

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether no producer may get a higher epoch of this producer id."""
        return self.epoch >= CLIENT_EPOCH_MAX

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def producer_identity(self) -> Identity:
        """The identity under which the producer goes on; it learns this before all markers are written."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Identity(self.next_producer_id, 0)
        return self.identity

    def is_repeated_end(self, producer: Identity) -> bool:
        """Whether a producer repeats the EndTxn of the transaction that it has already ended."""
        if self.transaction_version < EPOCH_PER_TRANSACTION:
            return False
        if self.next_producer_id != NO_PRODUCER_ID:
            return producer == Identity(self.producer_id, CLIENT_EPOCH_MAX)
        if producer.producer_id == self.producer_id:
            return producer.epoch == self.epoch - 1 and self.epoch <= CLIENT_EPOCH_MAX
        return producer == Identity(self.previous_producer_id, CLIENT_EPOCH_MAX) and self.epoch == 0

    # Its next states.

    def initialized(self, identity: Identity, timeout_ms: int, now_ms: int) -> Transaction:
        """After a producer has taken up the transactional id."""
        is_rotated = identity.producer_id != self.producer_id
        return replace(
            self,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            previous_producer_id=self.producer_id if is_rotated else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            state=State.Empty,
            partitions={},
            started_ms=-1,
            updated_ms=now_ms,
            # Only the previous producer could repeat the end of an earlier transaction, and it is fenced.
            transaction_version=0,
        )

    def with_partitions(
        self, added: Iterable[TopicPartition], transaction_version: int, now_ms: int
    ) -> Transaction:
        """After more partitions have joined; the first ones begin the transaction."""
        is_open = self.state is State.Ongoing
        partitions = dict(self.partitions) if is_open else {}
        partitions.update(dict.fromkeys(added))
        return replace(
            self,
            state=State.Ongoing,
            partitions=partitions,
            started_ms=self.started_ms if is_open else now_ms,
            updated_ms=now_ms,
            transaction_version=transaction_version,
        )

    def prepared(
        self, *, is_commit: bool, transaction_version: int, next_producer_id: int, now_ms: int
    ) -> Transaction:
        """After the producer has ended the transaction."""
        has_own_epoch = transaction_version >= EPOCH_PER_TRANSACTION
        return replace(
            self,
            state=State.PrepareCommit if is_commit else State.PrepareAbort,
            epoch=self.epoch + 1 if has_own_epoch else self.epoch,
            next_producer_id=next_producer_id,
            transaction_version=transaction_version,
            updated_ms=now_ms,
        )

    def fenced(self, now_ms: int) -> Transaction:
        """After the coordinator has ended the transaction, so that its producer may not go on."""
        step = 2 if self.transaction_version >= EPOCH_PER_TRANSACTION else 1
        return replace(
            self,
            state=State.PrepareAbort,
            epoch=min(self.epoch + step, EPOCH_MAX),
            next_producer_id=NO_PRODUCER_ID,
            updated_ms=now_ms,
        )

    def completed(self, now_ms: int) -> Transaction:
        """After all partitions have learned how the transaction ended."""
        identity = self.producer_identity
        is_rotated = identity.producer_id != self.producer_id
        return replace(
            self,
            state=State.CompleteCommit if self.state is State.PrepareCommit else State.CompleteAbort,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            previous_producer_id=self.producer_id if is_rotated else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions={},
            updated_ms=now_ms,
        )


def to_value(transaction: Transaction) -> TransactionLogValue:
    """The value of its record. It names partitions only while a transaction is open or being ended."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        by_topic.setdefault(topic, []).append(index)
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=(
            None
            if transaction.state is State.Empty
            else [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in by_topic.items()]
        ),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.transaction_version,
    )


def from_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=State(value.transaction_status),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        partitions={
            TopicPartition(each.topic, index): None
            for each in value.transaction_partitions or ()
            for index in each.partition_ids
        },
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        transaction_version=value.client_transaction_version,
    )
