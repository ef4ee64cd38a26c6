"""One message at a time from a producer through a queue to a share consumer in the same process.

Each is accepted with the poll that waits for the next one, as most applications do it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer, ShareConsumer

from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.share_client import begin_with_all_records
from benchmarks.summary import percentile

ARRIVAL_S: Final = 30.0
MESSAGE_BYTES: Final = 100


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    begin_with_all_records(arguments["host"], arguments["port"], arguments["group"])
    target = {"bootstrap.servers": arguments["bootstrap"], "log_level": 3}
    producer = Producer({**target, "acks": "all", "linger.ms": 0})
    consumer = ShareConsumer({**target, "group.id": arguments["group"]})
    topic, value = arguments["topic"], os.urandom(MESSAGE_BYTES)
    consumer.subscribe([topic])
    try:
        for _ in range(arguments["warm_up_messages"]):
            _send_and_receive(producer, consumer, topic, value)
        watch = Stopwatch()
        latencies = [
            _send_and_receive(producer, consumer, topic, value) for _ in range(arguments["messages"])
        ]
        elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
        producer.flush(ARRIVAL_S)
    finally:
        consumer.close()
    return {
        "p50_ms": percentile(latencies, 50) * 1000,
        "p99_ms": percentile(latencies, 99) * 1000,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _send_and_receive(producer: Producer, consumer: ShareConsumer, topic: str, value: bytes) -> float:
    sent_at = time.perf_counter()
    producer.produce(topic, value, partition=0)
    deadline = sent_at + ARRIVAL_S
    while time.perf_counter() < deadline:
        for message in consumer.poll(1.0):
            error = message.error()
            if error is not None:
                raise RuntimeError(str(error))
            latency_s = time.perf_counter() - sent_at
            producer.poll(0)
            return latency_s
    raise TimeoutError(f"a message did not arrive within {ARRIVAL_S} s")


if __name__ == "__main__":
    run_generator(generate)
