"""The face of transactions: where a transactional id lives, and how its topic comes into being."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.coordinator.errors import CoordinatorNotAvailable, NotCoordinator
from millrace.core.errors import MillraceError
from millrace.core.java_hash import java_hash
from millrace.metadata.errors import StoreRefused, TopicExists
from millrace.metadata.service import NewTopic
from millrace.transactions.commands import Identity, InitProducer, TransactionSettings
from millrace.transactions.errors import InvalidTransactionalId
from millrace.transactions.machine import TransactionMachine
from millrace.transactions.service import TRANSACTION_TOPIC, Transactions, TransactionTopic, outcome_of
from tests.harness.background import background
from tests.unit.transactions.lab import NAME


class Metadata:
    """Topics and brokers as a test wants them; new topics are noted, and appear."""

    def __init__(self, *, brokers: int = 3, partitions: int = 0, outcome: object = None) -> None:
        self.image = SimpleNamespace(topics={}, brokers=dict.fromkeys(range(brokers)))
        self.created: list[NewTopic] = []
        self._outcome = outcome
        if partitions:
            self.add(partitions)

    def add(self, partitions: int) -> None:
        self.image.topics[TRANSACTION_TOPIC] = SimpleNamespace(partitions=[None] * partitions)

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[object]:
        self.created += topics
        await asyncio.sleep(0)
        if self._outcome is None:
            self.add(topics[0].partition_count)
        return [self._outcome]


def service(metadata: Metadata, producer_ids: Sequence[int] = ()) -> Transactions:
    left = iter(producer_ids)

    async def next_producer_id() -> int:
        return next(left)

    clock: Any = SimpleNamespace(wall_ms=lambda: 1_000)
    nothing: Any = None
    world: Any = metadata
    return Transactions(
        world,
        nothing,
        clock=clock,
        settings=TransactionSettings(),
        topic=TransactionTopic(partition_count=5),
        next_producer_id=next_producer_id,
        write_marker=nothing,
    )


class Shard:
    """A loaded partition whose commands are answered at once."""

    def __init__(self) -> None:
        self.machine = TransactionMachine(TransactionSettings())
        self.commands: list[Any] = []

    def submit(self, command: object) -> object:
        self.commands.append(command)
        return "answered"


def load(transactions: Transactions) -> Shard:
    shard = Shard()
    index = transactions.partition_of(NAME)
    assert index is not None
    shards: Any = transactions.runtime.shards
    shards[index] = shard
    return shard


def test_a_transactional_id_lives_where_kafka_puts_it() -> None:
    transactions = service(Metadata(partitions=7))
    assert transactions.partition_of(NAME) == java_hash(NAME) % 7
    assert service(Metadata()).partition_of(NAME) is None


def test_the_topic_is_created_once_however_many_ask_for_it() -> None:
    async def body() -> None:
        metadata = Metadata(brokers=2)
        transactions = service(metadata)
        async with background() as owner:
            transactions._background = owner
            await asyncio.gather(*(transactions.ensure_topic() for _ in range(5)))
            await transactions.ensure_topic()
        (topic,) = metadata.created
        # Two brokers hold two replicas, and both must have what is committed.
        assert (topic.name, topic.partition_count, topic.replication_factor) == (TRANSACTION_TOPIC, 5, 2)
        assert topic.configs["cleanup.policy"] == "compact"
        assert topic.configs["min.insync.replicas"] == "2"
        assert topic.configs["unclean.leader.election.enable"] == "false"

    asyncio.run(body())


def test_what_kept_the_topic_from_being_created_is_told_and_another_try_is_made() -> None:
    async def body() -> None:
        metadata = Metadata(outcome=StoreRefused("etcd is full", "RESOURCE_EXHAUSTED"))
        transactions = service(metadata)
        for _ in range(2):
            with pytest.raises(StoreRefused, match="etcd is full"):
                await transactions.ensure_topic()
        assert len(metadata.created) == 2

    asyncio.run(body())


def test_a_topic_that_another_broker_has_created_meanwhile_is_no_failure() -> None:
    metadata = Metadata(outcome=TopicExists(TRANSACTION_TOPIC))
    asyncio.run(service(metadata).ensure_topic())
    assert len(metadata.created) == 1


def test_a_single_broker_has_one_replica() -> None:
    metadata = Metadata(brokers=1)
    asyncio.run(service(metadata).ensure_topic())
    (topic,) = metadata.created
    assert topic.replication_factor == 1
    assert topic.configs["min.insync.replicas"] == "1"


def test_without_topic_or_partition_the_client_is_sent_to_look_again() -> None:
    async def body() -> None:
        unborn, elsewhere = service(Metadata()), service(Metadata(partitions=5))
        for transactions, failure in ((unborn, CoordinatorNotAvailable), (elsewhere, NotCoordinator)):
            assert isinstance(transactions.find(NAME), failure)
            assert isinstance(await transactions.init_producer(NAME, timeout_ms=1, expected=None), failure)
            producer = Identity(1, 0)
            ended = await transactions.end(NAME, producer, is_commit=True, transaction_version=2)
            assert isinstance(ended, failure)
        command = InitProducer(transactional_id=NAME, timeout_ms=1, expected=None, fresh_producer_id=1)
        assert isinstance(unborn.submit(NAME, command), CoordinatorNotAvailable)

    asyncio.run(body())


def test_an_empty_transactional_id_is_refused() -> None:
    outcome = asyncio.run(service(Metadata()).init_producer("", timeout_ms=1, expected=None))
    assert isinstance(outcome, InvalidTransactionalId)


def test_a_new_producer_brings_a_fresh_id_with_its_command() -> None:
    transactions = service(Metadata(partitions=5), producer_ids=[77])
    shard = load(transactions)
    outcome = asyncio.run(transactions.init_producer(NAME, timeout_ms=9, expected=None))
    assert outcome == "answered"
    (command,) = shard.commands
    assert (command.transactional_id, command.timeout_ms, command.fresh_producer_id) == (NAME, 9, 77)
    assert transactions.find(NAME) is None
    assert list(transactions.all()) == []


def test_an_outcome_may_be_there_or_come_later() -> None:
    async def body() -> None:
        assert await outcome_of(MillraceError("at once")) is not None
        later: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        later.set_result("later")
        assert await outcome_of(later) == "later"

    asyncio.run(body())
