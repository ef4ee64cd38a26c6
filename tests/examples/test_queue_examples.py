"""The examples of queues keep what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.examples.conftest import StartExample
from tests.examples.test_examples import COUNT, DEADLINE_S, filled_topic, numbers_in, write_numbers
from tests.harness.process import BrokerProcess, eventually, throughout
from tests.harness.topics import create_topic, unique_name

pytestmark = pytest.mark.millrace_only
MILLRACE: Final = str(Path(sys.executable).with_name("millrace"))


@pytest.mark.parametrize("die_at", ["received", "done", "acknowledged"])
def test_a_dead_worker_loses_nothing_and_what_was_acknowledged_is_done_once(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path, die_at: str
) -> None:
    topic, output, group = filled_topic(broker, partitions=2), tmp_path / "out", unique_name("workers")
    start_example(
        "share_work_queue", topic, output, group=group, die_at=die_at, die_after=1
    ).wait_until_it_died()
    before = set(numbers_in(output))
    start_example("share_work_queue", topic, output, group=group)
    start_example("share_work_queue", topic, output, group=group)
    eventually(lambda: set(numbers_in(output)) == set(range(COUNT)), DEADLINE_S)
    repeated = {number for number, times in Counter(numbers_in(output)).items() if times > 1}
    assert repeated <= before
    if die_at == "acknowledged":
        assert not repeated, "what was acknowledged came again"


def test_what_fails_is_tried_again_later_and_put_aside_in_the_end(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic, output, group = filled_topic(broker, partitions=1), tmp_path / "out", unique_name("retries")
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, "no number")
    producer.flush(20)
    start_example("share_retries", topic, output, group=group)
    eventually(lambda: len(numbers_in(output)) == COUNT, DEADLINE_S)
    pairs = [line.split() for line in output.read_text().splitlines()]
    deliveries = {int(job): int(count) for job, count in pairs}
    assert deliveries == {number: 3 if number % 10 == 0 else 1 for number in range(COUNT)}
    eventually(lambda: _values(broker, f"dlq.{topic}") == ["no number"], DEADLINE_S)


def test_reminders_come_when_they_are_due_and_not_when_they_were_cancelled(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("reminders"), 1, {"delayed.delivery.enable": "true"})
    output = tmp_path / "out"
    start_example("delayed_reminder", topic, output, group=unique_name("reminders"))
    eventually(lambda: output.exists() and "in 3 s" in output.read_text(), DEADLINE_S)
    lines = dict(line.split(": ") for line in output.read_text().splitlines())
    assert list(lines) == ["in 1 s", "in 3 s"]
    assert all(0 <= int(late_ms) < 10_000 for late_ms in lines.values())


def test_the_jobs_of_a_key_are_done_in_order_by_many_workers(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("ordered"), 1)
    output, group = tmp_path / "out", unique_name("ordered")
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(COUNT):
        producer.produce(topic, str(number), key=f"k{number % 4}")
    assert producer.flush(20) == 0
    for _ in range(3):
        start_example("key_ordered_workers", topic, output, group=group)
    eventually(lambda: len(numbers_in(output)) == COUNT, DEADLINE_S)
    throughout(lambda: len(numbers_in(output)) == COUNT, 0.3)
    for key in range(4):
        assert [number for number in numbers_in(output) if number % 4 == key] == list(range(key, COUNT, 4))


def test_more_workers_than_partitions_share_the_jobs(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("example"), 1)
    output, group = tmp_path / "out", unique_name("workers")
    workers = [start_example("share_work_queue", topic, output, group=group) for _ in range(2)]
    eventually(lambda: _members(broker, group) == 2, DEADLINE_S)
    written = write_numbers(broker, topic, range(COUNT), 1)
    eventually(lambda: set(numbers_in(output)) == written, DEADLINE_S)
    workers[0].stop()
    more = write_numbers(broker, topic, range(COUNT, 2 * COUNT), 1)
    eventually(lambda: set(numbers_in(output)) == written | more, DEADLINE_S)
    assert max(Counter(numbers_in(output)).values()) == 1, "a worker that ended in order left work behind"


def _values(broker: BrokerProcess, topic: str) -> list[str]:
    return [each["value"] for each in _told(broker, "consume", topic, "-q")]


def _members(broker: BrokerProcess, group: str) -> int:
    return sum(len(each["members"]) for each in _told(broker, "queue", "describe", group))


def _told(broker: BrokerProcess, *words: str) -> list[dict[str, Any]]:
    command = [MILLRACE, *words, "--json", "-b", broker.bootstrap]
    told = subprocess.run(command, capture_output=True, timeout=30, check=False)
    return [json.loads(line) for line in told.stdout.splitlines()]
