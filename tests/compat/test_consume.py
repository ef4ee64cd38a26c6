"""Consume as clients see it: positions by offset and by time, waiting for new data, errors."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from tests.compat.clients import AiokafkaClient, Client, ConfluentClient, JavaClient, KafkaPythonClient
from tests.compat.messages import Message
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

# Written in this order, one batch each: the largest timestamp is not the last one.
TIMES = (1_000_000, 3_000_000, 2_000_000, 9_000_000, 4_000_000)


@pytest.fixture(scope="module")
def timed(broker: BrokerProcess) -> str:
    """A topic of five single-record batches with known timestamps."""
    topic = create_topic(broker.bootstrap, unique_name("timed"))
    for moment in TIMES:
        messages = [Message(key=None, value=b"%d" % moment, timestamp_ms=moment)]
        ConfluentClient().write(broker.bootstrap, topic, 0, messages, "none")
    return topic


def confluent_consumer(broker: BrokerProcess, **config: Any) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        | config
    )


def test_librdkafka_finds_offsets_by_time_and_the_watermarks(broker: BrokerProcess, timed: str) -> None:
    consumer = confluent_consumer(broker)
    found = [
        consumer.offsets_for_times([confluent_kafka.TopicPartition(timed, 0, moment)], timeout=10)[0].offset
        for moment in (0, 1_000_000, 1_000_001, 3_000_001, 9_000_000, 9_000_001)
    ]
    partition = confluent_kafka.TopicPartition(timed, 0)
    low, high = consumer.get_watermark_offsets(partition, timeout=10, cached=False)
    consumer.close()
    # The first batch at or after the moment; past the largest timestamp there is none: the end.
    assert found == [0, 0, 1, 3, 3, confluent_kafka.OFFSET_END]
    assert (low, high) == (0, 5)


def test_kafka_python_finds_offsets_by_time(broker: BrokerProcess, timed: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    partition = kafka.TopicPartition(timed, 0)
    try:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 5}
        found = consumer.offsets_for_times({partition: 3_000_001})[partition]
        assert (found.offset, found.timestamp) == (3, 9_000_000)
        assert consumer.offsets_for_times({partition: 9_000_001})[partition] is None
    finally:
        consumer.close()


def test_aiokafka_finds_offsets_by_time(broker: BrokerProcess, timed: str) -> None:
    async def look() -> None:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None) as consumer:
            partition = aiokafka.TopicPartition(timed, 0)
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 5}
            found = (await consumer.offsets_for_times({partition: 1_000_001}))[partition]
            assert (found.offset, found.timestamp) == (1, 3_000_000)

    asyncio.run(look())


def test_java_lists_offsets_of_every_kind(broker: BrokerProcess, timed: str, java: JavaHost) -> None:
    def find(spec: str) -> tuple[int, int]:
        wanted = [{"topic": timed, "partition": 0, "spec": spec}]
        found = java.admin(broker.bootstrap, "listOffsets", partitions=wanted)[f"{timed}-0"]
        return found["offset"], found["timestamp"]

    assert find("earliest") == (0, -1)
    assert find("latest") == (5, -1)
    assert find("max_timestamp") == (3, 9_000_000)
    assert find("earliest_local") == (0, -1)
    assert find("latest_tiered") == (-1, -1)
    assert find("0") == (0, 1_000_000)
    assert find("1500000") == (1, 3_000_000)
    assert find("9000001") == (-1, -1)


def test_an_offset_out_of_range_is_reported_by_every_client(
    broker: BrokerProcess, timed: str, java: JavaHost
) -> None:
    consumer = confluent_consumer(broker)
    consumer.assign([confluent_kafka.TopicPartition(timed, 0, 77)])
    error = _first_error(consumer)
    consumer.close()
    assert error.name() == "_AUTO_OFFSET_RESET"
    assert "out of range" in error.str().lower()

    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        KafkaPythonClient().read(broker.bootstrap, {(timed, 0): (77, 78)})
    with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
        AiokafkaClient().read(broker.bootstrap, {(timed, 0): (77, 78)})
    answer = java.call(
        {
            "op": "consume",
            "config": {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "none"},
            "partitions": [{"topic": timed, "partition": 0, "start": 77}],
            "count": 1,
            "timeout_ms": 20_000,
        }
    )
    assert answer["error"] == "OffsetOutOfRangeException"


def _first_error(consumer: Any) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is not None, message.value()
            return message.error()
    raise AssertionError("no error within 60 s")


def test_out_of_range_positions_reset_to_either_end(broker: BrokerProcess, timed: str) -> None:
    for policy, first in (("earliest", b"1000000"), ("latest", None)):
        consumer = confluent_consumer(broker, **{"auto.offset.reset": policy})
        consumer.assign([confluent_kafka.TopicPartition(timed, 0, 77)])
        message = consumer.poll(15 if first is not None else 1.5)
        consumer.close()
        assert (None if message is None else message.value()) == first


def test_a_waiting_consumer_gets_a_new_message_at_once(broker: BrokerProcess) -> None:
    # A fetch waits up to 5 s for data here; polling instead of waking up would show as latency.
    topic = create_topic(broker.bootstrap, unique_name("tail"))
    consumer = confluent_consumer(broker, **{"fetch.wait.max.ms": 5_000})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    delays = []
    for number in range(5):
        sent = time.monotonic()
        producer.produce(topic, b"%d" % number)
        producer.flush(10)
        message = consumer.poll(6)
        assert message is not None
        assert message.value() == b"%d" % number
        delays.append(time.monotonic() - sent)
    consumer.close()
    assert sorted(delays)[2] < 1.0, delays


@pytest.mark.parametrize("client", [ConfluentClient(), KafkaPythonClient(), AiokafkaClient()])
def test_many_partitions_are_read_while_they_are_written(client: Client, broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("busy"), partitions=6)

    def write() -> None:
        producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(6_000):
            producer.produce(topic, b"%s %d" % (topic.encode(), number // 6), partition=number % 6)
        assert producer.flush(20) == 0

    writer = threading.Thread(target=write)
    writer.start()
    received = client.read(broker.bootstrap, {(topic, partition): (0, 1_000) for partition in range(6)})
    writer.join()
    for partition in range(6):
        mine = [message for message in received if message.partition == partition]
        assert [message.offset for message in mine] == list(range(1_000))
        assert [message.value for message in mine] == [
            b"%s %d" % (topic.encode(), number) for number in range(1_000)
        ]


def test_read_committed_sees_plain_messages(broker: BrokerProcess, java: JavaHost) -> None:
    topic = create_topic(broker.bootstrap, unique_name("committed"))
    messages = [Message(key=None, value=b"%d" % number) for number in range(10)]
    JavaClient(java).write(broker.bootstrap, topic, 0, messages, "none")
    consumer = confluent_consumer(broker, **{"isolation.level": "read_committed"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values = [consumer.poll(10).value() for _ in range(10)]
    consumer.close()
    assert values == [b"%d" % number for number in range(10)]


def test_a_small_fetch_size_still_makes_progress(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("small-fetch"))
    messages = [Message(key=None, value=bytes([number]) * 200_000) for number in range(5)]
    ConfluentClient().write(broker.bootstrap, topic, 0, messages, "none")
    consumer = confluent_consumer(broker, **{"fetch.message.max.bytes": 1_000, "fetch.max.bytes": 2_000_000})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    sizes = [len(consumer.poll(10).value()) for _ in range(5)]
    consumer.close()
    assert sizes == [200_000] * 5
