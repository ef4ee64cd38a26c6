"""Delayed messages: write them, and see when they come.

{"work": "fill"}   writes records that are due at times spread evenly over a stretch
{"work": "watch"}  reads what is delivered, and tells how late it was
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.delayed_batches import DelayedBatch
from benchmarks.frames import produce_error_at, produce_request
from benchmarks.generators.pipelined import Answers
from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.summary import percentile

STALL_S: Final = 120.0
IN_FLIGHT: Final = 5
RECORD_BYTES: Final = 100
MESSAGES_PER_CALL: Final = 1_000


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    return _fill(arguments) if arguments["work"] == "fill" else _watch(arguments)


def _fill(arguments: Mapping[str, Any]) -> dict[str, float]:
    watch = Stopwatch()
    batch = DelayedBatch(os.urandom(RECORD_BYTES), arguments["batch_records"], int(time.time() * 1000))
    topic = arguments["topic"]
    sent = answered = 0
    with socket.create_connection((arguments["host"], arguments["port"]), timeout=STALL_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(sock, produce_error_at(topic))
        for due_ms in due_times(arguments, batch.count):
            while sent - answered >= IN_FLIGHT:
                answered += answers.receive()
            sock.sendall(produce_request(topic, 0, batch.due_at(due_ms)))
            sent += 1
        while answered < sent:
            answered += answers.receive()
    return {"records": sent * batch.count, "elapsed_s": watch.elapsed_s(), "generator_cpu_s": watch.cpu_s()}


def due_times(arguments: Mapping[str, Any], batch_records: int) -> Iterator[int]:
    """When each batch is due: from `due_from_ms` on, evenly over `due_s`."""
    batches = max(1, arguments["records"] // batch_records)
    for number in range(batches):
        yield arguments["due_from_ms"] + int(number * arguments["due_s"] * 1000 / batches)


def _watch(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Read until all records are there that are due from `due_from_ms` on; the first may be earlier."""
    settings = {"bootstrap.servers": arguments["bootstrap"], "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "log_level": 3})
    consumer.assign([TopicPartition(arguments["topic"], 0, 0)])
    watch = Stopwatch()
    first_s: float | None = None
    late_ms: list[float] = []
    last = time.monotonic()
    try:
        while len(late_ms) < arguments["records"]:
            messages = consumer.consume(MESSAGES_PER_CALL, timeout=0.02)
            now_s = time.time()
            if not messages:
                if time.monotonic() - last > arguments["patience_s"]:
                    raise TimeoutError(f"{len(late_ms)} of {arguments['records']} records were delivered")
                continue
            last = time.monotonic()
            if first_s is None:
                first_s = now_s - arguments["started_s"]
            late_ms += [
                now_s * 1000 - due_ms
                for message in messages
                if (due_ms := message.timestamp()[1]) >= arguments["due_from_ms"]
            ]
    finally:
        consumer.close()
    assert first_s is not None, "something was delivered"
    return {
        "first_s": first_s,
        "late_p50_ms": percentile(late_ms, 50),
        "late_p99_ms": percentile(late_ms, 99),
        "late_max_ms": max(late_ms),
        "elapsed_s": watch.elapsed_s(),
        "generator_cpu_s": watch.cpu_s(),
    }


if __name__ == "__main__":
    run_generator(generate)
