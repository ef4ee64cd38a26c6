"""Exactly once: results and offsets are kept in the same database and change in the same transaction.

The consumer joins no group and commits nothing to the broker. It assigns all partitions to itself and starts
where the database says. Steps: assigned, received, counted, stored, committed. Dying before the transaction's
commit undoes results and offset together; dying after it keeps both. The same code works with PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import sys
import time

from arguments import parse_arguments
from confluent_kafka import Consumer, Message, TopicPartition
from steps import step

SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
);
"""


class AnotherReader(Exception):
    """The stored offset is not where this process left it: somebody else writes into this database."""


def main() -> None:
    arguments = parse_arguments(__doc__, "unused", "the SQLite database")
    database = sqlite3.connect(arguments.output, isolation_level=None, timeout=10)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(SCHEMA)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,  # librdkafka wants a group; we never join it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign(positions(database, consumer, arguments.topic))
    step("assigned")
    last_message_at = time.monotonic()
    while time.monotonic() - last_message_at < arguments.idle:
        messages = consumer.consume(10, timeout=0.2)
        if not messages:
            continue
        last_message_at = time.monotonic()
        for message in messages:
            if message.error() is not None:
                sys.exit(str(message.error()))
        step("received")
        process(database, messages)
        step("committed")
    consumer.close()


def positions(database: sqlite3.Connection, consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Every partition of the topic at its stored offset, or at the beginning."""
    stored = dict(
        database.execute("SELECT partition, next_offset FROM offsets WHERE topic = ?", (topic,)).fetchall()
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return [TopicPartition(topic, number, stored.get(number, 0)) for number in partitions]


def process(database: sqlite3.Connection, messages: list[Message]) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        for message in messages:
            database.execute(
                "INSERT INTO counts VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1",
                ((message.value() or b"").decode(),),
            )
            step("counted")
            store_offset(database, message)
        step("stored")
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise


def store_offset(database: sqlite3.Connection, message: Message) -> None:
    """Move the offset over this message, if it still stands before it."""
    where, offset = (message.topic(), message.partition()), message.offset()
    assert offset is not None, "a message that was received has an offset"
    found = database.execute(
        "SELECT next_offset FROM offsets WHERE topic = ? AND partition = ?", where
    ).fetchone()
    # A compacted or trimmed topic may skip offsets; going back is what must never happen.
    if found is not None and found[0] > offset:
        raise AnotherReader(f"{where}: at {found[0]}, and this process is at {offset}")
    database.execute(
        "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT (topic, partition) "
        "DO UPDATE SET next_offset = excluded.next_offset",
        (*where, offset + 1),
    )


if __name__ == "__main__":
    main()
