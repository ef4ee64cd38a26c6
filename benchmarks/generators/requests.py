"""Single-batch Produce requests over many connections, one outstanding on each, from one epoll loop.

The loop does two system calls per request and no parsing beyond the error code, so that the broker and not
this process is the limit; the share of a core that it used is part of its result.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.frames import build_batch, produce_error_at, produce_request, records_that_fit
from benchmarks.generators import go_client
from benchmarks.generators.protocol import Stopwatch, run_generator

RECEIVE_BYTES: Final = 4096
EVENTS_MAX: Final = 256
STALL_S: Final = 30.0
OK: Final = b"\x00\x00"
GO: Final = "go"


class Load:
    """All connections, and which frame each sends next."""

    def __init__(
        self, address: tuple[str, int], connections: int, frames: list[bytes], error_at: int
    ) -> None:
        self._frames = frames
        self._next_frame = 0
        self._error_at = error_at
        self._sockets: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        for _ in range(connections):
            sock = socket.create_connection(address, timeout=STALL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[sock.fileno()] = sock
        self._is_single = connections == 1

    def start(self) -> None:
        for descriptor, sock in self._sockets.items():
            sock.setblocking(self._is_single)
            self._epoll.register(descriptor, select.EPOLLIN)
            os.write(descriptor, self._take_frame())

    def run(self, seconds: float) -> int:
        """Keep every connection busy for `seconds`; return the number of requests answered."""
        return self._run_single(seconds) if self._is_single else self._run_many(seconds)

    def finish(self) -> None:
        """Read the answers still on their way, so that the broker is left with nothing half done."""
        waiting = set(self._sockets)
        deadline = time.perf_counter() + STALL_S
        while waiting and time.perf_counter() < deadline:
            for descriptor, _ in self._epoll.poll(1.0):
                self._check(os.read(descriptor, RECEIVE_BYTES))
                waiting.discard(descriptor)
                self._epoll.unregister(descriptor)
        for sock in self._sockets.values():
            sock.close()

    def _run_single(self, seconds: float) -> int:
        (descriptor,) = self._sockets
        answered = 0
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            # We ask the clock once per 16 requests: it would be a tenth of the generator's work.
            for _ in range(16):
                self._check(os.read(descriptor, RECEIVE_BYTES))
                os.write(descriptor, self._take_frame())
            answered += 16
        return answered

    def _run_many(self, seconds: float) -> int:
        # Locals, because this loop's own cost is what limits the load it can make.
        poll, read, write, frames = self._epoll.poll, os.read, os.write, self._frames
        error_at, error_end, frame_count = self._error_at, self._error_at + 2, len(self._frames)
        position = self._next_frame
        answered = 0
        now = time.perf_counter()
        deadline = now + seconds
        while now < deadline:
            events = poll(STALL_S, EVENTS_MAX)
            if not events:
                raise TimeoutError(f"no answer within {STALL_S} s")
            for descriptor, _ in events:
                answer = read(descriptor, RECEIVE_BYTES)
                if answer[error_at:error_end] != OK:
                    self._check(answer)
                frame = frames[position]
                if write(descriptor, frame) != len(frame):
                    raise BlockingIOError("a frame does not fit into the socket buffer")
                position += 1
                if position == frame_count:
                    position = 0
            answered += len(events)
            now = time.perf_counter()
        self._next_frame = position
        return answered

    def _take_frame(self) -> bytes:
        frame = self._frames[self._next_frame]
        self._next_frame = (self._next_frame + 1) % len(self._frames)
        return frame

    def _check(self, answer: bytes) -> None:
        if not answer:
            raise ConnectionError("the broker closed a connection")
        code = answer[self._error_at : self._error_at + 2]
        if code != OK:
            raise RuntimeError(f"the broker refused a request with error {int.from_bytes(code, 'big')}")


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    topic, record_size = arguments["topic"], arguments["record_size"]
    count = records_that_fit(record_size, arguments["batch_bytes"]) if "batch_bytes" in arguments else 1
    batch = build_batch(os.urandom(record_size), count, int(time.time() * 1000))
    frames = [produce_request(topic, partition, batch) for partition in range(arguments["partitions"])]
    result = send(arguments, frames, produce_error_at(topic))
    return {**result, "bytes": result["requests"] * len(batch)}


def send(arguments: Mapping[str, Any], frames: list[bytes], error_at: int) -> dict[str, float]:
    """Keep every connection busy with these frames, by the client that is asked for."""
    if arguments.get("client") == GO:
        return go_client.send(arguments, frames, error_at)
    address = (arguments["host"], arguments["port"])
    load = Load(address, arguments["connections"], frames, error_at)
    load.start()
    warm_up = load.run(arguments["warm_up_s"])
    watch = Stopwatch()
    answered = load.run(arguments["seconds"])
    elapsed_s, cpu_s = watch.elapsed_s(), watch.cpu_s()
    load.finish()
    return {
        "requests_total": warm_up + answered,
        "requests": answered,
        "elapsed_s": elapsed_s,
        "generator_cpu_s": cpu_s,
    }


if __name__ == "__main__":
    run_generator(generate)
