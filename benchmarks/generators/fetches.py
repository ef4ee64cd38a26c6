"""Single Fetch requests at random offsets in the middle of a log: what finding a position costs."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.connection import Connection
from benchmarks.frames import fetch_answer, fetch_request
from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.summary import percentile

WARM_UP_FETCHES: Final = 100
SEED: Final = 20260601


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    records, topic, max_bytes = arguments["records"], arguments["topic"], arguments["max_bytes"]
    # Both systems get the same offsets.
    chance = random.Random(SEED)
    latencies = []
    with Connection(arguments["host"], arguments["port"]) as connection:
        watch = Stopwatch()
        for number in range(WARM_UP_FETCHES + arguments["fetches"]):
            offset = chance.randrange(records // 4, records * 3 // 4)
            request = fetch_request(topic, 0, offset, max_bytes)
            started = time.perf_counter()
            answer = fetch_answer(connection.request(request))
            elapsed_s = time.perf_counter() - started
            if answer.error_code or not answer.records_bytes:
                raise RuntimeError(f"a fetch at {offset} gave {answer}")
            if number >= WARM_UP_FETCHES:
                latencies.append(elapsed_s)
        cpu_s = watch.cpu_s()
    return {
        "p50_ms": percentile(latencies, 50) * 1000,
        "p99_ms": percentile(latencies, 99) * 1000,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    run_generator(generate)
