"""A transaction machine with its shell played by hand: decisions are applied, stored and timed here."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from millrace.coordinator.decision import CancelTimer, Decision, Record, SetTimer
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.transactions.commands import (
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducer,
    MarkersWritten,
    TransactionSettings,
    VerifyPartitions,
    WriteMarkers,
)
from millrace.transactions.machine import TransactionMachine
from millrace.transactions.records import TransactionRecordCodec
from millrace.transactions.transaction import State, Transaction, to_value
from millrace.wire.messages.transaction_records import TransactionLogKey

NAME: Final = "payments"
ORDERS: Final = TopicPartition("orders", 0)
BILLS: Final = TopicPartition("bills", 3)
CODEC: Final = TransactionRecordCodec()


class Lab:
    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.machine = TransactionMachine(self.settings)
        self.stored: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[object, tuple[int, object]] = {}
        self.effects: list[WriteMarkers] = []
        self.now_ms = 1_000
        self._next_producer_id = 100

    def give(self, command: object) -> object:
        """The response, or the error as a value; everything that was decided is done."""
        before = repr(vars(self.machine))
        decision = self.machine.decide(command, self.now_ms, 0)
        assert repr(vars(self.machine)) == before, f"{command} was decided and has changed the machine"
        return self.carry_out(decision)

    def carry_out(self, decision: Decision[object]) -> object:
        for record in decision.records:
            assert isinstance(record, Record)
            self.stored.append(CODEC.encode(record))
            self.machine.apply(record)
        for unstored in decision.unstored:
            self.machine.apply(unstored)
        for timer in decision.timers:
            match timer:
                case SetTimer(name, delay_ms, command):
                    self.timers[name] = (self.now_ms + delay_ms, command)
                case CancelTimer(name):
                    self.timers.pop(name, None)
        for effect in decision.effects:
            assert isinstance(effect, WriteMarkers)
            self.effects.append(effect)
        return decision.error if decision.error is not None else decision.response

    def fresh(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def init(self, expected: Identity | None = None, name: str = NAME, timeout_ms: int = 60_000) -> object:
        command = InitProducer(
            transactional_id=name, timeout_ms=timeout_ms, expected=expected, fresh_producer_id=self.fresh()
        )
        return self.give(command)

    def started(self, name: str = NAME) -> Identity:
        """A producer that has taken up the transactional id, after ending what was open."""
        outcome = self.init(name=name)
        while isinstance(outcome, MillraceError):
            self.write_markers()
            outcome = self.init(name=name)
        assert isinstance(outcome, Identity)
        return outcome

    def add(self, producer: Identity, *partitions: TopicPartition, version: int = 2) -> object:
        return self.give(
            AddPartitions(
                transactional_id=NAME,
                producer=producer,
                partitions=partitions or (ORDERS,),
                transaction_version=version,
            )
        )

    def verify(self, producer: Identity, *partitions: TopicPartition) -> object:
        return self.give(VerifyPartitions(NAME, producer, partitions or (ORDERS,)))

    def end(self, producer: Identity, *, is_commit: bool, version: int = 2) -> object:
        return self.give(
            EndTransaction(
                transactional_id=NAME,
                producer=producer,
                is_commit=is_commit,
                transaction_version=version,
                fresh_producer_id=self.fresh(),
            )
        )

    def write_markers(self) -> None:
        """All partitions have got their markers."""
        effects, self.effects = self.effects, []
        for effect in effects:
            self.give(MarkersWritten(effect.transactional_id, effect.producer))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        due = [name for name, (when_ms, _) in self.timers.items() if when_ms <= self.now_ms]
        for name in due:
            self.give(self.timers.pop(name)[1])

    def at_epoch(self, epoch: int, version: int = 2) -> Identity:
        """A producer whose epochs are nearly used up."""
        producer = self.started()
        self.store(replace(self.transaction, epoch=epoch, transaction_version=version))
        return Identity(producer.producer_id, epoch)

    def store(self, transaction: Transaction) -> None:
        """Bring the machine into a state that takes thousands of transactions to get into."""
        record = Record(
            TransactionLogKey(transactional_id=transaction.transactional_id), to_value(transaction)
        )
        self.stored.append(CODEC.encode(record))
        self.machine.apply(record)

    @property
    def transaction(self) -> Transaction:
        return self.machine.transactions[NAME]

    def is_in(self, state: State) -> bool:
        return self.transaction.state is state

    def reloaded(self) -> Lab:
        """The same after a restart: all that is known is what was stored."""
        other = Lab(self.settings)
        other.now_ms = self.now_ms
        other._next_producer_id = self._next_producer_id
        for key, value in self.stored:
            record = CODEC.decode(key, value)
            assert record is not None
            other.machine.apply(record)
        other.stored = list(self.stored)
        other.carry_out(other.machine.resume(other.now_ms))
        return other
