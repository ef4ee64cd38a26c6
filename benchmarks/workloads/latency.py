"""End-to-end latency, one message at a time: librdkafka's producer and consumer, acks=all."""

from __future__ import annotations

from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import HALF, TAIL, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import Figures, load, temporary_topic

TIMEOUT_S: Final = 180.0
WARM_UP_MESSAGES: Final = 500


class Latency:
    name: ClassVar[str] = "latency"
    summary: ClassVar[str] = "end to end, one message at a time, acks=all: p50, p99, p99.9"

    def metrics(self, profile: Profile) -> list[Metric]:
        return [
            Metric(
                key=f"latency.{key}",
                title=f"end-to-end latency, {name}",
                unit="ms",
                better=Better.LOWER,
                target=target,
            )
            for key, name, target in (("p50", "p50", HALF), ("p99", "p99", TAIL), ("p999", "p99.9", None))
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        with temporary_topic(broker, "latency") as topic:
            measured = load(
                broker,
                "latency",
                TIMEOUT_S,
                topic=topic,
                warm_up_messages=WARM_UP_MESSAGES,
                messages=int(profile.latency_messages * scale),
            )
        return {f"latency.{key}": measured.result[f"{key}_ms"] for key in ("p50", "p99", "p999")}
