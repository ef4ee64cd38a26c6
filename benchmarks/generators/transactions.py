"""librdkafka's transactional producer at full speed, with a commit at a fixed interval; or one small
transaction after the other.

The first is throughput: the producer queues for one interval, commits, and begins again, so that waiting for
the commit costs. The second is the time that a commit takes when nothing else is in its way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.summary import percentile

CALL_S: Final = 60.0
SMALL_RECORD_BYTES: Final = 100
RECORDS_BETWEEN_LOOKS: Final = 200


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    producer = Producer(
        {
            "bootstrap.servers": arguments["bootstrap"],
            "transactional.id": arguments["transactional_id"],
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": arguments["queue_bytes"] // 1024,
        }
    )
    producer.init_transactions(CALL_S)
    load = _commit_latencies if arguments["mode"] == "latency" else _throughput
    # The first ones bring connections and metadata; they are counted, but not timed.
    warm_up = load(producer, arguments, arguments["warm_up_s"])
    watch = Stopwatch()
    records, commits = load(producer, arguments, arguments["seconds"])
    elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    return {
        "records_total": warm_up[0] + records,
        "transactions_total": len(warm_up[1]) + len(commits),
        "records": records,
        "bytes": records * arguments["record_size"],
        "transactions": len(commits),
        "commit_p50_ms": percentile(commits, 50) * 1000,
        "commit_p99_ms": percentile(commits, 99) * 1000,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


def _throughput(producer: Producer, arguments: Mapping[str, Any], seconds: float) -> tuple[int, list[float]]:
    """Records written, and the duration of each commit, which includes writing out what is queued."""
    topic, value = arguments["topic"], os.urandom(arguments["record_size"])
    commits, records = [], 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        producer.begin_transaction()
        commit_at = time.perf_counter() + arguments["interval_s"]
        while time.perf_counter() < commit_at:
            records += _queue(producer, topic, value)
        commits.append(_timed_commit(producer))
    return records, commits


def _queue(producer: Producer, topic: str, value: bytes) -> int:
    for number in range(RECORDS_BETWEEN_LOOKS):
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            # A full queue is the normal state here.
            producer.poll(0.002)
            return number
    producer.poll(0)
    return RECORDS_BETWEEN_LOOKS


def _commit_latencies(
    producer: Producer, arguments: Mapping[str, Any], seconds: float
) -> tuple[int, list[float]]:
    """Transactions of one record in each partition: from the call of commit to its return."""
    topic, value = arguments["topic"], os.urandom(SMALL_RECORD_BYTES)
    commits, records = [], 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        producer.begin_transaction()
        for partition in range(arguments["partitions"]):
            producer.produce(topic, value, partition=partition)
            records += 1
        if producer.flush(CALL_S):
            raise TimeoutError("records were not acknowledged in time")
        commits.append(_timed_commit(producer))
    return records, commits


def _timed_commit(producer: Producer) -> float:
    started = time.perf_counter()
    producer.commit_transaction(CALL_S)
    return time.perf_counter() - started


if __name__ == "__main__":
    run_generator(generate)
