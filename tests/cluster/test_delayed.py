"""Delayed messages while the leaders of their store and of their topic are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from millrace.metadata.topic_names import DELAYED_TOPIC
from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.process import eventually, throughout
from tests.harness.topics import unique_name

pytestmark = pytest.mark.slow

MESSAGES = 2_000
FIRST_MS, LAST_MS = 6_000, 30_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster"),
        {"broker.session.timeout.ms": "6000", "delayed.messages.topic.num.partitions": "1"},
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


class Reader:
    """Reads a topic all the time, and notes what came when."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[bytes] = []
        self.too_early: list[tuple[bytes, float]] = []
        self._consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": unique_name("reader"),
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_ended.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                if message.error() is not None:
                    continue
                early_ms = message.timestamp()[1] - time.time() * 1000
                if early_ms > 0:
                    self.too_early.append((message.value(), early_ms))
                self.values.append(message.value())

    def end(self) -> None:
        self._is_ended.set()
        self._thread.join()
        self._consumer.close()


def produce(bootstrap: str, topic: str) -> list[bytes]:
    failures: list[object] = []

    def told(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    values = [b"%d" % number for number in range(MESSAGES)]
    for number, value in enumerate(values):
        delay_ms = FIRST_MS + (LAST_MS - FIRST_MS) * number // MESSAGES
        producer.produce(
            topic, value, partition=0, headers={"millrace-delay-ms": b"%d" % delay_ms}, on_delivery=told
        )
    assert producer.flush(60) == 0
    assert not failures, failures[:3]
    return values


def kill_leader(cluster: Cluster, killed: str, topics: tuple[str, ...]) -> None:
    """Kill the leader of a topic, and start it again when all is led by others."""
    node = cluster.partitions(killed)[0].leader
    cluster.brokers[node].kill()

    def is_led_without() -> bool:
        return all(cluster.partitions(topic)[0].leader not in (node, -1) for topic in topics)

    eventually(is_led_without, DEADLINE_S)
    cluster.brokers[node].start()
    for topic in topics:
        eventually(partial(cluster.is_in_sync, topic), DEADLINE_S)


def test_each_message_comes_once_and_not_before_its_time_though_leaders_die(cluster: Cluster) -> None:
    topic = unique_name("reminders")
    cluster.create_topic(topic, 1, {"delayed.delivery.enable": "true"})
    values = produce(cluster.bootstrap, topic)
    reader = Reader(cluster.bootstrap, topic)
    try:
        eventually(lambda: len(reader.values) > 0, DEADLINE_S)
        for killed in (DELAYED_TOPIC, topic):
            kill_leader(cluster, killed, (DELAYED_TOPIC, topic))
        eventually(lambda: len(reader.values) >= MESSAGES, 2 * DEADLINE_S)
        # One that would come a second time has its chance.
        throughout(lambda: len(reader.values) == MESSAGES, 3.0)
    finally:
        reader.end()
    assert reader.too_early == []
    assert len(reader.values) == MESSAGES
    assert sorted(reader.values) == sorted(values)
