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
    client: ClassVar[str] = "python"
    title: ClassVar[str] = "single-record requests"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for count in profile.connection_counts:
            key = f"{self.name}.{count}"
            title = f"{self.title}, {count:,} connection{'s' if count > 1 else ''}"
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
                    client=self.client,
                    record_size=RECORD_BYTES,
                    partitions=1,
                    connections=count,
                    warm_up_s=profile.requests_s * scale / 3,
                    seconds=profile.requests_s * scale,
                )
                result = measured.result
                figures[f"{self.name}.{count}.rate"] = result["requests"] / result["elapsed_s"]
                figures[f"{self.name}.{count}.cpu"] = measured.broker_cpu_s / result["requests_total"] * 1e6
                figures[f"{self.name}.{count}.generator"] = measured.generator_cpu_percent
        return figures


class GoRequests(SingleRecordRequests):
    """A client with a thread of its own for each connection, and not an epoll loop for all of them."""

    name: ClassVar[str] = "requests-go"
    summary: ClassVar[str] = "the same requests from a client in Go, where there is a Go toolchain"
    client: ClassVar[str] = "go"
    title: ClassVar[str] = "single-record requests, Go client"
