"""What the source's tests share: generated topics, and what confluent-kafka reads of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition

NOW_MS = 1_760_000_000_000


class Message(NamedTuple):
    """One record as a reader sees it."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def by_client(bootstrap: str, topic: str, partitions: int = 1) -> list[Message]:
    """All committed records of a topic, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "source-tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[Message] = []
    left = set(range(partitions))
    try:
        consumer.assign([ClientPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        while left:
            for message in consumer.consume(1000, timeout=1):
                error = message.error()
                if error is None:
                    found.append(_message(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()
    return sorted(found)


def _message(message: Any) -> Message:
    kind, timestamp = message.timestamp()
    return Message(
        message.partition(),
        message.offset(),
        timestamp,
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def by_source(rows: Iterable[dict[str, Any]]) -> list[Message]:
    """Rows of the source in the same form."""
    return sorted(
        Message(
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in rows
    )


def producer(bootstrap: str, **settings: Any) -> Producer:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **names})


def send_generated(
    client: Producer, topic: str, count: int, rng: random.Random, partitions: int = 1, *, flush: bool = True
) -> None:
    """Records with and without keys, values and headers, of many sizes."""
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] = [
            (f"name {each}", None if rng.random() < 0.2 else rng.randbytes(rng.randrange(6)))
            for each in range(rng.choice((0, 0, 1, 5)))
        ]
        client.produce(
            topic,
            key=None if rng.random() < 0.3 else rng.randbytes(rng.choice((0, 4, 130))),
            value=None if rng.random() < 0.1 else rng.randbytes(rng.choice((0, 10, 64, 500, 9_000))),
            partition=number % partitions,
            timestamp=NOW_MS + rng.randrange(-1000, 20_000),
            headers=headers or None,
        )
    if flush:
        assert client.flush(60) == 0


def send(bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **settings: Any) -> None:
    """Plain records, one after the other, in batches of librdkafka's making."""
    client = producer(bootstrap, **settings)
    for number, value in enumerate(values):
        client.produce(topic, value=value, key=b"%d" % number, partition=partition, timestamp=NOW_MS + number)
        if number % 10_000 == 0:
            client.poll(0)
    assert client.flush(60) == 0
