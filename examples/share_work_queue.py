"""A work queue on a share group: each job goes to one worker, which says of each what has become of it.

Start as many workers as you like, also more than there are partitions. A job that raises NotNow is given
back, and comes again to this worker or another; one that raises Impossible is never tried again. Steps:
received, done, acknowledged, leaving. What a worker that dies has not acknowledged, others get at once. A
worker that ends in order gives back what it has not done.

Jobs that depend on each other, or whose results go to another topic, are better off with a consumer group:
see work_queue.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import Any, TextIO

from arguments import parse_arguments
from confluent_kafka import AcknowledgeType, ShareConsumer
from share_settings import set_group
from steps import step

is_asked_to_end = False


class NotNow(Exception):
    """Something that the job needs is away: it may go better later."""


class Impossible(Exception):
    """The job will never succeed."""


def main() -> None:
    arguments = parse_arguments(
        __doc__, "share-workers", "doing a job appends it and the worker to this file"
    )
    signal.signal(signal.SIGTERM, ask_to_end)
    # A new group begins with what is there already.
    set_group(arguments.bootstrap, arguments.group, {"share.auto.offset.reset": "earliest"})
    consumer = ShareConsumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            # We say ourselves what has become of each job. Without this, to poll again accepts all.
            "share.acknowledgement.mode": "explicit",
            # Few at a time: the others are for other workers.
            "max.poll.records": 10,
        }
    )
    consumer.subscribe([arguments.topic])
    last_job_at = time.monotonic()
    with open(arguments.output, "a") as output:
        while not is_asked_to_end and time.monotonic() - last_job_at < arguments.idle:
            messages = consumer.poll(0.2)
            for message in messages:
                if message.error() is not None:
                    sys.exit(str(message.error()))
                step("received")
                consumer.acknowledge(message, outcome_of(message, output))
            if messages:
                last_job_at = time.monotonic()
                step("done")
                # With the answer it is stored: none of these will ever be done again.
                consumer.commit_sync(10.0)
                step("acknowledged")
    step("leaving")
    consumer.close()


def outcome_of(message: Any, output: TextIO) -> AcknowledgeType:
    try:
        do((message.value() or b"").decode(), output)
    except NotNow:
        return AcknowledgeType.RELEASE
    except Impossible:
        return AcknowledgeType.REJECT
    return AcknowledgeType.ACCEPT


def do(job: str, output: TextIO) -> None:
    if not job.isdecimal():
        raise Impossible(job)
    output.write(f"{job} {os.getpid()}\n")
    output.flush()


def ask_to_end(_signal: int, _frame: FrameType | None) -> None:
    global is_asked_to_end  # noqa: PLW0603 - a signal handler has no other way
    is_asked_to_end = True


if __name__ == "__main__":
    main()
