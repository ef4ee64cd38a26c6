"""A data directory moves from Apache Kafka to Millrace and back, and every record is where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.clients import CODECS, ConfluentClient, JavaClient
from tests.compat.messages import Message, Received, corpus
from tests.conftest import CheckDisks
from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.millrace import MillraceProcess
from tests.harness.process import BrokerProcess
from tests.harness.protocol import list_offset, topic_id
from tests.harness.raw import RawConnection
from tests.harness.topics import admin_client, create_topic

pytestmark = [pytest.mark.java, pytest.mark.millrace_only, pytest.mark.slow]

SETTINGS = {"log.retention.check.interval.ms": "3600000"}


@pytest.fixture
def directory(tmp_path: Path, java: JavaHost) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def running() -> Iterator[list[BrokerProcess]]:
    brokers: list[BrokerProcess] = []
    yield brokers
    for broker in brokers:
        broker.end()


def spans(topics: dict[str, list[Message]]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic, 0): (0, len(messages)) for topic, messages in topics.items()}


def by_topic(received: list[Received]) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = {}
    for message in received:
        found.setdefault(message.topic, []).append(message.as_message())
    return found


def write_corpus(broker: BrokerProcess, java: JavaHost) -> dict[str, list[Message]]:
    """One topic for each codec, in several segments, written by an idempotent Java producer."""
    topics = {}
    for codec in CODECS:
        topic = create_topic(broker.bootstrap, f"moved-{codec}", configs={"segment.bytes": str(1 << 20)})
        messages = corpus(topic, time.time_ns() // 1_000_000)
        messages += [
            Message(
                key=b"%d" % number, value=bytes([number]) * 300_000, timestamp_ms=messages[0].timestamp_ms
            )
            for number in range(8)
        ]
        JavaClient(java).write(broker.bootstrap, topic, 0, messages, codec)
        topics[topic] = messages
    return topics


def append(broker: BrokerProcess, topics: dict[str, list[Message]], mark: str) -> None:
    for topic, messages in topics.items():
        more = [
            Message(
                key=None, value=f"{mark} {topic} {number}".encode(), timestamp_ms=1_900_000_000_000 + number
            )
            for number in range(20)
        ]
        offsets = ConfluentClient().write(broker.bootstrap, topic, 0, more, "none")
        assert offsets == list(range(len(messages), len(messages) + 20))
        messages += more


def test_from_kafka_to_millrace_and_back(
    directory: Path, java: JavaHost, running: list[BrokerProcess], check_disks: CheckDisks
) -> None:
    settings = SETTINGS | {"log.message.timestamp.after.max.ms": "9223372036854775807"}
    kafka = KafkaProcess(directory, settings)
    running.append(kafka)
    kafka.start()
    topics = write_corpus(kafka, java)
    trimmed = next(iter(topics))
    java.admin(kafka.bootstrap, "deleteRecords", partitions=[{"topic": trimmed, "partition": 0, "before": 3}])
    with RawConnection((kafka.host, kafka.port)) as connection:
        ids = {topic: topic_id(connection, topic) for topic in topics}
    kafka.stop()

    millrace = MillraceProcess(directory, settings)
    running.append(millrace)
    millrace.start()
    admin = admin_client(millrace.bootstrap)
    assert set(topics) <= set(admin.list_topics(timeout=60).topics)
    assert not [name for name in admin.list_topics(timeout=60).topics if name.startswith("__cluster")]
    with RawConnection((millrace.host, millrace.port)) as connection:
        assert {topic: topic_id(connection, topic) for topic in topics} == ids
        assert list_offset(connection, trimmed, -2)["offset"] == 3
    wanted = spans(topics) | {(trimmed, 0): (3, len(topics[trimmed]))}
    received = by_topic(ConfluentClient().read(millrace.bootstrap, wanted))
    assert received == topics | {trimmed: topics[trimmed][3:]}
    append(millrace, topics, "by millrace")
    assert millrace.stop() == 0
    check_disks(millrace)

    kafka.start()
    wanted = spans(topics) | {(trimmed, 0): (3, len(topics[trimmed]))}
    received = by_topic(JavaClient(java).read(kafka.bootstrap, wanted))
    assert received == topics | {trimmed: topics[trimmed][3:]}
    append(kafka, topics, "by kafka")
    kafka.stop()
    check_disks(kafka)

    millrace.start()
    wanted = spans(topics) | {(trimmed, 0): (3, len(topics[trimmed]))}
    received = by_topic(JavaClient(java).read(millrace.bootstrap, wanted))
    assert received == topics | {trimmed: topics[trimmed][3:]}
