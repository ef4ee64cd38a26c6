"""At least once: the messages are processed first, and their offsets are committed afterwards.

Steps: received, processed, committed. Dying before `committed` leaves the offset where it was, so that what
was in hand is processed again: nothing is lost, and processing should not mind a repetition.
"""

from __future__ import annotations

import sys
import time

from arguments import parse_arguments
from confluent_kafka import Consumer, KafkaException, Message
from steps import step


def main() -> None:
    arguments = parse_arguments(__doc__, "at-least-once", "processing a message appends it to this file")
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "session.timeout.ms": arguments.session_ms,
            # Committing in the background could run ahead of the processing, and lose what it overtakes.
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([arguments.topic])
    last_message_at = time.monotonic()
    with open(arguments.output, "a") as output:
        while time.monotonic() - last_message_at < arguments.idle:
            messages = consumer.consume(10, timeout=0.2)
            if not messages:
                continue
            last_message_at = time.monotonic()
            for message in messages:
                if message.error() is not None:
                    sys.exit(str(message.error()))
            step("received")
            for message in messages:
                output.write(f"{text_of(message)}\n")
                output.flush()
                step("processed")
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as refused:
                # The partitions have gone to another member, which processes these messages again.
                print(f"not committed: {refused}", file=sys.stderr)
            step("committed")
    consumer.close()


def text_of(message: Message) -> str:
    return (message.value() or b"").decode()


if __name__ == "__main__":
    main()
