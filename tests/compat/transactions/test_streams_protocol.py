"""Kafka Streams with the streams group protocol (KIP-1071): two applications count words with a repartition
topic, a store and exactly_once_v2; one of them is killed, and every count appears once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.compat.transactions.streams_applications import (
    DEADLINE_S,
    PARTITIONS,
    Counts,
    StartApplication,
)
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

WORDS: Final = ("mill", "race", "water", "wheel", "stone")
LINES: Final = 1_500
PIECE: Final = 50
TOOL: Final = "org.apache.kafka.tools.streams.StreamsGroupCommand"


def feed(bootstrap: str, topic: str, numbers: range) -> None:
    producer: Any = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        line = f"{WORDS[number % len(WORDS)]} {WORDS[number * 3 % len(WORDS)]}"
        producer.produce(topic, key=str(number), value=line)
        if number % PIECE == 0:
            producer.flush(20)
    assert producer.flush(20) == 0


def wait_until(reached: Callable[[], bool], what: str, output: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: {output.read_text()[-3000:]}"
        time.sleep(0.2)


def expected_counts() -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for number in range(LINES):
        for place in (number, number * 3):
            of_word = counts.setdefault(WORDS[place % len(WORDS)], [])
            of_word.append(len(of_word) + 1)
    return counts


def test_words_are_counted_exactly_over_a_kill(
    broker: BrokerProcess, start_application: StartApplication, tmp_path: Path, java: JavaHost
) -> None:
    bootstrap, output = broker.bootstrap, tmp_path / "streams.out"
    source = create_topic(bootstrap, unique_name("lines"), PARTITIONS)
    target = create_topic(bootstrap, unique_name("counts"), PARTITIONS)
    application = unique_name("words")
    admin: Any = AdminClient({"bootstrap.servers": bootstrap})

    def start(number: int) -> subprocess.Popen[bytes]:
        state = str(tmp_path / f"state-{number}")
        return start_application(
            "StreamsWords", bootstrap, application, state, source, target, "2", str(8_000 + number)
        )

    def tool(*words: str) -> str:
        answer = java.tool(TOOL, ["--bootstrap-server", bootstrap, *words])
        return str(answer["stdout"]) + str(answer["stderr"])

    counts = Counts(bootstrap, target)
    feed(bootstrap, source, range(LINES // 2))
    first, second = start(1), start(2)
    counts.read_until(LINES // 10, output, first, second)
    wait_until(lambda: output.read_text().count(" RUNNING") >= 2, "both run", output)
    topics = admin.list_topics(timeout=10).topics
    internal = sorted(name for name in topics if name.startswith(application))
    assert [name.removeprefix(application) for name in internal] == [
        "-counts-changelog",
        "-words-repartition",
    ]
    assert [len(topics[name].partitions) for name in internal] == [PARTITIONS, PARTITIONS]
    members = tool("--describe", "--group", application, "--members")
    assert members.count("ACTIVE: ") == 4, members
    first.kill()
    first.wait(60)
    feed(bootstrap, source, range(LINES // 2, LINES))
    counts.read_until(2 * LINES, output, second)
    for _ in range(3):
        counts.read_once()
    counts.close()
    assert counts.by_key == expected_counts()
    state = tool("--describe", "--group", application, "--state")
    assert "Stable" in state, state
    assert application in tool("--list")
    second.terminate()
    second.wait(60)
    assert "Empty" in tool("--list", "--state")
    assert "successful" in tool("--delete", "--group", application).lower()
