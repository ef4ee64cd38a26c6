"""When a consumer's fetch is answered: with enough bytes, with news that cannot wait, or when its time has
passed."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest

from millrace.core.ids import TopicId
from millrace.replica.partition import Partition
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.fetch.test_repeated_fetches import (
    TOPIC,
    WAIT_MS,
    Consumer,
    Followed,
    batch,
    followed,
)
from tests.unit.broker.timers import FakeLoop

VERSION = 17


def on_fake_time(consumer: Consumer) -> FakeLoop:
    """Let the deadlines of the consumer's fetches pass when the test says so."""
    loop = FakeLoop()
    consumer.connection.loop = cast("Any", loop)
    return loop


def ask_for(consumer: Consumer, topic_id: TopicId, offsets: dict[int, int], **fields: Any) -> None:
    """Ask for several partitions of a topic, from these offsets on."""
    partitions = [
        FetchPartition(
            partition=index, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        for index, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=fields.pop("min_bytes", 1),
        max_bytes=fields.pop("max_bytes", 1 << 20),
        session_id=consumer.session_id,
        session_epoch=consumer.session_epoch,
        topics=[FetchTopic(topic_id=topic_id, partitions=partitions)] if partitions else [],
        **fields,
    )
    body = schema.request_encoder(ApiKey.FETCH, VERSION)(request)
    consumer.receive(struct.pack(">hhihb", ApiKey.FETCH, VERSION, 7, -1, 0) + body)


def two_partitions(broker: Broker) -> tuple[Followed, Partition, Partition]:
    topic = broker.create_topic("wide", 2)
    first, second = (broker.services.partitions.find("wide", index) for index in (0, 1))
    assert first is not None
    assert second is not None
    return Followed(broker, topic.topic_id, first), first, second


def told(consumer: Consumer) -> dict[int, bytes]:
    """The records of each partition in the answer."""
    return {
        part.partition_index: part.records or b""
        for topic in consumer.decoded().responses
        for part in topic.partitions
    }


def test_a_fetch_is_answered_without_records_when_its_time_has_passed(broker: Broker) -> None:
    topic = followed(broker)

    async def wait() -> None:
        consumer = topic.consumer()
        loop = on_fake_time(consumer)
        for _ in range(2):
            consumer.ask(0)
            loop.advance(WAIT_MS / 1000 - 0.001)
            assert consumer.answer() is None
            assert len(topic.partition.fetch_waiters) == 1
            loop.advance(0.001)
            (part,) = consumer.decoded().responses[0].partitions
            assert (part.error_code, part.high_watermark, part.records or b"") == (0, 0, b"")
            assert len(topic.partition.fetch_waiters) == 0
        assert loop.timers == []

    broker.run(wait())


def test_an_answer_with_records_leaves_no_timer_behind(broker: Broker) -> None:
    topic = followed(broker)

    async def wait() -> None:
        consumer = topic.consumer()
        loop = on_fake_time(consumer)
        for offset in range(3):
            consumer.ask(offset)
            assert len(loop.timers) == 1
            topic.partition.append(batch(b"x"), NOW_MS)
            await asyncio.sleep(0)
            assert consumer.answer() is not None
            assert loop.timers == []

    broker.run(wait())


def test_too_few_bytes_are_told_when_the_time_has_passed(broker: Broker) -> None:
    topic = followed(broker)

    async def wait() -> None:
        consumer = topic.consumer(min_bytes=10_000)
        loop = on_fake_time(consumer)
        topic.partition.append(batch(b"few"), NOW_MS)
        consumer.ask(0)
        assert consumer.answer() is None
        topic.partition.append(batch(b"more"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is None
        loop.advance(WAIT_MS / 1000)
        (part,) = consumer.decoded().responses[0].partitions
        assert len(part.records) == len(batch(b"few")) + len(batch(b"more"))

    broker.run(wait())


def test_bytes_of_all_partitions_count_together(broker: Broker) -> None:
    topic, first, second = two_partitions(broker)

    async def wait() -> None:
        size = len(batch(b"x"))
        consumer = topic.consumer()
        ask_for(consumer, topic.topic_id, {0: 0, 1: 0}, min_bytes=2 * size)
        first.append(batch(b"x"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is None
        second.append(batch(b"y"), NOW_MS)
        await asyncio.sleep(0)
        assert {index: len(records) for index, records in told(consumer).items()} == {0: size, 1: size}
        assert len(first.fetch_waiters) == len(second.fetch_waiters) == 0

    broker.run(wait())


def test_a_session_tells_news_only_and_serves_its_partitions_in_turn(broker: Broker) -> None:
    topic, first, second = two_partitions(broker)

    async def follow() -> None:
        size = len(batch(b"x"))
        consumer = topic.consumer()
        consumer.session_epoch = 0
        for partition in (first, second):
            partition.append(batch(b"x"), NOW_MS)
        ask_for(consumer, topic.topic_id, {0: 0, 1: 0}, max_bytes=size)
        answer = consumer.decoded()
        consumer.session_id = answer.session_id
        assert [len(part.records or b"") for part in answer.responses[0].partitions] == [size, 0]
        # Asked for again, the first one is served and then stands behind the other.
        served = []
        for epoch in (1, 2, 3):
            consumer.session_epoch = epoch
            ask_for(consumer, topic.topic_id, {}, max_bytes=size)
            served.append(list(told(consumer)))
        assert served == [[0], [1], [0]]

    broker.run(follow())


def test_who_waited_for_a_topic_that_was_deleted_is_told_so_each_time_it_asks(broker: Broker) -> None:
    topic = followed(broker)
    consumers: list[Consumer] = []

    async def wait() -> None:
        consumers.append(topic.consumer())
        consumers[0].ask(0)
        assert consumers[0].answer() is None

    async def told_of_its_end() -> None:
        for _ in range(2):
            (part,) = consumers[0].decoded().responses[0].partitions
            assert part.error_code == 100  # UNKNOWN_TOPIC_ID
            consumers[0].ask(0)

    broker.run(wait())
    broker.run(broker.metadata.delete_topics([TOPIC]))
    broker.run(told_of_its_end())


@pytest.mark.parametrize("ends_after", ["append", "nothing"])
def test_a_connection_may_end_before_its_answer_leaves(broker: Broker, ends_after: str) -> None:
    topic = followed(broker)

    async def wait() -> None:
        consumer = topic.consumer()
        loop = on_fake_time(consumer)
        consumer.ask(0)
        if ends_after == "append":
            topic.partition.append(batch(b"x"), NOW_MS)
        consumer.connection.connection_lost(None)
        await asyncio.sleep(0)
        assert consumer.answer() is None
        assert len(topic.partition.fetch_waiters) == 0
        assert loop.timers == []
        assert not consumer.connection.on_close

    broker.run(wait())
