"""Exactly once from topic to topic: each batch of results and the offsets that it took are one transaction.

Steps: initialised, received, produced, offsets, committed. Dying before the commit undoes results and offsets
together; the next run starts from the last offsets that count. Readers of the output must use
`isolation.level=read_committed`, as this one does for its input.
"""

from __future__ import annotations

import argparse
import sys
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from steps import step


def main() -> None:
    arguments = parse_arguments()
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "session.timeout.ms": arguments.session_ms,
            "heartbeat.interval.ms": arguments.session_ms // 5,
            # Offsets are committed by the producer, in its transaction.
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    # One id for each process that runs at the same time; the same one again after a restart.
    producer = Producer(
        {"bootstrap.servers": arguments.bootstrap, "transactional.id": arguments.transactional_id}
    )
    producer.init_transactions(30)
    step("initialised")
    consumer.subscribe([arguments.topic])
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
        process(consumer, producer, arguments.output, messages)
    consumer.close()


def process(consumer: Consumer, producer: Producer, output: str, messages: list[Message]) -> None:
    producer.begin_transaction()
    try:
        for message in messages:
            producer.produce(output, key=message.key(), value=transform(message.value() or b""))
        step("produced")
        # The group's metadata let the broker refuse a member whose partitions have gone to another.
        producer.send_offsets_to_transaction(next_offsets(messages), consumer.consumer_group_metadata(), 30)
        step("offsets")
        producer.commit_transaction(30)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            sys.exit(f"fenced: {failed}")
        producer.abort_transaction(30)
        go_back(consumer, messages)
    step("committed")


def transform(value: bytes) -> bytes:
    return value.decode().upper().encode()


def next_offsets(messages: list[Message]) -> list[TopicPartition]:
    ends: dict[tuple[str | None, int | None], int] = {}
    for message in messages:
        offset = message.offset()
        assert offset is not None, "a message that was received has an offset"
        ends[message.topic(), message.partition()] = offset + 1
    return [TopicPartition(str(topic), partition or 0, end) for (topic, partition), end in ends.items()]


def go_back(consumer: Consumer, messages: list[Message]) -> None:
    """Read an aborted batch again."""
    first: dict[tuple[str | None, int | None], Message] = {}
    for message in messages:
        first.setdefault((message.topic(), message.partition()), message)
    for message in first.values():
        consumer.seek(TopicPartition(str(message.topic()), message.partition() or 0, message.offset() or 0))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", required=True, help="the input")
    parser.add_argument("--output", required=True, metavar="TOPIC", help="where the results go")
    parser.add_argument("--group", default="transformer")
    parser.add_argument("--transactional-id", default="transformer-1")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without messages until the end")
    parser.add_argument("--session-ms", type=int, default=10_000, help="time until a dead member is replaced")
    return parser.parse_args()


if __name__ == "__main__":
    main()
