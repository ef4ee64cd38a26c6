"""A producer that counts: what it was told, and records that say themselves where they belong."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

import confluent_kafka

from tests.harness.process import eventually

PATIENCE_S = 90.0
"""For what must happen at last, on however slow a machine."""


def numbered(topic: str, partition: int, number: int, padding: bytes = b"") -> bytes:
    """A value that tells its number and its place; `number_in` reads it."""
    return f"{topic} {partition} {number} ".encode() + padding


def number_in(value: bytes | None, topic: str, partition: int) -> int:
    assert value is not None
    named_topic, named_partition, number, _ = value.split(b" ", 3)
    # F30: never a record of another topic or partition.
    assert (named_topic.decode(), int(named_partition)) == (topic, partition)
    return int(number)


class NumberedWriter:
    """An idempotent producer that writes 0, 1, 2, ... to one partition until it is told to stop."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int = 0,
        *,
        padding_max: int = 1,
        pause_s: float = 0.001,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Records are padded with fewer than `padding_max` bytes; `config` is the client's, over ours."""
        self._topic = topic
        self._partition = partition
        self._padding_max = padding_max
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{partition}")
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "queue.buffering.max.messages": 1_000,
                "log_level": 0,
                **(config or {}),
            }
        )
        self.written = 0
        self.acknowledged: dict[int, int] = {}
        """Number by offset."""
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._producer.flush(PATIENCE_S) == 0, "messages are still on their way"

    def wait_for_more(self, count: int = 50) -> None:
        target = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= target or bool(self.failures), PATIENCE_S)
        assert not self.failures, self.failures[:3]

    def _run(self) -> None:
        source = random.Random(self._partition)
        while not self._stopping.is_set():
            try:
                self._send(self.written, bytes(source.randrange(self._padding_max)))
                self.written += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            # Enough for the load to be continuous, little enough for the disk.
            time.sleep(self._pause_s)

    def _send(self, number: int, padding: bytes) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(str(error))
            else:
                self.acknowledged[message.offset()] = number

        value = numbered(self._topic, self._partition, number, padding)
        self._producer.produce(self._topic, value, partition=self._partition, on_delivery=delivered)
