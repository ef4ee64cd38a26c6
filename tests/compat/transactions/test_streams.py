"""Kafka Streams with exactly_once_v2 is killed in the middle and started again: every count appears once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name
from tools.kafka_distribution import KafkaDistribution, KafkaUnavailable, locate_streams

KEYS: Final = 7
PARTITIONS: Final = 2
COUNT: Final = 6_000
PIECE: Final = 100
DEADLINE_S: Final = 60.0

StartApplication = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def streams() -> KafkaDistribution:
    try:
        return locate_streams()
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def start_application(streams: KafkaDistribution, tmp_path: Path) -> Iterator[StartApplication]:
    started: list[subprocess.Popen[bytes]] = []

    def start(bootstrap: str, name: str, source: str, target: str) -> subprocess.Popen[bytes]:
        words = [streams.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        words += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", streams.classpath]
        words += [str(Path(__file__).with_name("StreamsCount.java"))]
        words += [bootstrap, name, str(tmp_path / "state"), source, target]
        with (tmp_path / "streams.out").open("ab") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(60)


class Counts:
    """The counts of every key, in the order in which a reader of committed data sees them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.by_key: dict[str, list[int]] = {}
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "never-joined",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    @property
    def total(self) -> int:
        return sum(len(counts) for counts in self.by_key.values())

    def read_until(self, total: int, application: subprocess.Popen[bytes], output: Path) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.total < total:
            assert application.poll() is None, output.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.total} of {total}: {output.read_text()[-3000:]}"
            self.read_once()

    def read_once(self) -> None:
        for message in self._consumer.consume(500, timeout=0.1):
            if message.error() is None:
                counts = self.by_key.setdefault(message.key().decode(), [])
                counts.append(int(message.value()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()

    def close(self) -> None:
        self._consumer.close()


def test_counts_are_exact_over_a_kill(
    broker: BrokerProcess, start_application: StartApplication, tmp_path: Path
) -> None:
    bootstrap, output = broker.bootstrap, tmp_path / "streams.out"
    source = create_topic(bootstrap, unique_name("words"), PARTITIONS)
    target = create_topic(bootstrap, unique_name("counts"), PARTITIONS)
    producer: Any = Producer({"bootstrap.servers": bootstrap})

    def feed(numbers: range) -> None:
        for number in numbers:
            producer.produce(source, key=f"key {number % KEYS}", value=str(number))
            if number % PIECE == 0:
                producer.flush(20)
        assert producer.flush(20) == 0

    words = (bootstrap, unique_name("streams"), source, target)
    counts = Counts(bootstrap, target)
    feed(range(COUNT // 2))
    first = start_application(*words)
    counts.read_until(COUNT // 20, first, output)
    # In the middle of its work, with an open transaction nearly all of the time.
    first.kill()
    first.wait(60)
    assert counts.total < COUNT // 2, "it was done before it could be killed"
    second = start_application(*words)
    feed(range(COUNT // 2, COUNT))
    counts.read_until(COUNT, second, output)
    for _ in range(3):
        counts.read_once()
    counts.close()
    expected: dict[str, list[int]] = {}
    for number in range(COUNT):
        of_key = expected.setdefault(f"key {number % KEYS}", [])
        of_key.append(len(of_key) + 1)
    assert counts.by_key == expected
