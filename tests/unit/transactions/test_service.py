"""The face of transactions: producers get ids only where one is needed, and commands reach their machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.coordinator.errors import CoordinatorNotAvailable
from millrace.core.ids import TopicPartition
from millrace.transactions.commands import AddPartitions, Identity, VerifyPartitions
from millrace.transactions.errors import InvalidTransactionalId, PartitionNotInTransaction, WrongProducerId
from millrace.transactions.service import TransactionTopic, outcome_of
from millrace.transactions.transaction import State, Transaction
from tests.unit.broker.handlers.broker import Broker

NAME = "payments"
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    made.create_topic("orders")
    yield made
    made.stop()


def init(broker: Broker, expected: Identity | None = None) -> object:
    return broker.run(broker.transactions.init_producer(NAME, timeout_ms=1_000, expected=expected))


def test_without_its_topic_there_are_no_transactions(broker: Broker) -> None:
    assert isinstance(init(broker), CoordinatorNotAvailable)
    assert isinstance(broker.transactions.find(NAME), CoordinatorNotAvailable)
    assert list(broker.transactions.all()) == []
    no_name = broker.transactions.init_producer("", timeout_ms=1_000, expected=None)
    assert isinstance(broker.run(no_name), InvalidTransactionalId)


def test_a_fresh_producer_id_is_drawn_for_a_new_name_only(broker: Broker) -> None:
    broker.run(broker.transactions.topic.ensure())
    first = init(broker)
    assert isinstance(first, Identity)
    again = init(broker)
    assert again == Identity(first.producer_id, first.epoch + 1)
    assert [each.transactional_id for each in broker.transactions.all()] == [NAME]


def test_a_transaction_is_opened_verified_and_ended(broker: Broker) -> None:
    transactions = broker.transactions
    broker.run(transactions.topic.ensure())
    producer = init(broker)
    assert isinstance(producer, Identity)
    verification = VerifyPartitions(NAME, producer, (ORDERS,))
    assert isinstance(transactions.verify(verification), PartitionNotInTransaction)
    command = AddPartitions(
        transactional_id=NAME, producer=producer, partitions=(ORDERS,), transaction_version=2
    )

    async def add() -> object:
        return await outcome_of(transactions.submit(NAME, command))

    broker.run(add())
    assert transactions.verify(verification) is None
    ended = broker.run(transactions.end(NAME, producer, is_commit=True, transaction_version=2))
    assert ended == Identity(producer.producer_id, producer.epoch + 1)
    found = transactions.find(NAME)
    assert isinstance(found, Transaction)
    assert found.state is State.CompleteCommit, "the marker was written"
    unknown = transactions.end("absent", producer, is_commit=True, transaction_version=2)
    assert isinstance(broker.run(unknown), WrongProducerId)


@pytest.mark.parametrize("replicas, needed", [(1, "1"), (2, "2"), (3, "2")])
def test_the_topic_of_transactions_needs_no_more_replicas_in_sync_than_it_has(
    replicas: int, needed: str
) -> None:
    configs = TransactionTopic(segment_bytes=7).configs(replicas)
    assert configs == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": needed,
        "segment.bytes": "7",
        "unclean.leader.election.enable": "false",
    }
