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
PAUSE_S: Final = 0.5
"""If no message comes for this long although there are some, the client has stopped asking."""


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    records = elapsed_s = cpu_s = pauses = 0.0
    for _ in range(arguments["passes"]):
        result = _read_all(arguments)
        records += result[0]
        elapsed_s += result[1]
        cpu_s += result[2]
        pauses += result[3]
    return {
        "pauses": pauses,
        "records": records,
        "bytes": records * arguments["record_size"],
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _read_all(arguments: Mapping[str, Any]) -> tuple[int, float, float, int]:
    """Read all once; return records, seconds and CPU seconds since the first messages, and pauses."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            **arguments["settings"],
        }
    )
    try:
        consumer.assign([TopicPartition(arguments["topic"], 0, 0)])
        per_call = arguments.get("messages_per_call", MESSAGES_PER_CALL)
        first = _next_count(consumer, per_call)
        watch = Stopwatch()
        remaining = arguments["records"] - first
        pauses, last_s = 0, 0.0
        while remaining > 0:
            remaining -= _next_count(consumer, per_call)
            now_s = watch.elapsed_s()
            pauses += now_s - last_s > PAUSE_S
            last_s = now_s
        return arguments["records"] - first, watch.elapsed_s(), watch.cpu_s(), pauses
    finally:
        consumer.close()


def _next_count(consumer: Consumer, per_call: int) -> int:
    deadline = time.perf_counter() + STALL_S
    while time.perf_counter() < deadline:
        if per_call == 1:
            message = consumer.poll(0.02)
            messages = [] if message is None else [message]
        else:
            # A short wait: consume() otherwise waits for a full call's worth of messages at the end.
            messages = consumer.consume(per_call, timeout=0.02)
        if messages:
            error = messages[0].error() or messages[-1].error()
            if error is not None:
                raise RuntimeError(str(error))
            return len(messages)
    raise TimeoutError(f"no message within {STALL_S} s")


if __name__ == "__main__":
    run_generator(generate)
