"""Produce over a connection: what is appended, what is answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from millrace.core.ids import TopicId
from millrace.core.turn_batching import TRY_EVERY
from millrace.groups.service import OFFSETS_TOPIC
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.network.client import Client, correlation_ids, frame, responses

TOPIC: Final = "orders"
BATCH: Final = bytes(build_batch([Record(0, NOW_MS, b"key", b"value")]))
UNKNOWN: Final = TopicId(bytes(range(16)))
PRODUCE: Final = ApiKey.PRODUCE
BY_ID: Final = 13
TIMEOUT_MS: Final = 60_000


def request(
    *places: int, topic: str | TopicId = TOPIC, records: bytes | None = BATCH, **values: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records) for index in places]
    named = TopicProduceData(partition_data=data)
    if isinstance(topic, str):
        named.name = topic
    else:
        named.topic_id = topic
    return ProduceRequest(**{"acks": -1, "timeout_ms": TIMEOUT_MS, "topic_data": [named], **values})


def results(version: int, data: bytes) -> list[tuple[int, int, int]]:
    """For each partition of all responses: its number, error code and base offset."""
    return [
        (result.index, result.error_code, result.base_offset)
        for response in responses(PRODUCE, version, data)
        for topic in response.responses
        for result in topic.partition_responses
    ]


def partition_of(broker: Broker, index: int = 0) -> Partition:
    found = broker.services.partitions.find(TOPIC, index)
    assert found is not None
    return found


def run(broker: Broker, work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def connected() -> None:
        await work(Client(broker.services))

    broker.run(connected())


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic(TOPIC, 3)
    return broker


def with_followers(partition: Partition, *isr: int) -> None:
    leadership = Leadership(1, leader_epoch=1, epoch_start_offset=0, lag_ms_max=30_000, now_ms=0)
    leadership.update(replicas=(1, 2), isr=isr, partition_epoch=1, now_ms=0)
    partition.lead_replicas(leadership)


def follower_has_all(partition: Partition) -> None:
    end = partition.log.log_end_offset
    assert partition.replica_fetched(2, broker_epoch=1, offset=end, log_start_offset=0, now_ms=1)


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [-1, 1])
def test_every_version_is_answered_with_the_offsets(topic: Broker, version: int, acks: int) -> None:
    name: str | TopicId = TOPIC if version < BY_ID else partition_of(topic).topic_id

    async def work(client: Client) -> None:
        for offset in range(3):
            client.receive(frame(PRODUCE, version, request(1, topic=name, acks=acks)))
            assert results(version, client.written()) == [(1, ErrorCode.NONE, offset)]

    run(topic, work)
    assert partition_of(topic, 1).log.log_end_offset == 3
    assert partition_of(topic, 1).stats.produces == 3


def test_one_partition_and_several_are_answered_alike(topic: Broker) -> None:
    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, request(0)))
        client.receive(frame(PRODUCE, 9, request(0, 1, 2)))
        assert results(9, client.written()) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (2, 0, 0)]

    run(topic, work)


def test_no_acknowledgement_is_no_answer(topic: Broker) -> None:
    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, request(0, acks=0)))
        assert await client.answers() == b""
        assert partition_of(topic).log.log_end_offset == 1
        assert not client.transport.is_aborted
        client.receive(frame(PRODUCE, 9, request(9, acks=0)))
        assert client.transport.is_aborted, "the only way to tell that something is wrong"

    run(topic, work)


@pytest.mark.parametrize(
    "version, wrong, code",
    [
        (9, request(0, acks=2), ErrorCode.INVALID_REQUIRED_ACKS),
        (9, request(7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (9, request(0, topic="no such topic"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, request(0, topic=UNKNOWN), ErrorCode.UNKNOWN_TOPIC_ID),
        (9, request(0, topic=OFFSETS_TOPIC), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (9, request(0, records=None), ErrorCode.CORRUPT_MESSAGE),
        (9, request(0, records=BATCH[:-1]), ErrorCode.INVALID_RECORD),
        (9, request(0, records=BATCH[:-1] + b"\1"), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_wrong_is_refused(topic: Broker, version: int, wrong: ProduceRequest, code: int) -> None:
    topic.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)

    async def work(client: Client) -> None:
        for _ in range(2):
            client.receive(frame(PRODUCE, version, wrong))
            ((_, found, base_offset),) = results(version, await client.answers())
            assert (found, base_offset) == (code, -1)
        client.receive(frame(PRODUCE, 9, request(0)))
        assert results(9, client.written()) == [(0, 0, 0)], "nothing was appended before"

    run(topic, work)


def test_a_request_that_is_recognised_goes_by_what_is_true_now(topic: Broker) -> None:
    async def work(client: Client) -> None:
        for _ in range(2):
            client.receive(frame(PRODUCE, 11, request(0)))
        assert results(11, client.written()) == [(0, 0, 0), (0, 0, 1)]
        assert topic.services.recognition.entries_count == 1
        partition_of(topic).follow(2, 1)
        client.receive(frame(PRODUCE, 11, request(0)))
        assert results(11, client.written()) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]

    run(topic, work)


def test_with_followers_the_answer_waits_until_they_have_the_batch(topic: Broker) -> None:
    async def work(client: Client) -> None:
        with_followers(partition_of(topic), 1, 2)
        client.receive(frame(PRODUCE, 9, request(0), 1) + frame(PRODUCE, 9, request(0, 1), 2))
        client.receive(frame(PRODUCE, 9, request(0, acks=1), 3))
        assert client.written() == b"", "also what needs no follower keeps its place"
        follower_has_all(partition_of(topic))
        written = await client.answers()
        assert correlation_ids(written) == [1, 2, 3]
        assert results(9, written) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 2)]

    run(topic, work)


@pytest.mark.parametrize("places", [(0,), (0, 1)])
def test_who_waited_is_told_when_another_broker_leads(topic: Broker, places: tuple[int, ...]) -> None:
    async def work(client: Client) -> None:
        with_followers(partition_of(topic), 1, 2)
        client.receive(frame(PRODUCE, 10, request(*places)))
        partition_of(topic).follow(2, 2)
        first, *others = results(10, await client.answers())
        assert first == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert others == [(index, 0, 0) for index in places[1:]]

    run(topic, work)


@pytest.mark.parametrize("places", [(0,), (0, 1)])
@pytest.mark.parametrize(
    "has_enough, code",
    [(True, ErrorCode.REQUEST_TIMED_OUT), (False, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
)
def test_nobody_waits_longer_than_the_request_says(
    topic: Broker, places: tuple[int, ...], has_enough: bool, code: int
) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(topic)
        with_followers(partition, 1, 2)
        client.receive(frame(PRODUCE, 9, request(*places, timeout_ms=1)))
        partition.has_enough_replicas = has_enough
        written = b""
        while not written:
            await asyncio.sleep(0)
            written = client.written()
        assert results(9, written) == [(0, code, -1), *((index, 0, 0) for index in places[1:])]
        follower_has_all(partition)
        assert await client.answers() == b""

    run(topic, work)


@pytest.mark.parametrize("places", [(0,), (0, 1)])
def test_too_few_replicas_are_refused_before_anything_is_written(
    topic: Broker, places: tuple[int, ...]
) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(topic)
        with_followers(partition, 1)
        partition.require_replicas(min_insync=2)
        client.receive(frame(PRODUCE, 9, request(*places)))
        assert results(9, client.written())[0] == (0, ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        assert partition.log.log_end_offset == 0
        client.receive(frame(PRODUCE, 9, request(0, acks=1)))
        assert results(9, client.written()) == [(0, 0, 0)], "who asks for less gets it"

    run(topic, work)


def test_batches_that_come_together_are_written_together_and_answered_in_order(topic: Broker) -> None:
    async def work(client: Client) -> None:
        others = [Client(topic.services) for _ in range(4)]
        for _ in range(TRY_EVERY - 1):
            client.receive(frame(PRODUCE, 9, request(0)))
        assert len(results(9, client.written())) == TRY_EVERY - 1, "each at once"
        log = partition_of(topic).log
        for other in others:
            other.receive(frame(PRODUCE, 9, request(0)))
        assert log.log_end_offset == TRY_EVERY - 1
        await asyncio.sleep(0)
        assert log.log_end_offset == TRY_EVERY + 3
        offsets = [results(9, other.written()) for other in others]
        assert offsets == [[(0, 0, TRY_EVERY - 1 + number)] for number in range(4)]

    run(topic, work)


def test_topics_whose_batches_are_looked_into_are_answered_in_order(broker: Broker) -> None:
    broker.create_topic(TOPIC, 3, {"compression.type": "gzip"})
    broker.create_topic("plain", 1)

    async def work(client: Client) -> None:
        client.receive(frame(PRODUCE, 9, request(0, 1), 1) + frame(PRODUCE, 9, request(0, topic="plain"), 2))
        assert client.written() == b""
        written = await client.answers()
        assert correlation_ids(written) == [1, 2]
        assert results(9, written) == [(0, 0, 0), (1, 0, 0), (0, 0, 0)]

    run(broker, work)


def test_a_connection_that_ends_leaves_what_was_appended(topic: Broker) -> None:
    async def work(client: Client) -> None:
        partition = partition_of(topic)
        with_followers(partition, 1, 2)
        client.receive(frame(PRODUCE, 9, request(0)) + frame(PRODUCE, 9, request(0, 1)))
        client.connection.connection_lost(None)
        follower_has_all(partition)
        assert await client.answers() == b""
        assert partition.log.high_watermark == 2

    run(topic, work)
