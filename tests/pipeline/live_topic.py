"""A topic that is written to all the time, at a steady rate, by a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

_TICK_S: Final = 0.01


class LiveTopic:
    """Its values count up from 0 in each partition, so that a value is its record's offset."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions

    def ends(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "live-topic"})
        try:
            return [
                consumer.get_watermark_offsets(ClientPartition(self.topic, number), timeout=30)[1]
                for number in range(self.partitions)
            ]
        finally:
            consumer.close()


@contextmanager
def live_topic(bootstrap: str, topic: str, partitions: int, per_second: int) -> Iterator[LiveTopic]:
    """Writes from the first moment of the block to its end; all of it has arrived behind the block."""
    stopped = threading.Event()
    failures: list[str] = []

    def write() -> None:
        client = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        began, sent = time.monotonic(), 0
        while not stopped.wait(_TICK_S):
            due = int((time.monotonic() - began) * per_second)
            while sent < due:
                number, partition = divmod(sent, partitions)
                client.produce(topic, value=b"%d" % number, partition=partition)
                sent += 1
            client.poll(0)
        if client.flush(60):
            failures.append("not all records were taken")

    thread = threading.Thread(target=write, name="live-topic")
    thread.start()
    try:
        yield LiveTopic(bootstrap, topic, partitions)
    finally:
        stopped.set()
        thread.join(90)
    assert not failures, failures
