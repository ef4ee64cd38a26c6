"""At most once: the offsets are committed before the messages are processed.

Steps: received, committed, processed. Dying between `committed` and the last `processed` loses what was in
hand, and nothing is ever processed twice: right where a gap is cheap and a double count is not.
"""

from __future__ import annotations

import sys
import time

from arguments import parse_arguments
from confluent_kafka import Consumer, KafkaException, Message
from steps import step


def main() -> None:
    arguments = parse_arguments(__doc__, "at-most-once", "processing a message appends it to this file")
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "session.timeout.ms": arguments.session_ms,
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
            try:
                # This waits for the answer: we touch nothing before the broker has promised not to repeat it.
                consumer.commit(asynchronous=False)
            except KafkaException as refused:
                # The partitions have gone to another member, which gets these messages.
                print(f"not committed, not processed: {refused}", file=sys.stderr)
                continue
            step("committed")
            for message in messages:
                output.write(f"{text_of(message)}\n")
                output.flush()
                step("processed")
    consumer.close()


def text_of(message: Message) -> str:
    return (message.value() or b"").decode()


if __name__ == "__main__":
    main()
