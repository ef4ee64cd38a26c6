"""A delayed reminder: sent now, seen later, by any kind of consumer.

Sends reminders that are due after 1, 2 and 3 seconds, the last first, cancels the second of them, and writes
down what comes and how late it was. The topic needs delayed.delivery.enable=true. Steps: sent, received.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from arguments import parse_arguments
from confluent_kafka import AcknowledgeType, KafkaError, Message, Producer, ShareConsumer
from share_settings import set_group
from steps import step


def main() -> None:
    arguments = parse_arguments(
        __doc__, "reminders", "a reminder appends itself and its lateness in ms to this file"
    )
    set_group(arguments.bootstrap, arguments.group, {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": arguments.bootstrap})
    send(producer, arguments.topic, "in 3 s", {"millrace-delay-ms": "3000"})
    second = send(producer, arguments.topic, "in 2 s", {"millrace-delay-ms": "2000"})
    due_ms = int(time.time() * 1000) + 1000
    send(producer, arguments.topic, "in 1 s", {"millrace-deliver-at": str(due_ms)})
    # A message is known by its partition and the offset that its producer was told.
    cancel = {"millrace-delay-cancel": str(second.offset())}
    send(producer, arguments.topic, "", cancel, partition=second.partition() or 0)
    step("sent")
    consumer = ShareConsumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([arguments.topic])
    last_at = time.monotonic()
    with open(arguments.output, "a") as output:
        while time.monotonic() - last_at < arguments.idle:
            for message in consumer.poll(0.2):
                if message.error() is not None:
                    sys.exit(str(message.error()))
                last_at = time.monotonic()
                step("received")
                # Its timestamp is the moment when it was due.
                late_ms = int(time.time() * 1000) - message.timestamp()[1]
                output.write(f"{(message.value() or b'').decode()}: {late_ms}\n")
                output.flush()
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    consumer.close()


def send(producer: Producer, topic: str, text: str, headers: dict[str, str], **place: int) -> Message:
    """Send one message, and wait until it is safe."""
    told: list[Message] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            sys.exit(str(error))
        told.append(message)

    more: dict[str, Any] = {"headers": headers, **place}
    producer.produce(topic, text.encode(), on_delivery=delivered, **more)
    producer.flush(30)
    return told[0]


if __name__ == "__main__":
    main()
