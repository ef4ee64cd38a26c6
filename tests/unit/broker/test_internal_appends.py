"""Appends of the broker's own: committed when they return, here and elsewhere, through moves of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker import internal_appends
from millrace.broker.internal_appends import (
    BETWEEN_BROKERS,
    PRODUCE_VERSION,
    AppendRefused,
    CommitAwaited,
    InternalAppends,
    NoSuchPartition,
    may_pass,
)
from millrace.broker.replication.peers import Lane, Peers, PeerUnreachable
from millrace.core.ids import NodeId, TopicId
from millrace.log.errors import OutOfOrderSequence, ProducerFenced
from millrace.log.partition.appending import Appended
from millrace.metadata.service import Metadata
from millrace.replica.partition import NotLeader
from millrace.replica.partitions import Partitions
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NODE_ID, RESTRICTED, Broker, FixedClock
from tests.unit.broker.handlers.produce.test_produce import results, run
from tests.unit.broker.network.client import Client, frame

ME, PEER = NodeId(1), NodeId(2)


def batch(sequence: int = -1, *, count: int = 2, producer_id: int = 7) -> bytes:
    records = [Record(number, 1000, b"k", b"v") for number in range(count)]
    if sequence < 0:
        return build_batch(records)
    return build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def appends_of(broker: Broker) -> InternalAppends:
    return InternalAppends(broker.metadata, broker.services.partitions, clock=FixedClock(), node_id=NODE_ID)


def test_an_append_here_is_committed_and_a_repeated_one_is_the_same(broker: Broker) -> None:
    broker.create_topic("orders")
    appends = appends_of(broker)
    first = broker.run(appends.append("orders", 0, batch(0)))
    assert isinstance(first, Appended)
    assert (first.base_offset, first.last_offset, first.duplicate) == (0, 1, False)
    again = broker.run(appends.append("orders", 0, batch(0)))
    assert isinstance(again, Appended)
    assert (again.base_offset, again.last_offset, again.duplicate) == (0, 1, True)
    assert isinstance(broker.run(appends.append("orders", 0, batch(5))), OutOfOrderSequence)
    partition = broker.services.partitions.find("orders", 0)
    assert partition is not None
    assert partition.log.high_watermark == 2


def test_a_topic_whose_batches_are_looked_into_gets_them_prepared(broker: Broker) -> None:
    broker.create_topic("orders", configs={"compression.type": "gzip"})
    outcome = broker.run(appends_of(broker).append("orders", 0, batch()))
    assert isinstance(outcome, Appended)
    partition = broker.services.partitions.find("orders", 0)
    assert partition is not None
    assert partition.log.prepares_batches


def test_what_is_not_there_is_told_at_once(broker: Broker) -> None:
    topic = broker.create_topic("orders")
    appends = appends_of(broker)
    assert isinstance(broker.run(appends.append("nothing", 0, batch())), NoSuchPartition)
    assert isinstance(broker.run(appends.append("orders", 1, batch())), NoSuchPartition)
    later = TopicId(bytes(reversed(topic.topic_id)))
    assert isinstance(broker.run(appends.append("orders", 0, batch(), topic_id=later)), NoSuchPartition)


def test_replicas_that_do_not_store_a_batch_are_not_awaited_for_ever(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    partition = broker.services.partitions.find("orders", 0)
    assert partition is not None
    monkeypatch.setattr(internal_appends, "COMMIT_TIMEOUT_MS", 10)
    monkeypatch.setattr(type(partition), "is_acknowledged", lambda *_: False)
    monkeypatch.setattr(type(partition.waiting_produces), "add", lambda *_: None)
    outcome = broker.run(appends_of(broker).append("orders", 0, batch(0), deadline_s=0.0))
    assert isinstance(outcome, CommitAwaited)
    assert may_pass(outcome)


def test_a_leader_that_is_away_is_waited_for(broker: Broker) -> None:
    broker.create_topic("orders")
    partition = broker.services.partitions.find("orders", 0)
    assert partition is not None
    epoch = partition.leader_epoch
    partition.follow(-1, epoch)
    appends = appends_of(broker)
    assert isinstance(broker.run(appends.append("orders", 0, batch(), deadline_s=0.0)), NotLeader)

    async def leads_later() -> Any:
        appending = asyncio.ensure_future(appends.append("orders", 0, batch()))
        await asyncio.sleep(0.06)
        assert partition is not None
        partition.lead(NODE_ID, epoch)
        return await appending

    assert isinstance(broker.run(leads_later()), Appended)


class OtherBroker:
    """Answers with what the test has laid out, one after the other."""

    def __init__(self, *outcomes: int | Exception) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[ProduceRequest] = []

    async def call(
        self, node_id: NodeId, key: int, version: int, request: ProduceRequest, *, lane: Lane
    ) -> ProduceResponse:
        assert (node_id, key, version, lane) == (PEER, ApiKey.PRODUCE, PRODUCE_VERSION, Lane.APPENDS)
        self.asked.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        result = PartitionProduceResponse(index=0, error_code=outcome, base_offset=40)
        return ProduceResponse(responses=[TopicProduceResponse(partition_responses=[result])])


def elsewhere(other: OtherBroker) -> InternalAppends:
    topic_id = TopicId(b"t" * 16)
    topic = SimpleNamespace(topic_id=topic_id, partitions=[SimpleNamespace(leader=PEER)])
    image = SimpleNamespace(topics={"orders": topic})
    return InternalAppends(
        cast("Metadata", SimpleNamespace(image=image)),
        Partitions(),
        clock=FixedClock(),
        node_id=ME,
        peers=cast("Peers", other),
    )


def test_another_broker_is_asked_by_id_until_it_leads() -> None:
    other = OtherBroker(
        PeerUnreachable(PEER, "away"), ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID, 0
    )
    outcome = asyncio.run(elsewhere(other).append("orders", 0, batch(0)))
    assert outcome == Appended(40, 41, -1, False)
    assert len(other.asked) == 4
    (topic,) = other.asked[0].topic_data
    assert (other.asked[0].transactional_id, other.asked[0].acks) == (BETWEEN_BROKERS, -1)
    assert topic.topic_id == b"t" * 16


@pytest.mark.parametrize(
    "code, expected",
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, OutOfOrderSequence),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.MESSAGE_TOO_LARGE, AppendRefused),
    ],
)
def test_what_no_time_mends_is_not_tried_again(code: ErrorCode, expected: type[Exception]) -> None:
    other = OtherBroker(code)
    assert isinstance(asyncio.run(elsewhere(other).append("orders", 0, batch(0))), expected)
    assert len(other.asked) == 1


def test_a_duplicate_elsewhere_is_a_success() -> None:
    outcome = asyncio.run(
        elsewhere(OtherBroker(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)).append("orders", 0, batch(0))
    )
    assert outcome == Appended(40, 41, -1, True)


def between_brokers(topic: str) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=batch())]
    return ProduceRequest(
        transactional_id=BETWEEN_BROKERS,
        acks=-1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def codes_of(broker: Broker, topic: str) -> list[int]:
    codes: list[int] = []

    async def work(client: Client) -> None:
        client.receive(frame(ApiKey.PRODUCE, 12, between_brokers(topic)))
        codes.extend(code for _, code, _ in results(12, await client.answers()))

    run(broker, work)
    return codes


def test_brokers_write_to_the_store_of_delayed_messages_and_to_no_coordinators_topic(broker: Broker) -> None:
    broker.services.replica_sessions = cast("Any", SimpleNamespace())
    broker.create_topic("__delayed_messages")
    broker.create_topic("__consumer_offsets")
    broker.create_topic("orders")
    assert codes_of(broker, "__delayed_messages") == [ErrorCode.NONE]
    assert codes_of(broker, "orders") == [ErrorCode.NONE]
    assert codes_of(broker, "__consumer_offsets") == [ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_nobody_is_taken_for_a_broker_where_there_is_no_other_or_on_the_clients_listener(
    broker: Broker,
) -> None:
    broker.create_topic("__delayed_messages")
    assert codes_of(broker, "__delayed_messages") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    broker.services.replica_sessions = cast("Any", SimpleNamespace())
    broker.services.settings = replace(broker.services.settings, listener_between_brokers="BROKERS")
    assert codes_of(broker, "__delayed_messages") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_where_permissions_are_checked_only_brokers_append_so(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", RESTRICTED)
    broker.start()
    try:
        broker.services.replica_sessions = cast("Any", SimpleNamespace())
        broker.create_topic("__delayed_messages")
        assert codes_of(broker, "__delayed_messages") == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    finally:
        broker.stop()
