"""Four thousand partitions on one broker: bounded open files, measured memory, a start that stays quick."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from tests.compat.clients import ConfluentClient
from tests.harness.topics import create_topic, unique_name
from tests.integration.conftest import StartMillrace

PARTITIONS = 4_000
OPEN_FILES_MAX = 500


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_thousand_partitions(
    start_millrace: StartMillrace, record_property: Callable[[str, object], None]
) -> None:
    broker = start_millrace({"log.open.files.max": str(OPEN_FILES_MAX)})
    empty = broker.resident_bytes()
    topic = create_topic(broker.bootstrap, unique_name("wide"), PARTITIONS)
    idle = broker.resident_bytes()
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 100_000}
    )
    failures: list[str] = []
    for partition in range(PARTITIONS):
        value = f"{topic} {partition}".encode()
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failures, failures[:3]
    used = broker.resident_bytes()
    assert broker.open_files() < OPEN_FILES_MAX + 100

    assert broker.stop(60) == 0
    broker.start(60)
    received = ConfluentClient().read(
        broker.bootstrap, {(topic, partition): (0, 1) for partition in range(PARTITIONS)}
    )
    assert sorted(message.partition for message in received) == list(range(PARTITIONS))
    assert all(message.value == f"{topic} {message.partition}".encode() for message in received)
    assert broker.open_files() < OPEN_FILES_MAX + 100
    figures = {
        "bytes_per_idle_partition": (idle - empty) // PARTITIONS,
        "bytes_per_written_partition": (used - empty) // PARTITIONS,
        "start_s": round(broker.started_in_s, 2),
    }
    print(figures)
    record_property("figures", figures)
    assert figures["bytes_per_idle_partition"] < 10_000, figures
    assert figures["bytes_per_written_partition"] < 30_000, figures
    assert broker.started_in_s < 20

    broker.kill()
    started = time.monotonic()
    broker.start(60)
    assert time.monotonic() - started < 40
