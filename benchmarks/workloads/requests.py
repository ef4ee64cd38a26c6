"""Many tiny requests: single-record Produce requests, one outstanding on each of 1 to 1,000 connections."""

from __future__ import annotations

from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import REQUESTS, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import Figures, load, temporary_topic

RECORD_BYTES: Final = 100
TIMEOUT_S: Final = 120.0


class SingleRecordRequests:
    name: ClassVar[str] = "requests"
    summary: ClassVar[str] = "single-record Produce requests (100 B, acks=all) over 1 to 1,000 connections"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for count in profile.connection_counts:
            key = f"requests.{count}"
            title = f"single-record requests, {count:,} connection{'s' if count > 1 else ''}"
            metrics.append(Metric(key=f"{key}.rate", title=title, unit="req/s", target=REQUESTS))
            metrics.append(
                Metric(key=f"{key}.cpu", title=f"{title}: broker CPU", unit="µs/req", better=Better.LOWER)
            )
            metrics.append(
                Metric(
                    key=f"{key}.generator",
                    title=f"{title}: generator",
                    unit="% of a core",
                    is_compared=False,
                )
            )
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        with temporary_topic(broker, "requests") as topic:
            for count in profile.connection_counts:
                measured = load(
                    broker,
                    "requests",
                    TIMEOUT_S,
                    topic=topic,
                    record_size=RECORD_BYTES,
                    partitions=1,
                    connections=count,
                    warm_up_s=profile.requests_s * scale / 3,
                    seconds=profile.requests_s * scale,
                )
                result = measured.result
                figures[f"requests.{count}.rate"] = result["requests"] / result["elapsed_s"]
                figures[f"requests.{count}.cpu"] = measured.broker_cpu_s / result["requests_total"] * 1e6
                figures[f"requests.{count}.generator"] = measured.generator_cpu_percent
        return figures
