"""A work queue: one group, many workers, and each job goes to one of them.

Start as many workers as you like, up to the number of partitions. Steps: assigned, received, done,
committed, leaving. A worker that dies is replaced by the others after its session time-out, and what it had
not committed is done again. A worker that ends in order hands over at once, and nothing is done again.

This is a consumer group: jobs keep the order of their partition, and a slow one holds up those behind it. For
jobs that need no order, take unequal time or fail one by one, share_work_queue.py is the better queue.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from arguments import parse_arguments
from confluent_kafka import Consumer, KafkaException, Message
from steps import step

is_asked_to_end = False


def main() -> None:
    arguments = parse_arguments(__doc__, "work-queue", "doing a job appends it and the worker to this file")
    signal.signal(signal.SIGTERM, ask_to_end)
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            # Workers that stay keep their partitions when others come and go.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": arguments.session_ms,
            "heartbeat.interval.ms": arguments.session_ms // 5,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([arguments.topic], on_assign=assigned, on_revoke=revoked)
    last_job_at = time.monotonic()
    with open(arguments.output, "a") as output:
        while not is_asked_to_end and time.monotonic() - last_job_at < arguments.idle:
            message = consumer.poll(0.2)
            if message is None:
                continue
            last_job_at = time.monotonic()
            if message.error() is not None:
                sys.exit(str(message.error()))
            step("received")
            output.write(f"{text_of(message)} {os.getpid()}\n")
            output.flush()
            step("done")
            try:
                # One commit for each job: jobs are long, and none should be done twice for nothing.
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as refused:
                print(f"not committed: {refused}", file=sys.stderr)
            step("committed")
    step("leaving")
    consumer.close()


def assigned(_consumer: Consumer, partitions: list[Any]) -> None:
    print(f"worker {os.getpid()}: {len(partitions)} more partitions", file=sys.stderr)
    if partitions:
        step("assigned")


def revoked(consumer: Consumer, _partitions: list[Any]) -> None:
    """Every job that was received is done by now; one whose commit met a rebalance is committed here."""
    with suppress(KafkaException):
        consumer.commit(asynchronous=False)


def ask_to_end(_signal: int, _frame: FrameType | None) -> None:
    global is_asked_to_end  # noqa: PLW0603 - a signal handler has no other way
    is_asked_to_end = True


def text_of(message: Message) -> str:
    return (message.value() or b"").decode()


if __name__ == "__main__":
    main()
