"""Workers that keep the order of each key: one job of a customer at a time, and many customers at once.

Start as many as you like. share.order=key makes the broker hold back a record until all with the same key
before it are done; other keys go on. Steps: received, done, acknowledged. Whatever dies, the jobs of a key
are done in their order; one that was done and not acknowledged is done again before the next.
"""

from __future__ import annotations

import os
import sys
import time

from arguments import parse_arguments
from confluent_kafka import AcknowledgeType, ShareConsumer
from share_settings import set_group
from steps import step


def main() -> None:
    arguments = parse_arguments(
        __doc__, "ordered", "doing a job appends it, its key and the worker to this file"
    )
    set_group(
        arguments.bootstrap,
        arguments.group,
        {"share.auto.offset.reset": "earliest", "share.order": "key"},
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
                job, key = ((each or b"").decode() for each in (message.value(), message.key()))
                output.write(f"{job} {key} {os.getpid()}\n")
                output.flush()
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            if messages:
                last_job_at = time.monotonic()
                step("done")
                # Only now the next jobs of these keys may come.
                consumer.commit_sync(10.0)
                step("acknowledged")
    consumer.close()


if __name__ == "__main__":
    main()
