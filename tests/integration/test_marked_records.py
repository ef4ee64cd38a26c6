"""Records that are stored once, through real producers and over restarts; Kafka's tool judges the log."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as Place

from tests.harness.topics import create_topic, unique_name
from tests.integration.conftest import StartMillrace

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ID = "millrace-dedup-id"
SETTINGS = {"dedup.window.ms": "3600000"}


def produce_confluent(bootstrap: str, topic: str, ids: list[str], **config: Any) -> list[int]:
    """Send a record for each id; the offsets that were answered."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            **{k.replace("_", "."): v for k, v in config.items()},
        }
    )
    for each in ids:
        producer.produce(
            topic, each.encode(), partition=0, headers=[(ID, each.encode())], on_delivery=delivered
        )
    assert producer.flush(30) == 0
    return offsets


def produce_python(bootstrap: str, topic: str, ids: list[str], **config: Any) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, **config)
    try:
        sent = [
            producer.send(topic, each.encode(), partition=0, headers=[(ID, each.encode())]) for each in ids
        ]
        return [each.get(30).offset for each in sent]
    finally:
        producer.close()


def read_confluent(bootstrap: str, topic: str) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique_name("g"), "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None, "no end after 20 s"
            if message.error():
                return found
            found.append((message.value() or b"").decode())
    finally:
        consumer.close()


def read_python(bootstrap: str, topic: str) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=20_000)
    try:
        place = Place(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        (end,) = consumer.end_offsets([place]).values()
        found = []
        while consumer.position(place) < end:
            for messages in consumer.poll(1_000).values():
                found += [message.value.decode() for message in messages]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_every_id_is_stored_once_whoever_sends_it_and_over_restarts(
    start_millrace: StartMillrace, idempotent: bool
) -> None:
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("thinned"), configs=SETTINGS)
    expected: list[str] = []
    offsets: list[int] = []
    for number, compression in enumerate(COMPRESSIONS):
        ids = [f"{number}-{each}" for each in range(50)]
        # Half of what the one before has sent, then its own twice; the last ids of all are repeated as well.
        sent = [f"{number - 1}-{each}" for each in range(0, 50, 2)] * bool(number) + ids + ids[::-1]
        offsets += produce_confluent(
            broker.bootstrap,
            topic,
            sent,
            compression_type=compression,
            enable_idempotence=idempotent,
        )
        expected += ids
        codec = None if compression == "none" else compression
        offsets += produce_python(
            broker.bootstrap, topic, ids, compression_type=codec, enable_idempotence=idempotent
        )
        if number % 2:
            broker.stop()
            broker.start()
    # The offsets of a producer's batches are those of the log, whether their records are in it or not.
    assert sorted(offsets) == list(range(len(offsets)))
    assert read_confluent(broker.bootstrap, topic) == expected
    assert read_python(broker.bootstrap, topic) == expected


def test_the_end_of_a_log_may_be_empty_batches(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    topic = create_topic(broker.bootstrap, unique_name("thinned"), configs=SETTINGS)
    for _ in range(3):
        produce_confluent(broker.bootstrap, topic, ["a", "b"])
    assert read_confluent(broker.bootstrap, topic) == ["a", "b"]
    assert read_python(broker.bootstrap, topic) == ["a", "b"]
    broker.kill()
    broker.start()
    produce_confluent(broker.bootstrap, topic, ["b", "c", "a"])
    assert read_confluent(broker.bootstrap, topic) == ["a", "b", "c"]
