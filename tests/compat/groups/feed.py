"""Numbered records written in the background while a group changes."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, Self

from confluent_kafka import Producer

_CHUNK: Final = 12
_PAUSE_S: Final = 0.03
_FLUSH_S: Final = 30.0


class Feed:
    """Writes to all partitions in turn until it is finished; knows which numbers were acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acknowledged: set[int] = set()
        self._topic = topic
        self._partitions = partitions
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": 60_000,
            }
        )
        self._is_over = threading.Event()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(_FLUSH_S)

    def finish(self) -> set[int]:
        """Stop writing; the numbers of all records that the broker holds."""
        self._is_over.set()
        self._thread.join(_FLUSH_S)
        assert self._producer.flush(_FLUSH_S) == 0, "records were never acknowledged"
        assert not self._failures, self._failures
        return self.acknowledged

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            for _ in range(_CHUNK):
                self._producer.produce(
                    self._topic,
                    value=f"{self._topic} {number}",
                    partition=number % self._partitions,
                    on_delivery=self._delivered(number),
                )
                number += 1
            self._producer.poll(0)
            time.sleep(_PAUSE_S)

    def _delivered(self, number: int) -> Any:
        def delivered(error: Any, _message: Any) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self._failures.append(error.name())

        return delivered


def write_numbered(bootstrap: str, topic: str, partitions: int, count: int) -> set[int]:
    """`count` records at once; their numbers."""
    producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for number in range(count):
        producer.produce(topic, value=f"{topic} {number}", partition=number % partitions)
    assert producer.flush(_FLUSH_S) == 0
    return set(range(count))
