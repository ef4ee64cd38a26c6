"""The examples of transactions keep what they promise when they are killed at every one of their steps."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.examples.conftest import KILLED, SESSION_MS, StartExample
from tests.harness.process import BrokerProcess, eventually, throughout
from tests.harness.topics import create_topic, unique_name
from tools.kafka_distribution import PROJECT_ROOT

COUNT: Final = 40
DEADLINE_S: Final = 30.0


def run_example(
    name: str, broker: BrokerProcess, *words: str, die_at: str = "", die_after: int = 0
) -> subprocess.Popen[bytes]:
    environment = os.environ | {"EXAMPLE_DIE_AT": die_at, "EXAMPLE_DIE_AFTER": str(die_after)}
    command = [sys.executable, str(PROJECT_ROOT / "examples" / f"{name}.py")]
    command += ["--bootstrap", broker.bootstrap, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def read_committed(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            # The end of a partition is told when a fetch comes back empty.
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values, ended = [], 0
    while ended < partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is None:
            values.append(message.value().decode())
        else:
            ended += 1
    consumer.close()
    return values


@pytest.mark.parametrize("die_at", ["initialised", "begun", "written", "flushed", "committed"])
def test_an_order_comes_with_its_payment_and_only_once(
    broker: BrokerProcess, tmp_path: Path, die_at: str
) -> None:
    orders, payments = unique_name("orders"), unique_name("payments")
    source = tmp_path / "orders.txt"
    source.write_text("".join(f"order {number}\n" for number in range(COUNT)))
    words = ["--orders", orders, "--payments", payments, "--transactional-id", unique_name("desk")]
    words += ["--input", str(source)]
    die_after = 0 if die_at == "initialised" else 5
    doomed = run_example("atomic_multi_topic_write", broker, *words, die_at=die_at, die_after=die_after)
    assert doomed.wait(30) == KILLED
    paid = [payment.removeprefix("payment of ") for payment in read_committed(broker.bootstrap, payments)]
    assert read_committed(broker.bootstrap, orders) == paid
    assert run_example("atomic_multi_topic_write", broker, *words).wait(30) == 0
    assert read_committed(broker.bootstrap, orders) == [f"order {number}" for number in range(COUNT)]
    assert read_committed(broker.bootstrap, payments) == [
        f"payment of order {number}" for number in range(COUNT)
    ]


@pytest.mark.parametrize("die_at", ["initialised", "received", "produced", "offsets", "committed"])
def test_every_message_is_transformed_exactly_once(broker: BrokerProcess, die_at: str) -> None:
    source = create_topic(broker.bootstrap, unique_name("raw"), 2)
    target = create_topic(broker.bootstrap, unique_name("transformed"), 2)
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(COUNT):
        producer.produce(source, value=f"word {number}", partition=number % 2)
    assert producer.flush(20) == 0
    words = ["--topic", source, "--output", target, "--group", unique_name("transformer")]
    words += ["--transactional-id", unique_name("transformer"), "--session-ms", str(SESSION_MS)]
    words += ["--idle", "60"]
    die_after = 0 if die_at == "initialised" else 1
    doomed = run_example("consume_transform_produce", broker, *words, die_at=die_at, die_after=die_after)
    assert doomed.wait(30) == KILLED
    successor = run_example("consume_transform_produce", broker, *words)
    try:
        eventually(lambda: len(read_committed(broker.bootstrap, target, 2)) >= COUNT, DEADLINE_S, 0.2)
    finally:
        successor.kill()
        successor.wait(30)
    expected = sorted(f"WORD {number}" for number in range(COUNT))
    assert sorted(read_committed(broker.bootstrap, target, 2)) == expected


@pytest.mark.parametrize("die_at", ["assigned", "received", "inserted", "stored"])
def test_committed_messages_end_in_the_table_exactly_once(
    start_example: StartExample, broker: BrokerProcess, tmp_path: Path, die_at: str
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("table"), 2)
    write_and_regret(broker.bootstrap, topic)
    database = tmp_path / "messages.db"
    for _ in range(2):
        start_example(
            "exactly_once_to_sqlite",
            topic,
            database,
            group="unused",
            die_at=die_at,
            die_after={"assigned": 0, "inserted": 7}.get(die_at, 0),
        ).wait_until_it_died()
    start_example("exactly_once_to_sqlite", topic, database, group="unused")
    eventually(lambda: len(values_in(database)) >= COUNT, DEADLINE_S)
    # A repetition, or something that was aborted, would come within this time.
    throughout(lambda: len(values_in(database)) == COUNT, 0.3)
    assert sorted(values_in(database)) == sorted(f"kept {number}" for number in range(COUNT))


def write_and_regret(bootstrap: str, topic: str) -> None:
    """Transactions of four messages, every second one aborted."""
    producer: Any = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique_name("writer")})
    producer.init_transactions(30)
    for start in range(0, COUNT, 4):
        for verb, end in (("kept", producer.commit_transaction), ("regretted", producer.abort_transaction)):
            producer.begin_transaction()
            for number in range(start, start + 4):
                producer.produce(topic, value=f"{verb} {number}", partition=number % 2)
            assert producer.flush(20) == 0
            end(30)


def values_in(database: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return [value for (value,) in connection.execute("SELECT value FROM messages")]
    finally:
        connection.close()
