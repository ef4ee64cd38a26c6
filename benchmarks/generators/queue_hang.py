"""A member that takes some records and never acknowledges them, and another that drains the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks import share_frames as frames
from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.share_client import ShareClient, begin_with_all_records


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    host, port, group, topic = (arguments[name] for name in ("host", "port", "group", "topic"))
    begin_with_all_records(host, port, group)
    with ShareClient(host, port, group, topic) as hanging, ShareClient(host, port, group, topic) as working:
        hanging.join()
        held = hanging.open(max_records=arguments["held"], mode=frames.RECORD_LIMIT)
        while held is None:
            held = hanging.fetch()
        working.join()
        held_count = held[1] - held[0] + 1
        watch = Stopwatch()
        drained, last_s = _drain(working, arguments["records"] - held_count, arguments["seconds"])
        elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    return {
        "drained": drained,
        "drained_percent": 100 * drained / (arguments["records"] - held_count),
        "last_s": last_s,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _drain(client: ShareClient, wanted: int, seconds: float) -> tuple[int, float]:
    """Take and accept; how many it got in time, and when the last of them."""
    began = time.perf_counter()
    drained, last_s = 0, 0.0
    taken = client.open(max_records=500, mode=frames.BATCH_OPTIMIZED)
    while True:
        if taken is not None:
            client.acknowledge(*taken)
            drained += taken[1] - taken[0] + 1
            last_s = time.perf_counter() - began
        if drained >= wanted or time.perf_counter() - began > seconds:
            return drained, last_s
        taken = client.fetch()


if __name__ == "__main__":
    run_generator(generate)
