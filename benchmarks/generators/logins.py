"""Logins by SCRAM at a steady rate, each over a connection of its own, and the latency of somebody else's
requests meanwhile.

The logins come from another process than the requests, so that they do not wait for each other here. Before
the logins begin, the same requests are timed for as long: what logins add is the difference.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

from benchmarks.connection import Connection
from benchmarks.frames import build_batch, produce_error_at, produce_request
from benchmarks.generators.protocol import Stopwatch, run_generator
from benchmarks.summary import percentile
from millrace.client.blocking_connection import BlockingConnection
from millrace.client.security import read_security

THREADS: Final = 8
RECORD_BYTES: Final = 100
PAUSE_S: Final = 0.001
"""Between two requests of the one whose latency is measured: it is not to be the load itself."""
STALL_S: Final = 30.0
OK: Final = b"\x00\x00"


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    seconds = arguments["seconds"]
    alone = _latencies(arguments, seconds)
    ours, theirs = multiprocessing.Pipe()
    logins = multiprocessing.Process(target=_log_in, args=(dict(arguments), theirs))
    watch = Stopwatch()
    logins.start()
    beside = _latencies(arguments, seconds)
    if not ours.poll(STALL_S + seconds):
        logins.kill()
        raise TimeoutError("the logins do not end")
    done, took_s, slowest_s, failures = ours.recv()
    logins.join()
    if failures:
        raise RuntimeError(f"{len(failures)} logins failed, the first: {failures[0]}")
    return {
        "logins_per_minute": 60 * done / took_s,
        "login_p99_ms": slowest_s * 1000,
        "alone_p99_ms": percentile(alone, 99) * 1000,
        "p50_ms": percentile(beside, 50) * 1000,
        "p99_ms": percentile(beside, 99) * 1000,
        "slowest_ms": max(beside) * 1000,
        "elapsed_s": watch.elapsed_s(),
        "generator_cpu_s": watch.cpu_s(),
    }


def _latencies(arguments: Mapping[str, Any], seconds: float) -> list[float]:
    """Of single-record Produce requests to the plain listener, one at a time."""
    batch = build_batch(os.urandom(RECORD_BYTES), 1, int(time.time() * 1000))
    request = produce_request(arguments["topic"], 0, batch)
    # The connection has taken the size off.
    error_at = produce_error_at(arguments["topic"]) - 4
    found = []
    end = time.perf_counter() + seconds
    with Connection(arguments["host"], arguments["port"], timeout_s=STALL_S) as connection:
        while (began := time.perf_counter()) < end:
            answer = connection.request(request)
            found.append(time.perf_counter() - began)
            if answer[error_at : error_at + 2] != OK:
                raise RuntimeError("a produce request was refused")
            time.sleep(PAUSE_S)
    return found


def _log_in(arguments: dict[str, Any], pipe: Pipe) -> None:
    """Log in again and again at the rate that is asked for, and tell how many did."""
    security = read_security(arguments["client"])
    tls = security.tls_context()
    interval_s = 60 / arguments["per_minute"]
    taken, lock = [0], threading.Lock()
    durations: list[float] = []
    failures: list[str] = []
    began = time.perf_counter()

    def work() -> None:
        while not failures:
            with lock:
                number = taken[0]
                taken[0] += 1
            due = began + number * interval_s
            if due > began + arguments["seconds"]:
                return
            time.sleep(max(due - time.perf_counter(), 0))
            start = time.perf_counter()
            try:
                connection = BlockingConnection(
                    arguments["host"],
                    arguments["secured_port"],
                    client_id="bench",
                    timeout_s=STALL_S,
                    tls=tls,
                )
                try:
                    connection.open_with("bench", security)
                finally:
                    connection.close()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
                failures.append(str(error))
                return
            durations.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    pipe.send((len(durations), took_s, percentile(durations, 99) if durations else 0.0, failures))


if __name__ == "__main__":
    run_generator(generate)
