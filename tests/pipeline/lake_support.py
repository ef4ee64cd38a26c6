"""Topics written and read through confluent-kafka, to judge archives and replays by."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka import TopicPartition

from millrace.pipeline.lake.topics import BrokerOptions, decided_ends
from tests.harness.topics import admin_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEADLINE_S: Final = 90.0
DAY_MS: Final = 86_400_000
NOON_MS: Final = 1_769_860_800_000
"""2026-01-31T12:00Z."""


class Record(NamedTuple):
    """All of a record but its place."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def broker_options(bootstrap: str) -> BrokerOptions:
    return BrokerOptions(bootstrap=bootstrap, properties={})


def numbered(topic: str, start: int, end: int, *, timestamp_ms: int = NOON_MS) -> list[Record]:
    """Records that name their topic, so that none can turn up in another unseen."""
    return [
        Record(b"key-%d" % (number % 10), f"{topic}:{number}".encode(), (), timestamp_ms + number)
        for number in range(start, end)
    ]


def produce(
    bootstrap: str, topic: str, partition: int, records: Iterable[Record], *, codec: str = "none"
) -> None:
    producer: Any = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    send(producer, topic, partition, records)
    assert producer.flush(DEADLINE_S) == 0


def send(producer: Any, topic: str, partition: int, records: Iterable[Record]) -> None:
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
        )


def transactional(bootstrap: str, name: str) -> Any:
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    return producer


def ends(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The ends of partitions, once all transactions are decided: a commit returns before that."""
    with broker_options(bootstrap).client() as client:
        found = decided_ends(client, topic)
    assert len(found) == partitions
    return found


def consume(
    bootstrap: str, topic: str, partitions: int, *, start: int = 0
) -> dict[int, list[tuple[int, Record]]]:
    """Everything that is committed, in the order of each partition, with offsets."""
    wanted = ends(bootstrap, topic, partitions)
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[tuple[int, Record]]] = {number: [] for number in range(partitions)}
    unfinished = {number for number, end in wanted.items() if end > start}
    consumer.assign([TopicPartition(topic, number, start) for number in sorted(unfinished)])
    deadline = time.monotonic() + DEADLINE_S
    while unfinished:
        assert time.monotonic() < deadline, f"partitions {unfinished} of {topic} have no end"
        for message in consumer.consume(1000, timeout=0.2):
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                unfinished.discard(message.partition())
                continue
            headers = tuple((name, value) for name, value in message.headers() or ())
            record = Record(message.key(), message.value(), headers, message.timestamp()[1])
            found[message.partition()].append((message.offset(), record))
    consumer.close()
    return found


def records_of(found: dict[int, list[tuple[int, Record]]]) -> dict[int, list[Record]]:
    return {partition: [record for _, record in rows] for partition, rows in found.items()}


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Take the head of a partition away, as retention does."""
    admin = admin_client(bootstrap)
    (future,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    future.result(DEADLINE_S)


def offsets_in(rows: DataFrame) -> list[tuple[int, int]]:
    """Places in order; a record that is there twice is there twice."""
    found = rows.select("partition", "offset").collect()
    return sorted((int(row[0]), int(row[1])) for row in found)


def all_offsets(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]
