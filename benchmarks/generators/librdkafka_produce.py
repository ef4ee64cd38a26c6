"""librdkafka's producer at full speed, through `produce_batch` so that Python costs little per message.

A time limit, not a record count, ends it; the last flush is inside the measured time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.generators.protocol import Stopwatch, run_generator

MESSAGES_PER_CALL: Final = 2_000
FLUSH_S: Final = 60.0


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    failures: list[str] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": arguments["bootstrap"],
            "acks": "all",
            "batch.size": arguments["batch_bytes"],
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": arguments["queue_bytes"] // 1024,
        }
    )
    topic, value = arguments["topic"], os.urandom(arguments["record_size"])
    # Connected and with metadata before the clock runs.
    producer.list_topics(topic, timeout=30)
    messages = [{"value": value} for _ in range(MESSAGES_PER_CALL)]
    watch = Stopwatch()
    sent = 0
    while watch.elapsed_s() < arguments["seconds"] and not failures:
        queued = producer.produce_batch(topic, messages, partition=0, on_delivery=on_delivery)
        sent += queued
        # A full queue is the normal state here: wait until it has room again.
        producer.poll(0.005 if queued < MESSAGES_PER_CALL else 0)
    left = producer.flush(FLUSH_S)
    elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    if failures or left:
        raise RuntimeError(f"{left} messages not delivered; {failures[:1]}")
    return {
        "records": sent,
        "bytes": sent * len(value),
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    run_generator(generate)
