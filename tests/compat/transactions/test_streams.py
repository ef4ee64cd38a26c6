"""Kafka Streams with exactly_once_v2 is killed in the middle and started again: every count appears once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.compat.transactions.streams_applications import PARTITIONS, Counts, StartApplication
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

KEYS: Final = 7
COUNT: Final = 6_000
PIECE: Final = 100


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

    state = str(tmp_path / "state")
    words = ("StreamsCount", bootstrap, unique_name("streams"), state, source, target)
    counts = Counts(bootstrap, target)
    feed(range(COUNT // 2))
    first = start_application(*words)
    counts.read_until(COUNT // 20, output, first)
    # In the middle of its work, with an open transaction nearly all of the time.
    first.kill()
    first.wait(60)
    assert counts.total < COUNT // 2, "it was done before it could be killed"
    second = start_application(*words)
    feed(range(COUNT // 2, COUNT))
    counts.read_until(COUNT, output, second)
    for _ in range(3):
        counts.read_once()
    counts.close()
    expected: dict[str, list[int]] = {}
    for number in range(COUNT):
        of_key = expected.setdefault(f"key {number % KEYS}", [])
        of_key.append(len(of_key) + 1)
    assert counts.by_key == expected
