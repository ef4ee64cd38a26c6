"""The examples keep what they promise when they are killed at every one of their steps."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer

from tests.examples.conftest import StartExample
from tests.harness.process import BrokerProcess, eventually, throughout
from tests.harness.topics import admin_client, create_topic, unique_name

COUNT: Final = 60
BATCH_MAX: Final = 10
"""The examples take at most so many messages at once."""
DEADLINE_S: Final = 30.0


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    return filled_topic(broker, partitions=1)


def filled_topic(broker: BrokerProcess, partitions: int) -> str:
    name = create_topic(broker.bootstrap, unique_name("example"), partitions)
    write_numbers(broker, name, range(COUNT), partitions)
    return name


def numbers_in(output: Path) -> list[int]:
    """What was processed, in order; the last line may be half written."""
    text = output.read_text() if output.exists() else ""
    return [int(line.split()[0]) for line in text.split("\n")[:-1]]


def run_killed_then_whole(
    start: StartExample, name: str, topic: str, output: Path, die_at: str, die_after: int
) -> tuple[list[int], list[int]]:
    """What the run that died had processed, and what both together have in the end."""
    group = unique_name(name)
    start(name, topic, output, group=group, die_at=die_at, die_after=die_after).wait_until_it_died()
    first = numbers_in(output)
    start(name, topic, output, group=group)
    eventually(lambda: COUNT - 1 in numbers_in(output), DEADLINE_S)
    return first, numbers_in(output)


@pytest.mark.parametrize("die_at", ["received", "committed", "processed"])
def test_at_most_once_never_repeats(
    start_example: StartExample, topic: str, tmp_path: Path, die_at: str
) -> None:
    die_after = 12 if die_at == "processed" else 1
    first, both = run_killed_then_whole(
        start_example, "at_most_once", topic, tmp_path / "out", die_at, die_after
    )
    assert max(Counter(both).values()) == 1, "processed twice"
    missing = sorted(set(range(COUNT)) - set(both))
    if die_at == "received":
        assert missing == [], "nothing was committed yet, so nothing may be lost"
    else:
        # Exactly what was in hand: it follows what was processed, without a gap, and is one batch at most.
        assert 1 <= len(missing) <= BATCH_MAX
        assert missing == list(range(len(first), len(first) + len(missing)))


@pytest.mark.parametrize("die_at", ["received", "processed", "committed"])
def test_at_least_once_never_loses(
    start_example: StartExample, topic: str, tmp_path: Path, die_at: str
) -> None:
    die_after = 12 if die_at == "processed" else 1
    first, both = run_killed_then_whole(
        start_example, "at_least_once", topic, tmp_path / "out", die_at, die_after
    )
    assert set(both) == set(range(COUNT)), "lost"
    repeated = sorted(number for number, times in Counter(both).items() if times > 1)
    assert max(Counter(both).values()) <= 2
    if die_at == "processed":
        # Exactly what was processed and not committed: the end of the first run, one batch at most.
        assert 1 <= len(repeated) <= BATCH_MAX
        assert repeated == first[-len(repeated) :]
    else:
        assert repeated == [], "everything that was processed was committed, so nothing may come again"


@pytest.mark.parametrize("die_at", ["assigned", "received", "counted", "stored", "committed"])
def test_external_offsets_count_exactly_once(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path, die_at: str
) -> None:
    topic = filled_topic(broker, partitions=3)
    database = tmp_path / "counts.db"
    die_after = {"assigned": 0, "counted": 13}.get(die_at, 1)
    for _ in range(2):
        start_example(
            "external_offsets_sqlite", topic, database, group="unused", die_at=die_at, die_after=die_after
        ).wait_until_it_died()
    start_example("external_offsets_sqlite", topic, database, group="unused")
    eventually(lambda: sum(_counts(database).values()) >= COUNT, DEADLINE_S)
    # A repetition would come within this time, since everything that is left is sent at once.
    throughout(lambda: sum(_counts(database).values()) == COUNT, 0.3)
    assert _counts(database) == {str(number): 1 for number in range(COUNT)}
    with sqlite3.connect(database) as connection:
        offsets = connection.execute("SELECT partition, next_offset FROM offsets").fetchall()
    connection.close()
    assert sorted(offsets) == [(0, 20), (1, 20), (2, 20)]


def _counts(database: Path) -> dict[str, int]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return dict(connection.execute("SELECT word, count FROM counts").fetchall())
    finally:
        connection.close()


@pytest.mark.parametrize("die_at", ["assigned", "received", "done", "committed", "leaving"])
def test_a_dead_worker_is_replaced_and_no_job_is_lost(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path, die_at: str
) -> None:
    topic, output, group = filled_topic(broker, partitions=4), tmp_path / "out", unique_name("workers")
    doomed = start_example(
        "work_queue",
        topic,
        output,
        group=group,
        die_at=die_at,
        die_after=0 if die_at in ("assigned", "leaving") else 2,
    )
    if die_at == "leaving":
        eventually(lambda: len(numbers_in(output)) == COUNT, DEADLINE_S)
        doomed.ask_to_stop()
        doomed.wait_until_it_died()
    else:
        doomed.wait_until_it_died()
    before = Counter(numbers_in(output))
    start_example("work_queue", topic, output, group=group)
    start_example("work_queue", topic, output, group=group)
    more = write_numbers(broker, topic, range(COUNT, 2 * COUNT))
    eventually(lambda: set(numbers_in(output)) == set(range(COUNT)) | more, DEADLINE_S)
    done = Counter(numbers_in(output))
    repeated = {number for number, times in done.items() if times > 1}
    # One commit for each job: only the job in hand is done again, and only if it died before its commit.
    assert len(repeated) == (1 if die_at == "done" else 0), repeated
    assert repeated <= set(before)


def write_numbers(broker: BrokerProcess, topic: str, numbers: range, partitions: int = 4) -> set[int]:
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce(topic, value=str(number), partition=number % partitions)
    assert producer.flush(20) == 0
    return set(numbers)


def test_many_workers_share_the_jobs_and_hand_over_in_order(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("example"), 4)
    output, group = tmp_path / "out", unique_name("workers")
    workers = [start_example("work_queue", topic, output, group=group) for _ in range(3)]
    eventually(lambda: sorted(_shares(broker, group)) == [1, 1, 2], DEADLINE_S)
    first = write_numbers(broker, topic, range(COUNT))
    eventually(lambda: set(numbers_in(output)) == first, DEADLINE_S)
    assert len(_workers_in(output)) == 3, "not every worker got something to do"
    workers[0].stop()
    second = write_numbers(broker, topic, range(COUNT, 2 * COUNT))
    eventually(lambda: set(numbers_in(output)) == first | second, DEADLINE_S)
    assert max(Counter(numbers_in(output)).values()) == 1, "a worker that ended in order left work behind"


def _shares(broker: BrokerProcess, group: str) -> list[int]:
    """How many partitions each member has."""
    admin = admin_client(broker.bootstrap)
    try:
        described = admin.describe_consumer_groups([group])[group].result(10)
    except KafkaException:
        return []
    return [len(member.assignment.topic_partitions) for member in described.members]


def _workers_in(output: Path) -> set[str]:
    text = output.read_text() if output.exists() else ""
    return {line.split()[1] for line in text.split("\n")[:-1]}
