"""Produce as clients see it: sizes, timestamps, keys on compacted topics, recompression, acks, errors."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from tests.compat.clients import CODECS, ConfluentClient, JavaClient
from tests.compat.messages import Message
from tests.harness.batches import codec_of, headers_of
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.protocol import fetch_records
from tests.harness.raw import RawConnection
from tests.harness.topics import create_topic, unique_name

MESSAGE_MAX_BYTES = 1_048_588
"""Kafka's default of `message.max.bytes`: the size of a batch, with its header."""


def confluent_outcome(
    bootstrap: str, topic: str, config: Mapping[str, Any], partition: int = 0, **message: Any
) -> str | int:
    """Produce one message with librdkafka: its offset, or the name of the error."""
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": 10_000, "message.max.bytes": 10_000_000}
        | dict(config)
    )
    outcome: list[str | int] = []
    producer.produce(
        topic,
        partition=partition,
        on_delivery=lambda error, done: outcome.append(error.name() if error else done.offset()),
        **message,
    )
    assert producer.flush(15) == 0
    return outcome[0]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_a_message_just_under_the_limit_is_taken_and_one_over_it_refused(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("large"))
    # 61 bytes of batch header, and a record's own lengths: 12 bytes here.
    largest = incompressible(MESSAGE_MAX_BYTES - 73)
    for config in ({"enable.idempotence": True}, {"compression.type": "none"}):
        assert isinstance(confluent_outcome(broker.bootstrap, topic, config, value=largest), int)
        refused = confluent_outcome(broker.bootstrap, topic, config, value=largest + bytes(10))
        assert refused == "MSG_SIZE_TOO_LARGE"

    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, 2)})
    assert [message.value == largest for message in received] == [True, True]


def test_the_topics_own_limit_counts(broker: BrokerProcess) -> None:
    small = create_topic(broker.bootstrap, unique_name("small"), configs={"max.message.bytes": "2000"})
    large = create_topic(broker.bootstrap, unique_name("large"), configs={"max.message.bytes": "3000000"})
    value = incompressible(2_500_000)
    assert confluent_outcome(broker.bootstrap, small, {}, value=bytes(1_900)) == 0
    assert confluent_outcome(broker.bootstrap, small, {}, value=bytes(2_000)) == "MSG_SIZE_TOO_LARGE"
    assert confluent_outcome(broker.bootstrap, large, {}, value=value) == 0
    # One message larger than any fetch limit must still be readable.
    received = ConfluentClient().read(broker.bootstrap, {(large, 0): (0, 1)})
    assert received[0].value == value


def test_java_is_told_the_record_is_too_large(broker: BrokerProcess, java: JavaHost) -> None:
    topic = create_topic(broker.bootstrap, unique_name("small"), configs={"max.message.bytes": "2000"})
    config = {"bootstrap.servers": broker.bootstrap, "max.request.size": "5000000", "linger.ms": "0"}
    sizes = (1_900, 3_000, 1_000)
    outcomes = [
        JavaClient(java).produce(config, [(topic, 0, Message(key=None, value=incompressible(size)))])[0]
        for size in sizes
    ]
    assert outcomes[0]["offset"] == 0
    assert outcomes[1]["error"] == "RecordTooLargeException"
    assert outcomes[2]["offset"] == 1


def test_python_clients_are_told_the_record_is_too_large(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("small"), configs={"max.message.bytes": "2000"})
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False, retries=0)
    with pytest.raises(kafka.errors.MessageSizeTooLargeError):
        producer.send(topic, value=bytes(3_000), partition=0).get(timeout=10)
    producer.close()

    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as client:
            with pytest.raises(aiokafka.errors.MessageSizeTooLargeError):
                await client.send_and_wait(topic, bytes(3_000), partition=0)

    asyncio.run(produce())


def test_an_absent_topic_or_partition_is_unknown(broker: BrokerProcess, java: JavaHost) -> None:
    topic = create_topic(broker.bootstrap, unique_name("one-partition"))
    absent = unique_name("absent")
    patience = {"topic.metadata.propagation.max.ms": 300}
    assert confluent_outcome(broker.bootstrap, absent, patience, value=b"x") == "UNKNOWN_TOPIC_OR_PART"
    assert confluent_outcome(broker.bootstrap, topic, {}, partition=1, value=b"x") == "_UNKNOWN_PARTITION"

    config = {"bootstrap.servers": broker.bootstrap, "max.block.ms": "1500"}
    (outcome,) = JavaClient(java).produce(config, [(absent, 0, Message(key=None, value=b"x"))])
    assert outcome["error"] == "TimeoutException"
    assert "not present in metadata" in outcome["message"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level_stores_the_message(acks: str, broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name(f"acks-{acks}"))
    for value in (b"first", b"second"):
        confluent_outcome(broker.bootstrap, topic, {"acks": acks}, value=value)
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, 2)})
    assert [message.value for message in received] == [b"first", b"second"]


def test_log_append_time_replaces_the_clients_timestamps(broker: BrokerProcess, java: JavaHost) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    topic = create_topic(broker.bootstrap, unique_name("append-time"), configs=configs)
    before = now_ms()
    for codec in ("none", "lz4"):
        config = {"compression.type": codec}
        confluent_outcome(broker.bootstrap, topic, config, value=b"a", timestamp=1_000)
    outcome = JavaClient(java).produce(
        {"bootstrap.servers": broker.bootstrap}, [(topic, 0, Message(key=None, value=b"b", timestamp_ms=5))]
    )
    after = now_ms()
    assert before <= outcome[0]["timestamp"] <= after

    consumed = java.call(
        {
            "op": "consume",
            "config": {"bootstrap.servers": broker.bootstrap},
            "partitions": [{"topic": topic, "partition": 0, "start": 0}],
            "count": 3,
            "timeout_ms": 20_000,
        }
    )["records"]
    assert [record["timestamp_type"] for record in consumed] == ["LogAppendTime"] * 3
    assert all(before <= record["timestamp"] <= after for record in consumed)


def test_timestamps_far_from_now_are_refused_where_the_topic_says_so(broker: BrokerProcess) -> None:
    configs = {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"}
    topic = create_topic(broker.bootstrap, unique_name("strict-time"), configs=configs)
    outcomes = [
        confluent_outcome(broker.bootstrap, topic, {}, value=b"x", timestamp=now_ms() + delta)
        for delta in (0, -120_000, 120_000)
    ]
    assert outcomes == [0, "INVALID_TIMESTAMP", "INVALID_TIMESTAMP"]


def test_compacted_topics_need_keys(broker: BrokerProcess, java: JavaHost) -> None:
    configs = {"cleanup.policy": "compact"}
    topic = create_topic(broker.bootstrap, unique_name("compact"), configs=configs)
    for codec in CODECS:
        config = {"compression.type": codec}
        # Compressible, or librdkafka sends it plain.
        assert confluent_outcome(broker.bootstrap, topic, config, value=bytes(500)) == "INVALID_RECORD"
        stored = confluent_outcome(broker.bootstrap, topic, config, key=b"k", value=bytes(500))
        assert isinstance(stored, int)
    config = {"bootstrap.servers": broker.bootstrap}
    (outcome,) = JavaClient(java).produce(config, [(topic, 0, Message(key=None, value=b"x"))])
    assert outcome["error"] == "InvalidRecordException"


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_stores_its_own_compression_whatever_producers_use(
    wanted: str, broker: BrokerProcess
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("recode"), configs={"compression.type": wanted})
    messages = [Message(key=b"%d" % n, value=b"%d " % n * 300, timestamp_ms=now_ms() - n) for n in range(20)]
    for codec in CODECS:
        ConfluentClient().write(broker.bootstrap, topic, 0, messages, codec)

    count = len(messages) * len(CODECS)
    received = ConfluentClient().read(broker.bootstrap, {(topic, 0): (0, count)})
    assert [message.as_message() for message in received] == messages * len(CODECS)
    with RawConnection((broker.host, broker.port)) as connection:
        codecs = {codec_of(header) for header in headers_of(fetch_records(connection, topic, 0, 0))}
    expected = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[wanted]
    assert codecs == {expected}


def test_idempotent_producers_get_ids_that_differ(broker: BrokerProcess, java: JavaHost) -> None:
    topic = create_topic(broker.bootstrap, unique_name("idempotent"))
    for number in range(3):
        config = {"enable.idempotence": True}
        assert confluent_outcome(broker.bootstrap, topic, config, value=b"c") == number
    java_config = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": "true", "acks": "all"}
    for number in range(3, 6):
        (outcome,) = JavaClient(java).produce(java_config, [(topic, 0, Message(key=None, value=b"j"))])
        assert outcome["offset"] == number

    partition = f"{topic}-0"
    producers = java.admin(
        broker.bootstrap, "describeProducers", partitions=[{"topic": topic, "partition": 0}]
    )[partition]
    assert len({producer["producer_id"] for producer in producers}) == 6
    assert {producer["epoch"] for producer in producers} == {0}
    assert {producer["last_sequence"] for producer in producers} == {0}
    assert {producer["transaction_start"] for producer in producers} == {-1}
