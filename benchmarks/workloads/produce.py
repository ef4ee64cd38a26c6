"""Produce throughput: Kafka's own ProducerPerformance, librdkafka, and prebuilt frames on a bare socket."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import HALF, PRODUCE, Metric
from benchmarks.processes import GeneratorFailed, run_bounded
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import (
    Figures,
    load,
    size_text,
    temporary_topic,
    with_broker_cpu,
)
from tools.kafka_distribution import KafkaDistribution

RECORD_SIZES: Final = (100, 1_000)
SMALL_BATCH: Final = 16_384
LARGE_BATCH: Final = 1_000_000
BATCH_SIZES: Final = (SMALL_BATCH, LARGE_BATCH)
IN_FLIGHT: Final = 5
TIMEOUT_S: Final = 180.0
# Enough for both batch sizes to stay full, and little enough for the last flush to be short.
QUEUE_BYTES: Final = 64 * 1024 * 1024
_STEADY: Final = re.compile(r"(\d+) steady state records sent, ([\d.]+) records/sec")


class JavaProduce:
    name: ClassVar[str] = "java-produce"
    summary: ClassVar[str] = "Java ProducerPerformance, acks=all, 100 B and 1,000 B records, default batches"

    def __init__(self, distribution: KafkaDistribution) -> None:
        self._distribution = distribution

    def metrics(self, profile: Profile) -> list[Metric]:
        return [
            metric
            for size in RECORD_SIZES
            for metric in (
                Metric(
                    key=f"java-produce.{size}.rate",
                    title=f"Java produce, {size:,} B",
                    unit="rec/s",
                    target=PRODUCE,
                ),
                _cpu_metric(f"java-produce.{size}", f"Java produce, {size:,} B"),
            )
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        for size in RECORD_SIZES:
            records = int(profile.java_records[size] * scale)
            with temporary_topic(broker, f"java-{size}") as topic:
                total = records + records // 4
                command = self._command(broker, topic, size, total, records // 4)
                run = partial(run_bounded, command, timeout_s=TIMEOUT_S)
                output, cpu_s = with_broker_cpu(broker, run)
                broker.require_records(topic, total)
            figures[f"java-produce.{size}.rate"] = steady_rate(output)
            figures[f"java-produce.{size}.cpu"] = cpu_s / (total * size / 1e9)
        return figures

    def _command(self, broker: Broker, topic: str, size: int, total: int, warm_up: int) -> list[str]:
        return self._distribution.command(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--record-size", str(size)),
            *("--num-records", str(total), "--warmup-records", str(warm_up), "--throughput", "-1"),
            *("--command-property", "acks=all"),
            # The heap that Kafka's own script gives to this tool.
            heap="512M",
        )


class LibrdkafkaProduce:
    name: ClassVar[str] = "librdkafka-produce"
    summary: ClassVar[str] = "librdkafka producer, acks=all, 100 B and 1,000 B, batches of 16 KiB and 1 MB"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in RECORD_SIZES:
            for batch_bytes in BATCH_SIZES:
                key = f"librdkafka-produce.{size}.{batch_bytes}"
                title = f"librdkafka produce, {size:,} B, {size_text(batch_bytes)} batches"
                metrics.append(Metric(key=f"{key}.rate", title=title, unit="MB/s", target=PRODUCE))
                metrics.append(_cpu_metric(key, title))
                metrics.append(_generator_metric(key, title))
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        for size in RECORD_SIZES:
            for batch_bytes in BATCH_SIZES:
                with temporary_topic(broker, f"librdkafka-{size}") as topic:
                    measured = load(
                        broker,
                        "librdkafka_produce",
                        TIMEOUT_S,
                        topic=topic,
                        record_size=size,
                        batch_bytes=batch_bytes,
                        queue_bytes=QUEUE_BYTES,
                        seconds=profile.produce_s * scale,
                        bytes_max=profile.written_bytes_max,
                    )
                    broker.require_records(topic, int(measured.result["records_total"]))
                key = f"librdkafka-produce.{size}.{batch_bytes}"
                figures[f"{key}.rate"] = measured.bytes_per_s / 1e6
                figures[f"{key}.cpu"] = measured.broker_cpu_s / (measured.result["bytes"] / 1e9)
                figures[f"{key}.generator"] = measured.generator_cpu_percent
        return figures


class WireProduce:
    name: ClassVar[str] = "wire-produce"
    summary: ClassVar[str] = (
        "prebuilt 1,000 B batches of 16 KiB and 1 MB, one connection, 5 requests in flight"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for batch_bytes in BATCH_SIZES:
            key = f"wire-produce.{batch_bytes}"
            title = f"wire produce, {size_text(batch_bytes)} batches"
            metrics.append(Metric(key=f"{key}.rate", title=title, unit="MB/s"))
            metrics.append(
                Metric(key=f"{key}.cpu", title=f"{title}: broker CPU", unit="s/GB", better=Better.LOWER)
            )
            metrics.append(_generator_metric(key, title))
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        for batch_bytes in BATCH_SIZES:
            with temporary_topic(broker, "wire") as topic:
                measured = load(
                    broker,
                    "pipelined",
                    TIMEOUT_S,
                    topic=topic,
                    record_size=1_000,
                    batch_bytes=batch_bytes,
                    in_flight=IN_FLIGHT,
                    bytes_max=profile.written_bytes_max,
                    seconds=profile.pipelined_s * scale,
                )
                broker.require_records(topic, int(measured.result["records"]))
            key = f"wire-produce.{batch_bytes}"
            figures[f"{key}.rate"] = measured.bytes_per_s / 1e6
            figures[f"{key}.cpu"] = measured.broker_cpu_s / (measured.result["bytes"] / 1e9)
            figures[f"{key}.generator"] = measured.generator_cpu_percent
        return figures


def steady_rate(output: str) -> float:
    """Records per second after the warm-up, from ProducerPerformance's output."""
    found = _STEADY.search(output)
    if found is None:
        raise GeneratorFailed(f"no result in the output of ProducerPerformance: {output[-300:]}")
    return float(found[2])


def _cpu_metric(key: str, title: str) -> Metric:
    return Metric(
        key=f"{key}.cpu", title=f"{title}: broker CPU", unit="s/GB", better=Better.LOWER, target=HALF
    )


def _generator_metric(key: str, title: str) -> Metric:
    return Metric(key=f"{key}.generator", title=f"{title}: generator", unit="% of a core", is_compared=False)
