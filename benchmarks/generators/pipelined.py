"""Full batches over one connection with several requests in flight: how fast a broker takes data in.

The frame is built once and sent again and again, so the generator's cost is the copy into the socket.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.frames import build_batch, produce_error_at, produce_request, records_that_fit
from benchmarks.generators.protocol import Stopwatch, run_generator

STALL_S: Final = 60.0
OK: Final = b"\x00\x00"


class Answers:
    """Splits what arrives into answers and refuses any that carries an error."""

    def __init__(self, sock: socket.socket, error_at: int) -> None:
        self._socket = sock
        self._error_at = error_at
        self._rest = b""

    def receive(self) -> int:
        """Wait for more; return the number of answers that are complete now."""
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionError("the broker closed the connection")
        data, position, count = self._rest + received, 0, 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            code = data[position + self._error_at : position + self._error_at + 2]
            if code != OK:
                raise RuntimeError(f"the broker refused a request with error {int.from_bytes(code, 'big')}")
            position, count = end, count + 1
        self._rest = data[position:]
        return count


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Send until `bytes_max` or `seconds` is reached, whichever comes first."""
    topic, record_size = arguments["topic"], arguments["record_size"]
    count = records_that_fit(record_size, arguments["batch_bytes"])
    batch = build_batch(os.urandom(record_size), count, int(time.time() * 1000))
    frame = produce_request(topic, arguments.get("partition", 0), batch)
    requests_max = max(1, int(arguments["bytes_max"] // len(batch)))
    with socket.create_connection((arguments["host"], arguments["port"]), timeout=STALL_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(sock, produce_error_at(topic))
        watch = Stopwatch()
        sent = answered = 0
        while answered < requests_max:
            while sent - answered < arguments["in_flight"] and sent < requests_max:
                sock.sendall(frame)
                sent += 1
            answered += answers.receive()
            if watch.elapsed_s() > arguments["seconds"]:
                requests_max = sent
        elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    return {
        "requests": answered,
        "records": answered * count,
        "bytes": answered * len(batch),
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    run_generator(generate)
