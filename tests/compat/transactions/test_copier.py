"""A copier that works in transactions is killed many times: its output equals its input exactly."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.compat.transactions.reading import Reader, read_all, wait_until_stable
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name
from tools.kafka_distribution import PROJECT_ROOT

PARTITIONS: Final = 2
LIFE_S: Final = (0.05, 0.5)
RECORDS_PER_LIFE: Final = 300
LAST_COPY_S: Final = 60.0


class Nursery:
    """Copiers without the second that it takes to start Python and to load its libraries."""

    def __init__(self, errors_path: Path) -> None:
        self._errors_path = errors_path
        with errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.compat.transactions.copier"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=PROJECT_ROOT,
                start_new_session=True,
            )

    def start_copier(self, *, records_at_once: int, **arguments: str) -> int:
        self._tell({**arguments, "records_at_once": records_at_once})
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def kill(self, copier: int) -> None:
        os.kill(copier, signal.SIGKILL)
        self._tell({"wait": copier})

    def failures(self) -> list[str]:
        return [
            line for line in self._errors_path.read_text().splitlines() if line.startswith("copier failed")
        ]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _tell(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "copiers.err")
    yield nursery
    nursery.close()


class Feed:
    """Numbered records into the input, some for every life of the copier."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic = topic
        self.written: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}

    def write(self, count: int) -> None:
        for _ in range(count // PARTITIONS):
            for partition, values in self.written.items():
                value = f"{self._topic} {partition} {len(values)}"
                self._producer.produce(self._topic, value=value, partition=partition)
                values.append(value)
        assert self._producer.flush(20) == 0


@pytest.mark.parametrize("kills", [30, pytest.param(100, marks=pytest.mark.soak)])
def test_a_copier_that_is_killed_again_and_again_copies_exactly(
    broker: BrokerProcess, nursery: Nursery, kills: int
) -> None:
    bootstrap, dice = broker.bootstrap, random.Random(7)
    source = create_topic(bootstrap, unique_name("source"), PARTITIONS)
    target = create_topic(bootstrap, unique_name("target"), PARTITIONS)
    copies = [(target, number) for number in range(PARTITIONS)]
    copier = {"bootstrap": bootstrap, "source": source, "target": target, "name": unique_name("copier")}
    feed = Feed(bootstrap, source)
    reader = Reader(bootstrap, copies)
    lives_with_progress, seen = 0, 0
    for _ in range(kills):
        feed.write(RECORDS_PER_LIFE)
        process = nursery.start_copier(**copier, records_at_once=25)
        time.sleep(dice.uniform(*LIFE_S))
        nursery.kill(process)
        reader.poll(0.0)
        now = sum(map(len, reader.values.values()))
        lives_with_progress += now > seen
        seen = now
    assert nursery.failures() == [], "a copier ended by itself"
    assert lives_with_progress > kills / 10, "it was hardly ever killed in the middle of its work"
    # What is left is copied in larger pieces: clients of Kafka pause between transactions.
    last = nursery.start_copier(**copier, records_at_once=2_000)
    total = sum(map(len, feed.written.values()))
    deadline = time.monotonic() + LAST_COPY_S
    while sum(map(len, reader.values.values())) < total and time.monotonic() < deadline:
        reader.poll(0.2)
    reader.close()
    nursery.kill(last)
    wait_until_stable(bootstrap, copies)
    # A second reader: the first one saw everything come, this one sees what is there in the end.
    for values in (reader.values, read_all(bootstrap, copies)):
        for number, expected in feed.written.items():
            assert values[target, number] == expected, f"partition {number}"
