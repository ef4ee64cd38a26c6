"""Start-up time, memory and CPU when idle, and memory after a load: a fresh broker each time."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from benchmarks.brokers import Broker, BrokerFactory, System
from benchmarks.metrics import Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load, temporary_topic

CALM_S: Final = 1.0
LOAD_TIMEOUT_S: Final = 120.0


class StartUp:
    name: ClassVar[str] = "startup"
    summary: ClassVar[str] = (
        "process start to the first answered requests; memory and CPU when idle; memory after load"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        return [
            Metric(
                key="startup.seconds",
                title="start to first answered request",
                unit="s",
                better=Better.LOWER,
                target=Target(1.0, of_ratio=False),
            ),
            Metric(
                key="startup.idle_mb",
                title="resident memory, idle",
                unit="MB",
                better=Better.LOWER,
                target=Target(100.0, of_ratio=False),
            ),
            Metric(key="startup.idle_cpu", title="CPU, idle", unit="% of a core", better=Better.LOWER),
            Metric(
                key="startup.loaded_mb", title="resident memory, after load", unit="MB", better=Better.LOWER
            ),
        ]

    def rounds(self, profile: Profile) -> int:
        return profile.start_ups

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        broker = factory.create(system)
        try:
            seconds = broker.start()
            time.sleep(CALM_S)
            idle_cpu = idle_cpu_percent(broker, profile.idle_s)
            idle_mb = broker.resident_mb()
            loaded_mb = self._memory_after_load(broker, profile)
        finally:
            broker.stop()
            broker.remove_files()
        return {
            "startup.seconds": seconds,
            "startup.idle_mb": idle_mb,
            "startup.idle_cpu": idle_cpu,
            "startup.loaded_mb": loaded_mb,
        }

    def _memory_after_load(self, broker: Broker, profile: Profile) -> float:
        with temporary_topic(broker, "memory") as topic:
            load(
                broker,
                "pipelined",
                LOAD_TIMEOUT_S,
                topic=topic,
                record_size=1_000,
                batch_bytes=1_000_000,
                in_flight=5,
                bytes_max=8e9,
                seconds=profile.pipelined_s,
            )
            load(
                broker,
                "requests",
                LOAD_TIMEOUT_S,
                topic=topic,
                record_size=100,
                partitions=1,
                connections=1_000,
                warm_up_s=0,
                seconds=profile.requests_s,
            )
            return broker.resident_mb()


def idle_cpu_percent(broker: Broker, seconds: float) -> float:
    """The share of one core that the broker uses with nothing to do."""
    before, started = broker.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (broker.cpu_s() - before) / (time.perf_counter() - started)
