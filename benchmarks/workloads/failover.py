"""Three brokers under load: how long nothing is acknowledged when a leader is killed, or told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

from confluent_kafka import Producer

from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System
from benchmarks.clusters import ClusterServer
from benchmarks.metrics import Metric
from benchmarks.profiles import Profile
from benchmarks.servers import Server
from benchmarks.summary import Better, Target, percentile
from benchmarks.workloads.base import Figures, temporary_topic

KAFKA_TURNS_MAX: Final = 3
"""Each turn takes Kafka ten seconds and more."""
PAUSE_S: Final = 0.001
RECORD: Final = b"x" * 100
CALM_S: Final = 0.5
"""Undisturbed load around each turn."""
DEADLINE_S: Final = 120.0
TARGETS: Final = {
    "kill.p50": Target(1.0, of_ratio=False),
    "kill.p99": Target(3.0, of_ratio=False),
    "restart.p99": Target(0.2, of_ratio=False),
}
_TITLES: Final = {
    "kill": "failover, leader killed: first acknowledged write",
    "restart": "failover, leader restarted in order: longest pause",
}
_FIGURES: Final = (("p50", "p50"), ("p99", "p99"), ("max", "longest"))


class Failover:
    name: ClassVar[str] = "failover"
    summary: ClassVar[str] = (
        "three brokers, acks=all: kill -9 of the leader under load until a write is acknowledged again; "
        "the pause when it is restarted in order"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        return [
            Metric(
                key=f"failover.{kind}.{key}",
                title=f"{title}, {name}",
                unit="s",
                better=Better.LOWER,
                target=TARGETS.get(f"{kind}.{key}"),
            )
            for kind, title in _TITLES.items()
            for key, name in _FIGURES
        ]

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        kills, restarts = profile.kills, profile.restarts
        if system is System.KAFKA:
            kills, restarts = min(kills, KAFKA_TURNS_MAX), min(restarts, KAFKA_TURNS_MAX)
        broker = factory.create_cluster(system)
        try:
            broker.start()
            with temporary_topic(broker, "failover") as topic:
                return _measure(broker, topic, kills, restarts)
        finally:
            broker.stop()
            broker.remove_files()


def _measure(broker: Broker, topic: str, kills: int, restarts: int) -> Figures:
    load = _Load(broker.bootstrap, topic)
    load.start()
    try:
        killed = [_turn(broker, topic, load, _kill) for _ in range(kills)]
        restarted = [_turn(broker, topic, load, _restart) for _ in range(restarts)]
    finally:
        acknowledged = load.stop()
    found = broker.record_count(topic)
    if found != acknowledged:
        raise BrokerFailed(f"{broker.system}: {acknowledged} records were acknowledged and {found} are there")
    return {
        f"failover.{kind}.{key}": value
        for kind, pauses in (("kill", killed), ("restart", restarted))
        for key, value in _summary(pauses).items()
    }


def _summary(pauses: Sequence[float]) -> dict[str, float]:
    return {"p50": percentile(pauses, 50), "p99": percentile(pauses, 99), "max": max(pauses)}


def _turn(broker: Broker, topic: str, load: _Load, end: Callable[[Server, _Load], float]) -> float:
    """Once all are in sync, end the topic's leader and start it again; return what the load felt of it."""
    assert isinstance(broker.server, ClusterServer)
    port = broker.wait_in_sync(topic)
    time.sleep(CALM_S)
    victim = next(server for server in broker.server.brokers if port in server.ports)
    pause_s = end(victim, load)
    victim.start()
    return pause_s


def _kill(victim: Server, load: _Load) -> float:
    killed_at = time.monotonic()
    victim.kill()
    return load.first_sent_and_acked_after(killed_at) - killed_at


def _restart(victim: Server, load: _Load) -> float:
    stopped_at = time.monotonic()
    victim.stop()
    time.sleep(CALM_S)
    return load.longest_pause_after(stopped_at)


class _Load:
    """An idempotent producer that sends a record a millisecond."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                # The client would wait up to ten seconds before it connects to a broker that was restarted
                # several times within as many, as here; nobody restarts brokers like that.
                "reconnect.backoff.max.ms": 100,
                # That brokers go away is no news here.
                "log_level": 0,
            }
        )
        self._acked: list[tuple[float, float]] = []
        """When each was sent, and when it was acknowledged."""
        self._failures: list[str] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="failover-load")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """End the load; return how many records were acknowledged, or raise BrokerFailed if a send failed."""
        self._is_stopping = True
        self._thread.join()
        if self._producer.flush(DEADLINE_S) or self._failures:
            raise BrokerFailed(f"sends failed: {self._failures[:3]}")
        return len(self._acked)

    def first_sent_and_acked_after(self, moment: float) -> float:
        """Wait until a record that was sent after `moment` is acknowledged, and return when."""
        position = len(self._acked)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            while position < len(self._acked):
                sent_at, acked_at = self._acked[position]
                if sent_at > moment:
                    return acked_at
                position += 1
            time.sleep(PAUSE_S)
        raise BrokerFailed(f"nothing was acknowledged for {DEADLINE_S:.0f} s")

    def longest_pause_after(self, moment: float) -> float:
        """The longest time without an acknowledgement since then, up to now."""
        times = [acked_at for _, acked_at in self._acked if acked_at > moment]
        return max(later - earlier for earlier, later in pairwise([moment, *times, time.monotonic()]))

    def _run(self) -> None:
        while not self._is_stopping:
            sent_at = time.monotonic()
            try:
                self._producer.produce(self._topic, RECORD, partition=0, on_delivery=self._report(sent_at))
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            time.sleep(PAUSE_S)

    def _report(self, sent_at: float) -> Callable[[Any, Any], None]:
        def delivered(error: Any, _message: Any) -> None:
            if error is None:
                self._acked.append((sent_at, time.monotonic()))
            else:
                self._failures.append(str(error))

        return delivered
