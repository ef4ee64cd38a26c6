"""librdkafka's share consumer: how soon a new group has its first record, and how fast a queue is drained.

Records are accepted implicitly, with the next poll. The clock of the drain starts with the first records:
joining is told apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import ShareConsumer

from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.share_client import begin_with_all_records

STALL_S: Final = 60.0


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    begin_with_all_records(arguments["host"], arguments["port"], arguments["group"])
    settings = {"bootstrap.servers": arguments["bootstrap"], "group.id": arguments["group"], "log_level": 3}
    began = time.perf_counter()
    consumer = ShareConsumer(settings)
    consumer.subscribe([arguments["topic"]])
    try:
        first = _next_count(consumer)
        first_s = time.perf_counter() - began
        watch = Stopwatch()
        records = 0
        while first + records < arguments["records"]:
            records += _next_count(consumer)
        elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
        consumer.commit_sync(STALL_S)
    finally:
        consumer.close()
    return {
        "first_s": first_s,
        "records": records,
        "bytes": records * arguments["record_size"],
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _next_count(consumer: ShareConsumer) -> int:
    deadline = time.perf_counter() + STALL_S
    while time.perf_counter() < deadline:
        messages = consumer.poll(0.5)
        if len(messages):
            return sum(message.error() is None for message in messages)
    raise TimeoutError(f"no message within {STALL_S} s")


if __name__ == "__main__":
    run_generator(generate)
