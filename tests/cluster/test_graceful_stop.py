"""A leader that is told to stop: how long its clients are without an acknowledged write."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Self

import confluent_kafka
import pytest

from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.process import eventually
from tests.harness.topics import unique_name

pytestmark = pytest.mark.slow

GAP_S_MAX = 2.0
"""An idle machine takes about a tenth of it; the tests run on busy ones."""


class Pulse:
    """Sends without a pause, with librdkafka's own defaults, and notes when each record was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse")
        self._producer: Any = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        )
        self.times_s: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._producer.flush(DEADLINE_S)

    def longest_gap_s(self, since_s: float) -> float:
        times = [when for when in self.times_s if when >= since_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.002)
            number += 1

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.times_s.append(time.monotonic())


def test_a_graceful_stop_interrupts_writes_for_a_moment_only(cluster: Cluster) -> None:
    topic = unique_name("graceful")
    cluster.create_topic(topic)
    gaps_ms = []
    with Pulse(cluster.bootstrap, topic) as pulse:
        for _ in range(2):
            eventually(lambda: len(pulse.times_s) > 100, DEADLINE_S)
            leader = cluster.partitions(topic)[0].leader
            began_s = time.monotonic() - 0.2
            assert cluster.brokers[leader].stop() == 0
            seen = len(pulse.times_s)
            eventually(lambda seen=seen: len(pulse.times_s) > seen + 20, DEADLINE_S)  # type: ignore[misc]
            gaps_ms.append(1000 * pulse.longest_gap_s(began_s))
            cluster.brokers[leader].start()
            eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
    assert not pulse.failures
    print(f"without an acknowledged write: {', '.join(f'{gap:.0f} ms' for gap in gaps_ms)}")
    assert min(gaps_ms) < GAP_S_MAX * 1000, gaps_ms
