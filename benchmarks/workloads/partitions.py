"""How cost grows with the number of partitions: requests spread over them, idle CPU, memory, restart."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from benchmarks.brokers import Broker, BrokerFactory, System
from benchmarks.metrics import Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import Figures, load, new_topic_name, temporary_topic
from benchmarks.workloads.startup import idle_cpu_percent

RECORD_BYTES: Final = 1_000
CONNECTIONS: Final = 10
TIMEOUT_S: Final = 180.0
CALM_S: Final = 1.0


class Partitions:
    name: ClassVar[str] = "partitions"
    summary: ClassVar[str] = (
        "1,000 B requests spread over 1 to 4,000 partitions; then idle CPU, memory and restart"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for count in profile.partition_counts:
            key, title = f"partitions.{count}", f"{count:,} partition{'s' if count > 1 else ''}"
            metrics += [
                Metric(key=f"{key}.rate", title=f"{title}: requests", unit="req/s"),
                Metric(key=f"{key}.cpu", title=f"{title}: broker CPU", unit="µs/req", better=Better.LOWER),
                Metric(key=f"{key}.mb", title=f"{title}: resident memory", unit="MB", better=Better.LOWER),
                Metric(key=f"{key}.create", title=f"{title}: creating them", unit="s", better=Better.LOWER),
            ]
        title = f"{profile.partition_counts[-1]:,} partitions"
        return [
            *metrics,
            Metric(
                key="partitions.idle_cpu",
                title=f"{title}: CPU, idle",
                unit="% of a core",
                better=Better.LOWER,
            ),
            Metric(key="partitions.restart", title=f"{title}: clean restart", unit="s", better=Better.LOWER),
            Metric(
                key="partitions.kb_each",
                title=f"{title}: memory for each after a restart",
                unit="kB",
                better=Better.LOWER,
            ),
        ]

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        broker = factory.create(system)
        figures: dict[str, float] = {}
        try:
            broker.start()
            # A restart without partitions, as the base for what a partition costs afterwards.
            empty_mb = _restart(broker)[1]
            self._warm_up(broker, profile)
            for count in profile.partition_counts:
                is_last = count == profile.partition_counts[-1]
                figures.update(self._measure_count(broker, profile, count, keep=is_last))
            time.sleep(CALM_S)
            figures["partitions.idle_cpu"] = idle_cpu_percent(broker, profile.idle_s)
            figures["partitions.restart"], restarted_mb = _restart(broker)
            each_mb = (restarted_mb - empty_mb) / profile.partition_counts[-1]
            figures["partitions.kb_each"] = max(each_mb * 1000, 0.0)
        finally:
            broker.stop()
            broker.remove_files()
        return figures

    def _warm_up(self, broker: Broker, profile: Profile) -> None:
        with temporary_topic(broker, "warm-up", 10) as topic:
            _spread(broker, topic, 10, profile.partitions_s * 2)

    def _measure_count(self, broker: Broker, profile: Profile, count: int, *, keep: bool) -> Figures:
        topic = new_topic_name(f"partitions-{count}")
        started = time.perf_counter()
        broker.create_topic(topic, count)
        created_s = time.perf_counter() - started
        requests, elapsed_s, cpu_per_request_s = _spread(broker, topic, count, profile.partitions_s)
        resident_mb = broker.resident_mb()
        if not keep:
            broker.delete_topic(topic)
            time.sleep(CALM_S)
        return {
            f"partitions.{count}.rate": requests / elapsed_s,
            f"partitions.{count}.cpu": cpu_per_request_s * 1e6,
            f"partitions.{count}.mb": resident_mb,
            f"partitions.{count}.create": created_s,
        }


def _spread(broker: Broker, topic: str, partitions: int, seconds: float) -> tuple[float, float, float]:
    measured = load(
        broker,
        "requests",
        TIMEOUT_S,
        topic=topic,
        record_size=RECORD_BYTES,
        partitions=partitions,
        connections=CONNECTIONS,
        # Long enough for a first append to every partition, which opens its files.
        warm_up_s=seconds / 3,
        seconds=seconds,
    )
    result = measured.result
    return result["requests"], result["elapsed_s"], measured.broker_cpu_s / result["requests_total"]


def _restart(broker: Broker) -> tuple[float, float]:
    """Stop in order and start again; return the seconds of the start and the memory afterwards."""
    broker.stop()
    seconds = broker.start()
    time.sleep(CALM_S)
    return seconds, broker.resident_mb()
