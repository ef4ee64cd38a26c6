"""librdkafka's producer at full speed for a given time or number of bytes; the last flush is measured, too.

Failed messages are not counted here: the caller compares with what the topic holds afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.generators.librdkafka import MESSAGES_PER_CALL, BatchProducer
from benchmarks.generators.protocol import Stopwatch, run_generator

FLUSH_MS: Final = 60_000
FULL_QUEUE_WAIT_MS: Final = 2


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    value = os.urandom(arguments["record_size"])
    settings = {
        "bootstrap.servers": arguments["bootstrap"],
        "acks": "all",
        "batch.size": str(arguments["batch_bytes"]),
        "queue.buffering.max.messages": "2000000",
        "queue.buffering.max.kbytes": str(arguments["queue_bytes"] // 1024),
        **arguments.get("client", {}),
    }
    partitions = arguments.get("partitions", 1)
    producer = BatchProducer(settings, arguments["topic"], value, partitions)
    # The first messages bring connections and metadata; they are counted, but not timed.
    untimed = sum(producer.queue() for _ in range(partitions))
    producer.flush(FLUSH_MS)
    watch = Stopwatch()
    sent = 0
    sent_max = int(arguments["bytes_max"] // len(value))
    while watch.elapsed_s() < arguments["seconds"] and sent < sent_max:
        queued = producer.queue()
        sent += queued
        # A full queue is the normal state here.
        producer.poll(FULL_QUEUE_WAIT_MS if queued < MESSAGES_PER_CALL else 0)
    left = producer.flush(FLUSH_MS)
    elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    producer.close()
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged in time")
    return {
        "records_total": untimed + sent,
        "records": sent,
        "bytes": sent * len(value),
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    run_generator(generate)
