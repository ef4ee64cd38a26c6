"""Redrives: what is left to do, where it goes, and that copies and progress are one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from millrace.cli.clients import RequestFailed
from millrace.cli.queue import redrive
from millrace.cli.queue.redrive import Redrive
from millrace.client.broker_client import BrokerClient
from millrace.client.transactional import EncodedBatch, Marker, ProducerIdentity
from millrace.core.ids import TopicPartition
from millrace.queues.share_partition.changes import DeadLetterCause
from tests.unit.cli.queue.fakes import Cluster, letter

PLACE = TopicPartition("dlq", 0)
ALL = ("rejected", "delivery-limit", "expired", "other")
WANTED = Redrive(group="g", topic="dlq", causes=ALL)


class Transactions:
    """In the place of the brokers' transactions: what is not committed never was."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open_batches: list[EncodedBatch] = []
        self.open_markers: dict[tuple[str, TopicPartition], Marker] = {}
        self.batches: list[EncodedBatch] = []
        self.markers: dict[tuple[str, TopicPartition], Marker] = {}
        self.dies_after: int | None = None

    def init(self, _client: object, transactional_id: str, _timeout_ms: int) -> ProducerIdentity:
        self.epoch += 1
        self.forget()
        return ProducerIdentity(transactional_id, 1, self.epoch)

    def producer(self, _client: object, _identity: ProducerIdentity, *, timeout_ms: int) -> Transactions:
        assert timeout_ms > 0
        return self

    def produce(self, batches: Sequence[EncodedBatch]) -> None:
        self.open_batches += batches

    def mark(self, group: str, place: TopicPartition, marker: Marker) -> None:
        self.open_markers[group, place] = marker

    def end(self, _client: object, _identity: ProducerIdentity, *, is_commit: bool) -> None:
        assert is_commit
        if self.dies_after == 0:
            raise KeyboardInterrupt
        if self.dies_after is not None:
            self.dies_after -= 1
        self.batches += self.open_batches
        self.markers |= self.open_markers
        self.forget()

    def abort(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.open_batches, self.open_markers = [], {}

    def read(self, _client: object, group: str, place: TopicPartition) -> Marker | None:
        return self.markers.get((group, place))

    @property
    def copies(self) -> int:
        return sum(batch.record_count for batch in self.batches)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    all_of_them = Transactions()
    monkeypatch.setattr(redrive, "init_producer", all_of_them.init)
    monkeypatch.setattr(redrive, "TaskProducer", all_of_them.producer)
    monkeypatch.setattr(redrive, "end_transaction", all_of_them.end)
    monkeypatch.setattr(redrive, "read_marker", all_of_them.read)
    return all_of_them


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"dlq": 1, "jobs": 2, "else": 3})
    cluster.add(
        PLACE,
        letter(0, partition=1),
        letter(1, DeadLetterCause.EXPIRED),
        letter(2, group="other"),
        letter(3, DeadLetterCause.DELIVERY_LIMIT, key=b"k", partition=7),
        letter(4),
    )
    return cluster


def run(cluster: Cluster, wanted: Redrive = WANTED, **more: Any) -> int:
    waits: list[float] = []
    return redrive.redrive(
        cast("BrokerClient", cluster), wanted, lambda _count: None, sleep=more.get("sleep", waits.append)
    )


def test_letters_go_back_where_they_came_from(cluster: Cluster, transactions: Transactions) -> None:
    assert run(cluster) == 4
    places = {batch.partition: batch.record_count for batch in transactions.batches}
    # The third came from a partition that is not there any more, so its key decides.
    assert sum(places.values()) == 4
    assert {place.topic for place in places} == {"jobs"}
    assert places[TopicPartition("jobs", 1)] >= 1
    for batch in transactions.batches:
        assert b"own" in batch.payload
        assert b"__dlq" not in batch.payload


def test_nothing_goes_twice_whatever_causes_are_asked_for(
    cluster: Cluster, transactions: Transactions
) -> None:
    assert run(cluster, Redrive(group="g", topic="dlq", causes=("expired",))) == 1
    assert run(cluster) == 3
    assert run(cluster) == 0
    assert transactions.copies == 4
    cluster.add(PLACE, letter(5))
    assert run(cluster, Redrive(group="g", topic="dlq", causes=("expired",))) == 0
    assert run(cluster) == 1


def test_one_that_is_stopped_goes_on_where_it_was(
    cluster: Cluster, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "BATCH_LETTERS", 1)
    transactions.dies_after = 2
    with pytest.raises(KeyboardInterrupt):
        run(cluster)
    assert transactions.copies == 2
    transactions.dies_after = None
    assert run(cluster) == 2
    assert transactions.copies == 4


def test_a_rate_makes_transactions_small_and_waits_between_them(
    cluster: Cluster, transactions: Transactions
) -> None:
    waits: list[float] = []
    run(cluster, Redrive(group="g", topic="dlq", causes=ALL, rate=2), sleep=waits.append)
    assert transactions.epoch == 3, "two transactions, and one that ends what was open before"
    assert len(waits) == 2
    assert waits[1] > waits[0] > 0.5


def test_letters_go_elsewhere_by_their_keys(cluster: Cluster, transactions: Transactions) -> None:
    assert run(cluster, Redrive(group="g", topic="dlq", causes=ALL, target="else")) == 4
    assert {batch.partition.topic for batch in transactions.batches} == {"else"}
    with pytest.raises(RequestFailed, match="name another topic"):
        redrive.require_other_topic(Redrive(group="g", topic="dlq", causes=ALL, target="dlq"))
    redrive.require_other_topic(WANTED)


def test_a_target_that_is_not_there_is_an_error_and_nothing_is_done(
    cluster: Cluster, transactions: Transactions
) -> None:
    with pytest.raises(RequestFailed, match="no such topic: nowhere"):
        run(cluster, Redrive(group="g", topic="dlq", causes=ALL, target="nowhere"))
    assert (transactions.copies, transactions.markers) == (0, {})
