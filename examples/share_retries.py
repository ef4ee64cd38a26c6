"""Retries with back-off, and dead letters: the broker waits, counts, and puts aside what never succeeds.

Every job whose number can be divided by ten fails at its first two deliveries, and one that is no number
fails always. The broker delivers what was released again, after 200 ms, then 400 ms and so on, and after
three deliveries writes it to the topic dlq.TOPIC, which is made here. `millrace queue dead-letters GROUP`
counts what is there, `millrace queue redrive GROUP` brings it back. Steps: received, done, acknowledged.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from arguments import parse_arguments
from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic
from share_settings import set_group
from steps import step

FAILURES = 2


def main() -> None:
    arguments = parse_arguments(__doc__, "retries", "doing a job appends it and its delivery to this file")
    dead_letters = f"dlq.{arguments.topic}"
    create_dead_letter_topic(arguments.bootstrap, dead_letters)
    set_group(
        arguments.bootstrap,
        arguments.group,
        {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": "3",
            "share.retry.backoff.ms": "200",
            "errors.deadletterqueue.topic.name": dead_letters,
        },
    )
    consumer = ShareConsumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([arguments.topic])
    last_job_at = time.monotonic()
    with open(arguments.output, "a") as output:
        while time.monotonic() - last_job_at < arguments.idle:
            messages = consumer.poll(0.2)
            for message in messages:
                if message.error() is not None:
                    sys.exit(str(message.error()))
                step("received")
                if fails(message):
                    # No sleeping here, and no counting: the record comes again when its time has come.
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    output.write(f"{text_of(message)} {message.delivery_count()}\n")
                    output.flush()
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if messages:
                last_job_at = time.monotonic()
                step("done")
                consumer.commit_sync(10.0)
                step("acknowledged")
    consumer.close()


def fails(message: Any) -> bool:
    job = text_of(message)
    if not job.isdecimal():
        return True
    return int(job) % 10 == 0 and message.delivery_count() <= FAILURES


def text_of(message: Any) -> str:
    return (message.value() or b"").decode()


def create_dead_letter_topic(bootstrap: str, name: str) -> None:
    """Groups may write dead letters only to topics that allow it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, num_partitions=1, config={"errors.deadletterqueue.group.enable": "true"})
    try:
        admin.create_topics([topic])[name].result(30)
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


if __name__ == "__main__":
    main()
