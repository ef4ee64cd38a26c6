"""Exactly once into a database: a topic that is written in transactions ends in a table, each message once.

The reader sees committed transactions only, and keeps its offsets in the same database as the results, where
both change in one SQL transaction. Steps: assigned, received, inserted, stored. Dying at any of them leaves
the database at the last SQL commit, and the next run goes on from the offsets found there.
"""

from __future__ import annotations

import sqlite3
import sys
import time

from arguments import parse_arguments
from confluent_kafka import Consumer, Message, TopicPartition
from steps import step

SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    topic TEXT, partition INTEGER, offset INTEGER, key TEXT, value TEXT,
    PRIMARY KEY (topic, partition, offset)
);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
);
"""


def main() -> None:
    arguments = parse_arguments(__doc__, "unused", "the SQLite database")
    database = sqlite3.connect(arguments.output, isolation_level=None, timeout=10)
    database.execute("PRAGMA journal_mode=WAL")
    database.executescript(SCHEMA)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,  # librdkafka wants a group; we never join it
            # Without it, messages of aborted transactions would end in the table as well.
            "isolation.level": "read_committed",
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
        # The block commits at its end, and rolls back if anything in it fails.
        with database:
            database.execute("BEGIN IMMEDIATE")
            store(database, messages)
        step("stored")
    consumer.close()


def positions(database: sqlite3.Connection, consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Every partition of the topic at its stored offset, or at the beginning."""
    stored = dict(
        database.execute("SELECT partition, next_offset FROM offsets WHERE topic = ?", (topic,)).fetchall()
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return [TopicPartition(topic, number, stored.get(number, 0)) for number in partitions]


def store(database: sqlite3.Connection, messages: list[Message]) -> None:
    for message in messages:
        offset = message.offset()
        assert offset is not None, "a message that was received has an offset"
        where = (message.topic(), message.partition())
        # The primary key refuses a second process that reads the same topic into this database.
        database.execute(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
            (*where, offset, text(message.key()), text(message.value())),
        )
        step("inserted")
        database.execute(
            "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT (topic, partition) "
            "DO UPDATE SET next_offset = excluded.next_offset",
            (*where, offset + 1),
        )


def text(data: str | bytes | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


if __name__ == "__main__":
    main()
