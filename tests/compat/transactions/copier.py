"""Copies one topic to another in transactions, until it is killed; and a nursery that starts copiers fast.

Started as `python -m tests.compat.transactions.copier`. The nursery has imported everything and opened
nothing: for each JSON line on its standard input it forks a copier and tells its process id; a line with a
process id waits for that copier's end. Records keep their partition, so that order can be compared as well.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition


def copy(bootstrap: str, source: str, target: str, name: str, records_at_once: int) -> None:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"copier of {source}",
            # A static member has its partitions back at once after a death.
            "group.instance.id": name,
            "session.timeout.ms": 6_000,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    producer: Any = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    # Before the first fetch of offsets: it ends what a predecessor left open.
    producer.init_transactions(20)
    consumer.subscribe([source])
    while True:
        messages = consumer.consume(records_at_once, timeout=0.02)
        for message in messages:
            if message.error() is not None and message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
        if messages:
            copy_batch(consumer, producer, target, messages)


def copy_batch(consumer: Any, producer: Any, target: str, messages: list[Any]) -> None:
    ends: dict[tuple[str, int], int] = {}
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, value=message.value(), partition=message.partition())
        ends[message.topic(), message.partition()] = message.offset() + 1
    offsets = [TopicPartition(*where, offset) for where, offset in ends.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 10)
    producer.commit_transaction(10)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            os.waitpid(request["wait"], 0)
            continue
        child = os.fork()
        if child == 0:
            try:
                copy(**request)
            except BaseException as failed:  # noqa: BLE001 - the end of a process: say why and leave
                print(f"copier failed: {failed!r}", file=sys.stderr, flush=True)
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    main()
