"""librdkafka's producers: idempotent, and transactional."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from millrace.sim.history import Acked, Sent, SequenceBroken, TransactionEnded
from tests.cluster.load.recorder import PATIENCE_S, Client, Recorder, now

QUICK: Final = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
"""For all clients of librdkafka here: faults last seconds, so nobody should wait as long to look again."""
ABORT_CHANCE: Final = 0.25
RECORDS_MAX: Final = 6
TRANSACTION_TIMEOUT_MS: Final = 30_000
_CALL_S: Final = 10.0


def value_of(topic: str, name: str, number: int) -> str:
    """Values carry their topic (F30)."""
    return f"{topic}|{name}|{number}"


def stored_at(message: Any) -> int:
    """Where a record is, -1 if its producer was not told: of a batch sent again only that may be known."""
    offset = message.offset()
    return -1 if offset is None else int(offset)


def acked(producer: str, message: Any, *, transaction: int = 0) -> Acked:
    return Acked(
        at=now(),
        producer=producer,
        topic=message.topic(),
        partition=message.partition(),
        value=message.value().decode(),
        offset=stored_at(message),
        transaction=transaction,
    )


class Writer(Client):
    """Numbers its values, one after the other over all partitions."""

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        bootstrap: str,
        topic: str,
        partitions: int,
        pause_s: float = 0.005,
    ) -> None:
        super().__init__(name, recorder)
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._producer: Any = confluent_kafka.Producer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
            }
        )
        self.acked_count = 0

    @override
    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            value = value_of(self._topic, self.name, number)
            partition = number % self._partitions
            self._producer.produce(
                self._topic, value.encode(), partition=partition, on_delivery=self._delivered
            )
            self.note(Sent(at=now(), producer=self.name, topic=self._topic, partition=partition, value=value))
            number += 1
            self._producer.poll(0)
            time.sleep(self._pause_s)
        if self._producer.flush(2 * PATIENCE_S):
            self.failures.append(f"{self.name}: records are still on their way")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acked_count += 1
            self.note(acked(self.name, message))
            return
        self.failures.append(f"{self.name}: {message.value().decode()}: {error}")
        if error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.note(
                SequenceBroken(
                    at=now(),
                    producer=self.name,
                    topic=message.topic(),
                    partition=message.partition(),
                    code=error.code(),
                )
            )


class Fenced(Exception):
    """This producer cannot go on; its successor can."""


class Transactions:
    """One transactional id: transactions with numbers of their own, and successors when one is fenced."""

    def __init__(self, client: Client, bootstrap: str) -> None:
        self._client = client
        self._id = client.name
        self._config = {
            **QUICK,
            "bootstrap.servers": bootstrap,
            "transactional.id": client.name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
        }
        self.number = 0
        self.committed_count = 0
        self.producer: Any = None

    def begin_anew(self) -> None:
        """A producer in its first state: whatever was open is aborted by then."""
        self.producer = confluent_kafka.Producer(self._config)
        self._insist("first state", lambda: self.producer.init_transactions(_CALL_S))

    def begin(self) -> None:
        self.number += 1
        self.producer.begin_transaction()

    def write(self, topic: str, partition: int, value: str) -> None:
        number, note = self.number, self._client.note

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                note(acked(self._id, message, transaction=number))

        self.producer.produce(topic, value.encode(), partition=partition, on_delivery=delivered)
        note(
            Sent(
                at=now(),
                producer=self._id,
                topic=topic,
                partition=partition,
                value=value,
                transaction=number,
            )
        )

    def end(self, *, commit: bool) -> bool:
        """Whether it was committed. Fenced if nobody can tell, or nobody will."""
        try:
            if commit:
                try:
                    self._insist("commit", lambda: self.producer.commit_transaction(_CALL_S))
                    self._note_end("commit")
                    self.committed_count += 1
                    return True
                except KafkaException as error:
                    if not error.args[0].txn_requires_abort():
                        raise
            else:
                # What is aborted should have been written: librdkafka would drop what has not left yet.
                self.producer.flush(_CALL_S)
            self._insist("abort", lambda: self.producer.abort_transaction(_CALL_S))
            self._note_end("abort")
            return False
        except KafkaException as error:
            self._note_end("unknown")
            self._client.trouble("end of a transaction", error)
            raise Fenced(str(error)) from error

    def _note_end(self, outcome: str) -> None:
        self._client.note(
            TransactionEnded(at=now(), producer=self._id, transaction=self.number, outcome=outcome)
        )

    def _insist(self, doing: str, call: Callable[[], None]) -> None:
        """Again, as long as librdkafka says that the call may be repeated."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                self._client.trouble(doing, error)
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class TransactionalWriter(Client):
    """Transactions over several partitions, some of them aborted."""

    def __init__(
        self, name: str, recorder: Recorder, bootstrap: str, topic: str, partitions: int, seed: int
    ) -> None:
        super().__init__(name, recorder)
        self._topic = topic
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._next_number = 0
        self.transactions = Transactions(self, bootstrap)

    @override
    def run(self) -> None:
        transactions = self.transactions
        transactions.begin_anew()
        while not self.stopping.is_set():
            try:
                transactions.end(commit=self._write_some())
            except Fenced:
                transactions.begin_anew()
            time.sleep(0.02)

    def _write_some(self) -> bool:
        """Whether the transaction is to be committed."""
        transactions, chance = self.transactions, self._chance
        try:
            transactions.begin()
            for _ in range(chance.randint(1, RECORDS_MAX)):
                value = value_of(self._topic, self.name, self._next_number)
                self._next_number += 1
                transactions.write(self._topic, chance.randrange(self._partitions), value)
        except KafkaException:
            # The transaction has failed already, while it was written.
            return False
        return chance.random() >= ABORT_CHANCE
