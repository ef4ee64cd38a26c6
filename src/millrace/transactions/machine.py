"""All transactional ids of one partition of `__transaction_state`: what each command leads to. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millrace.coordinator.decision import (
    NOTHING,
    Applied,
    CancelTimer,
    Decision,
    Record,
    SetTimer,
    Timer,
    Token,
    Unstored,
)
from millrace.core.errors import MillraceError
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION
from millrace.transactions.commands import (
    DONE,
    AddPartitions,
    EndTransaction,
    ExpireTransactionalIds,
    Identity,
    InitProducer,
    MarkersWritten,
    TransactionSettings,
    TransactionTimedOut,
    VerifyPartitions,
    WriteMarkers,
)
from millrace.transactions.errors import (
    EpochFenced,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    TransactionEnding,
    WrongProducerId,
)
from millrace.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    State,
    Transaction,
    from_value,
    to_value,
)
from millrace.wire.messages.transaction_records import TransactionLogKey, TransactionLogValue

_EXPIRY: Final = "expiry of transactional ids"


class EpochReplaced(NamedTuple):
    """A fact that is not stored: a producer went on from this epoch to the next, and may ask for that once
    more. The epoch is NO_EPOCH if the producer started anew."""

    transactional_id: str
    epoch: int


class TransactionMachine:
    """The state of one internal partition. `apply` changes all of it, and `decide` nothing."""

    has_soft_state: Final = False

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self._replaced_epochs: dict[str, int] = {}
        """The epoch that a producer had before its last InitProducerId. As in Kafka it is not stored: a
        request that is repeated after a restart of the coordinator is fenced."""
        self._rules: dict[type, Callable[[Any, int], Decision[object]]] = {
            InitProducer: self._init_producer,
            AddPartitions: self._add_partitions,
            VerifyPartitions: self._verify_partitions,
            EndTransaction: self._end,
            TransactionTimedOut: self._timed_out,
            MarkersWritten: self._markers_written,
            ExpireTransactionalIds: self._expire,
        }

    # The shell's side.

    def decide(self, command: object, now_ms: int, _token: Token) -> Decision[object]:
        return self._rules[type(command)](command, now_ms)

    def apply(self, record: Applied) -> None:
        match record:
            case Record(TransactionLogKey(transactional_id=name), None):
                self.transactions.pop(name, None)
                self._replaced_epochs.pop(name, None)
            case Record(TransactionLogKey(transactional_id=name), TransactionLogValue() as value):
                self.transactions[name] = from_value(name, value)
            case Unstored(EpochReplaced(name, epoch)):
                self._replaced_epochs[name] = epoch
            case _:
                # Nobody writes to this topic in a transaction.
                pass

    def resume(self, now_ms: int) -> Decision[object]:
        """Carry out what was prepared, and set the time-outs of open transactions."""
        timers: list[Timer] = [self._expiry_timer()]
        effects: list[object] = []
        for transaction in self.transactions.values():
            if transaction.is_prepared:
                effects.append(_markers(transaction))
            elif transaction.state is State.Ongoing:
                timers.append(_timeout(transaction, now_ms))
        return Decision(timers=tuple(timers), effects=tuple(effects))

    def needs_fresh_producer_id(self, transactional_id: str) -> bool:
        """Whether the next producer of this transactional id will need another producer id."""
        transaction = self.transactions.get(transactional_id)
        return transaction is None or transaction.is_exhausted

    # Producers.

    def _init_producer(self, command: InitProducer, now_ms: int) -> Decision[object]:
        timeout_ms = command.timeout_ms
        if not 0 < timeout_ms <= self.settings.timeout_ms_max:
            error = InvalidTransactionTimeout(timeout_ms, timeout_ms_max=self.settings.timeout_ms_max)
            return Decision(error=error)
        name = command.transactional_id
        transaction = self.transactions.get(name)
        if transaction is None:
            if command.fresh_producer_id is None:
                return Decision(error=TransactionEnding(name))
            transaction = Transaction(
                transactional_id=name,
                producer_id=command.fresh_producer_id,
                epoch=NO_EPOCH,
                timeout_ms=timeout_ms,
                partitions={},
            )
        elif transaction.is_prepared:
            return Decision(error=TransactionEnding(name))
        elif command.expected is not None and not _may_continue(transaction, command.expected):
            error_ = EpochFenced(name, command.expected.epoch, current=transaction.epoch)
            return Decision(error=error_)
        elif transaction.state is State.Ongoing:
            # This fences the producer with the open transaction; the new one asks again after its abort.
            if command.expected is not None and command.expected != transaction.identity:
                fenced = EpochFenced(name, command.expected.epoch, current=transaction.epoch)
                return Decision(error=fenced)
            return self._prepare(transaction.fenced(now_ms), error=TransactionEnding(name))
        return self._take_up(transaction, command, now_ms)

    def _take_up(self, transaction: Transaction, command: InitProducer, now_ms: int) -> Decision[object]:
        name, expected = transaction.transactional_id, command.expected
        if expected is not None and transaction.epoch != NO_EPOCH and expected.epoch != transaction.epoch:
            if expected.epoch == self._replaced_epochs.get(name, NO_EPOCH):
                # The producer asks again, because the first answer was lost.
                return Decision(response=transaction.identity)
            return Decision(error=EpochFenced(name, expected.epoch, current=transaction.epoch))
        if transaction.is_exhausted:
            if command.fresh_producer_id is None:
                return Decision(error=TransactionEnding(name))
            identity = Identity(command.fresh_producer_id, 0)
        else:
            identity = Identity(transaction.producer_id, transaction.epoch + 1)
        replaced = EpochReplaced(name, NO_EPOCH if expected is None else transaction.epoch)
        initialized = transaction.initialized(identity, command.timeout_ms, now_ms)
        return Decision(records=(_record(initialized),), unstored=(Unstored(replaced),), response=identity)

    # The transaction.

    def _add_partitions(self, command: AddPartitions, now_ms: int) -> Decision[object]:
        name = command.transactional_id
        transaction = self.transactions.get(name)
        error = _check_producer(name, transaction, command.producer)
        if error is not None or transaction is None:
            return Decision(error=error)
        if transaction.state is State.Ongoing and all(
            each in transaction.partitions for each in command.partitions
        ):
            return Decision(response=DONE)
        changed = transaction.with_partitions(command.partitions, command.transaction_version, now_ms)
        timers = () if transaction.state is State.Ongoing else (_timeout(changed, now_ms),)
        return Decision(records=(_record(changed),), timers=timers, response=DONE)

    def verify(self, command: VerifyPartitions) -> MillraceError | None:
        """Why these partitions may not be written to now, or None."""
        name = command.transactional_id
        transaction = self.transactions.get(name)
        error = _check_producer(name, transaction, command.producer)
        if error is not None or transaction is None:
            return error
        for partition in command.partitions:
            if transaction.state is not State.Ongoing or partition not in transaction.partitions:
                return PartitionNotInTransaction(name, partition)
        return None

    def _verify_partitions(self, command: VerifyPartitions, now_ms: int) -> Decision[object]:
        error = self.verify(command)
        return Decision(response=DONE) if error is None else Decision(error=error)

    def _end(self, command: EndTransaction, now_ms: int) -> Decision[object]:
        name, producer = command.transactional_id, command.producer
        transaction = self.transactions.get(name)
        if transaction is None:
            return Decision(error=WrongProducerId(name, producer.producer_id))
        is_repeated = transaction.is_repeated_end(producer)
        if not is_repeated and producer != transaction.producer_identity:
            known = (transaction.producer_id, transaction.next_producer_id)
            if producer.producer_id not in known:
                return Decision(error=WrongProducerId(name, producer.producer_id))
            return Decision(error=EpochFenced(name, producer.epoch, current=transaction.epoch))
        match transaction.state:
            case State.Ongoing:
                if is_repeated:
                    # The request is about the transaction before this one, and was delayed.
                    return Decision(error=EpochFenced(name, producer.epoch, current=transaction.epoch))
                return self._end_open(transaction, command, now_ms)
            case State.PrepareCommit | State.PrepareAbort:
                return self._end_prepared(transaction, command, is_repeated=is_repeated)
            case State.CompleteCommit | State.CompleteAbort if is_repeated or not _has_own_epoch(transaction):
                if command.is_commit == (transaction.state is State.CompleteCommit):
                    return Decision(response=transaction.identity)
            case State.Empty | State.CompleteCommit | State.CompleteAbort if (
                command.transaction_version >= EPOCH_PER_TRANSACTION
                and not command.is_commit
                and not is_repeated
            ):
                return self._abort_nothing(transaction, command, now_ms)
            case _:
                pass
        reason = f"a transaction cannot be {'committed' if command.is_commit else 'aborted'} in state "
        return Decision(error=InvalidTransactionState(name, reason + transaction.state.name))

    def _end_open(self, transaction: Transaction, command: EndTransaction, now_ms: int) -> Decision[object]:
        next_producer_id = NO_PRODUCER_ID
        if command.transaction_version >= EPOCH_PER_TRANSACTION and transaction.is_exhausted:
            if command.fresh_producer_id is None:
                return Decision(error=TransactionEnding(transaction.transactional_id))
            next_producer_id = command.fresh_producer_id
        prepared = transaction.prepared(
            is_commit=command.is_commit,
            transaction_version=command.transaction_version,
            next_producer_id=next_producer_id,
            now_ms=now_ms,
        )
        return self._prepare(prepared, response=prepared.producer_identity)

    def _end_prepared(
        self, transaction: Transaction, command: EndTransaction, *, is_repeated: bool
    ) -> Decision[object]:
        name = transaction.transactional_id
        is_same = command.is_commit == (transaction.state is State.PrepareCommit)
        if is_same or (_has_own_epoch(transaction) and not is_repeated):
            return Decision(error=TransactionEnding(name))
        return Decision(error=InvalidTransactionState(name, "the transaction is being ended the other way"))

    def _abort_nothing(
        self, transaction: Transaction, command: EndTransaction, now_ms: int
    ) -> Decision[object]:
        """Abort a transaction that never reached this coordinator. The producer gets its new epoch all the
        same: a batch that is still on its way must not find an open transaction."""
        next_producer_id = NO_PRODUCER_ID
        if transaction.is_exhausted:
            if command.fresh_producer_id is None:
                return Decision(error=TransactionEnding(transaction.transactional_id))
            next_producer_id = command.fresh_producer_id
        aborted = transaction.prepared(
            is_commit=False,
            transaction_version=command.transaction_version,
            next_producer_id=next_producer_id,
            now_ms=now_ms,
        ).completed(now_ms)
        return Decision(records=(_record(aborted),), response=aborted.identity)

    def _timed_out(self, command: TransactionTimedOut, now_ms: int) -> Decision[object]:
        transaction = self.transactions.get(command.transactional_id)
        if (
            transaction is None
            or transaction.state is not State.Ongoing
            or transaction.identity != command.producer
        ):
            return NOTHING
        if now_ms < transaction.started_ms + transaction.timeout_ms:
            return Decision(timers=(_timeout(transaction, now_ms),))
        return self._prepare(transaction.fenced(now_ms))

    def _prepare(
        self,
        prepared: Transaction,
        *,
        response: Identity | None = None,
        error: MillraceError | None = None,
    ) -> Decision[object]:
        return Decision(
            records=(_record(prepared),),
            timers=(CancelTimer(prepared.transactional_id),),
            effects=(_markers(prepared),),
            response=response,
            error=error,
        )

    def _markers_written(self, command: MarkersWritten, now_ms: int) -> Decision[object]:
        transaction = self.transactions.get(command.transactional_id)
        if transaction is None or not transaction.is_prepared or transaction.identity != command.producer:
            return Decision(response=DONE)
        return Decision(records=(_record(transaction.completed(now_ms)),), response=DONE)

    def _expire(self, command: ExpireTransactionalIds, now_ms: int) -> Decision[object]:
        oldest_ms = now_ms - self.settings.id_expiration_ms
        records = tuple(
            Record(TransactionLogKey(transactional_id=name), None)
            for name, transaction in self.transactions.items()
            if transaction.state is not State.Ongoing
            and not transaction.is_prepared
            and transaction.updated_ms <= oldest_ms
        )
        return Decision(records=records, timers=(self._expiry_timer(),), response=DONE, is_atomic=False)

    def _expiry_timer(self) -> SetTimer:
        return SetTimer((_EXPIRY,), self.settings.id_expiration_check_ms, ExpireTransactionalIds())


def _check_producer(name: str, transaction: Transaction | None, producer: Identity) -> MillraceError | None:
    """Why a producer may not write in its transaction to any partition, or None."""
    if transaction is None:
        return WrongProducerId(name, producer.producer_id)
    if transaction.is_prepared and producer == transaction.producer_identity:
        return TransactionEnding(name)
    if producer.producer_id != transaction.producer_id:
        return WrongProducerId(name, producer.producer_id)
    if producer.epoch != transaction.epoch or producer.epoch > CLIENT_EPOCH_MAX:
        return EpochFenced(name, producer.epoch, current=transaction.epoch)
    return TransactionEnding(name) if transaction.is_prepared else None


def _may_continue(transaction: Transaction, expected: Identity) -> bool:
    """Whether a producer that goes on after an error is the one that the transactional id has, or had before
    its epochs were used up and the answer that said so was lost."""
    return expected.producer_id == transaction.producer_id or (
        expected.producer_id == transaction.previous_producer_id and expected.epoch >= CLIENT_EPOCH_MAX
    )


def _has_own_epoch(transaction: Transaction) -> bool:
    return transaction.transaction_version >= EPOCH_PER_TRANSACTION


def _markers(prepared: Transaction) -> WriteMarkers:
    return WriteMarkers(
        prepared.transactional_id,
        prepared.identity,
        prepared.state is State.PrepareCommit,
        prepared.transaction_version,
        tuple(prepared.partitions),
    )


def _timeout(transaction: Transaction, now_ms: int) -> SetTimer:
    remaining_ms = max(transaction.started_ms + transaction.timeout_ms - now_ms, 0)
    command = TransactionTimedOut(transaction.transactional_id, transaction.identity)
    return SetTimer(transaction.transactional_id, remaining_ms, command)


def _record(transaction: Transaction) -> Record:
    return Record(TransactionLogKey(transactional_id=transaction.transactional_id), to_value(transaction))
