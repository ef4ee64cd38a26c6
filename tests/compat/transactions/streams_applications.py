"""Applications of Kafka Streams for tests: each in a Java of its own, and the counts that they write."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tools.kafka_distribution import KafkaDistribution, KafkaUnavailable, locate_streams

PARTITIONS: Final = 2
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

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        words = [streams.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        words += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", streams.classpath]
        words += [str(Path(__file__).with_name(f"{program}.java")), *arguments]
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

    def read_until(self, total: int, output: Path, *applications: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.total < total:
            assert all(each.poll() is None for each in applications), output.read_text()[-3000:]
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
