"""One record at a time from a queue: fetch one, have its acknowledgement confirmed, fetch the next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks import share_frames as frames
from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.share_client import ShareClient, begin_with_all_records
from benchmarks.summary import percentile

STALL_S: Final = 20.0


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    host, port, group = arguments["host"], arguments["port"], arguments["group"]
    begin_with_all_records(host, port, group)
    with ShareClient(host, port, group, arguments["topic"]) as client:
        client.join()
        taken = client.open(max_records=1, mode=frames.RECORD_LIMIT)
        if taken is not None:
            client.acknowledge(*taken)
        warm_up, _ = _take(client, arguments["seconds"] / 3)
        watch = Stopwatch()
        fetches, acknowledgements = _take(client, arguments["seconds"])
        elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    both = [fetch + ack for fetch, ack in zip(fetches, acknowledgements, strict=True)]
    return {
        "records": len(both),
        "records_total": len(both) + len(warm_up),
        "p50_ms": percentile(both, 50) * 1000,
        "p99_ms": percentile(both, 99) * 1000,
        "fetch_p99_ms": percentile(fetches, 99) * 1000,
        "acknowledge_p50_ms": percentile(acknowledgements, 50) * 1000,
        "acknowledge_p99_ms": percentile(acknowledgements, 99) * 1000,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _take(client: ShareClient, seconds: float) -> tuple[list[float], list[float]]:
    """How long each fetch and each acknowledgement took."""
    fetches, acknowledgements = [], []
    last = began = time.perf_counter()
    while last - began < seconds:
        taken = client.fetch()
        fetched = time.perf_counter()
        if taken is None:
            if fetched - last > STALL_S:
                raise TimeoutError(f"no record within {STALL_S} s")
            continue
        client.acknowledge(*taken)
        done = time.perf_counter()
        fetches.append(fetched - last)
        acknowledgements.append(done - fetched)
        last = done
    return fetches, acknowledgements


if __name__ == "__main__":
    run_generator(generate)
