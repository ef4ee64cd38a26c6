"""Atomic write: an order and its payment go to two topics, and readers see both of them or neither.

Each line of `--input` is one order. Steps: initialised, begun, written, flushed, committed. Dying before the
commit undoes the order in hand. The next run with the same `--transactional-id` fences off the old one, reads
how far it came, and goes on behind it, so that every order is written exactly once.
"""

from __future__ import annotations

import argparse
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from steps import step


def main() -> None:
    arguments = parse_arguments()
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            # The name of this task, not of this process: whoever has it last is the only one to write.
            "transactional.id": arguments.transactional_id,
        }
    )
    producer.init_transactions(30)
    step("initialised")
    # From the initialisation on nobody else adds to the topic, and nothing is left open in it.
    done = orders_written(arguments.bootstrap, arguments.orders)
    with open(arguments.input) as lines:
        for number, line in enumerate(lines):
            if number >= done:
                write_order(producer, arguments, number, line.rstrip("\n"))


def write_order(producer: Producer, arguments: argparse.Namespace, number: int, order: str) -> None:
    producer.begin_transaction()
    step("begun")
    try:
        producer.produce(arguments.orders, key=str(number), value=order, partition=0)
        step("written")
        producer.produce(arguments.payments, key=str(number), value=f"payment of {order}", partition=0)
        producer.flush()
        step("flushed")
        producer.commit_transaction(30)
    except KafkaException as failed:
        if failed.args[0].txn_requires_abort():
            producer.abort_transaction(30)
        sys.exit(f"order {number}: {failed}")
    step("committed")


def orders_written(bootstrap: str, topic: str) -> int:
    """How many orders are committed: one more than the number of the last one."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",  # librdkafka wants a group; we never join it
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    last = -1
    while True:
        message = reader.poll(10)
        if message is None:
            sys.exit(f"{topic} cannot be read")
        error = message.error()
        if error is None:
            last = int(message.key() or b"")
        elif error.code() == error._PARTITION_EOF:
            break
        else:
            sys.exit(str(error))
    reader.close()
    return last + 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--orders", default="orders", metavar="TOPIC")
    parser.add_argument("--payments", default="payments", metavar="TOPIC")
    parser.add_argument("--transactional-id", default="order-desk")
    parser.add_argument("--input", required=True, metavar="FILE", help="one order on each line")
    arguments = parser.parse_args()
    create_missing(arguments.bootstrap, [arguments.orders, arguments.payments])
    return arguments


def create_missing(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    missing = [topic for topic in topics if topic not in admin.list_topics(timeout=10).topics]
    if missing:
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in missing]).values():
            created.result()


if __name__ == "__main__":
    main()
