"""librdkafka's consumer reading one partition from its beginning, several times over.

The clock starts with the first messages: connecting and metadata are not part of a consumer's speed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.generators.protocol import Stopwatch, run_generator

MESSAGES_PER_CALL: Final = 10_000
STALL_S: Final = 20.0


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    records = elapsed_s = cpu_s = 0.0
    for _ in range(arguments["passes"]):
        result = _read_all(arguments)
        records += result[0]
        elapsed_s += result[1]
        cpu_s += result[2]
    return {
        "records": records,
        "bytes": records * arguments["record_size"],
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _read_all(arguments: Mapping[str, Any]) -> tuple[int, float, float]:
    """One pass; records, seconds and CPU seconds after the first messages have come."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            # Otherwise it rests for a second whenever it has enough messages, and that is what is measured.
            "fetch.queue.backoff.ms": 1,
        }
    )
    try:
        consumer.assign([TopicPartition(arguments["topic"], 0, 0)])
        first = _next_count(consumer)
        watch = Stopwatch()
        remaining = arguments["records"] - first
        while remaining > 0:
            remaining -= _next_count(consumer)
        return arguments["records"] - first, watch.elapsed_s(), watch.cpu_s()
    finally:
        consumer.close()


def _next_count(consumer: Consumer) -> int:
    deadline = time.perf_counter() + STALL_S
    while time.perf_counter() < deadline:
        # A short wait: consume() otherwise waits for a full call's worth of messages at the end.
        messages = consumer.consume(MESSAGES_PER_CALL, timeout=0.02)
        if messages:
            error = messages[0].error() or messages[-1].error()
            if error is not None:
                raise RuntimeError(str(error))
            return len(messages)
    raise TimeoutError(f"no message within {STALL_S} s")


if __name__ == "__main__":
    run_generator(generate)
