"""Three brokers, every partition on all of them, acks=all with two in sync at least: rate and latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from benchmarks.brokers import Broker, BrokerFailed
from benchmarks.clusters import BROKERS
from benchmarks.metrics import CLUSTER_MEDIAN, HALF, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load, size_text, temporary_topic

RATE: Final = Target(1.2)
TIMEOUT_S: Final = 180.0
SMALL_BATCH: Final = 16_384
LARGE_BATCH: Final = 1_000_000
# As for a single broker: batches stay full, and the last flush is short.
QUEUE_BYTES: Final = 64 * 1024 * 1024
WARM_UP_MESSAGES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load: records, batches and partitions."""

    record_bytes: int
    batch_bytes: int
    partitions: int

    @property
    def key(self) -> str:
        return f"cluster-produce.{self.record_bytes}.{self.batch_bytes}.{self.partitions}"

    @property
    def title(self) -> str:
        batches = f"{size_text(self.batch_bytes)} batches"
        return f"cluster produce, {self.record_bytes:,} B, {batches}, {self.partitions} partitions"


CASES: Final = (
    Case(record_bytes=1_000, batch_bytes=SMALL_BATCH, partitions=3),
    Case(record_bytes=1_000, batch_bytes=LARGE_BATCH, partitions=3),
    Case(record_bytes=100, batch_bytes=SMALL_BATCH, partitions=3),
    Case(record_bytes=100, batch_bytes=LARGE_BATCH, partitions=3),
    Case(record_bytes=1_000, batch_bytes=SMALL_BATCH, partitions=12),
    Case(record_bytes=1_000, batch_bytes=LARGE_BATCH, partitions=12),
)


class ClusterProduce:
    name: ClassVar[str] = "cluster-produce"
    summary: ClassVar[str] = (
        "librdkafka producer on three brokers, replication factor 3, acks=all, 100 B and 1,000 B, "
        "batches of 16 KiB and 1 MB, 3 and 12 partitions"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for case in CASES:
            key, title = case.key, case.title
            metrics += [
                Metric(key=f"{key}.rate", title=title, unit="MB/s", target=RATE),
                Metric(key=f"{key}.cpu", title=f"{title}: brokers' CPU", unit="s/GB", better=Better.LOWER),
                Metric(
                    key=f"{key}.generator",
                    title=f"{title}: generator",
                    unit="% of a core",
                    is_compared=False,
                ),
            ]
        memory = Metric(
            key="cluster-produce.mb",
            title="resident memory of the cluster, after load",
            unit="MB",
            better=Better.LOWER,
        )
        return [*metrics, memory]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        for case in CASES:
            figures |= _produce(broker, case, profile.produce_s * scale, profile.written_bytes_max // BROKERS)
        figures["cluster-produce.mb"] = broker.resident_mb()
        return figures


class ClusterLatency:
    name: ClassVar[str] = "cluster-latency"
    summary: ClassVar[str] = "end to end over three brokers, one message at a time, acks=all: p50, p99, p99.9"

    def metrics(self, profile: Profile) -> list[Metric]:
        percentiles = (("p50", "p50", CLUSTER_MEDIAN), ("p99", "p99", HALF), ("p999", "p99.9", None))
        return [
            *(
                Metric(
                    key=f"cluster-latency.{key}",
                    title=f"cluster end-to-end latency, {name}",
                    unit="ms",
                    better=Better.LOWER,
                    target=target,
                )
                for key, name, target in percentiles
            ),
            Metric(
                key="cluster-latency.cpu",
                title="cluster end-to-end latency: brokers' CPU",
                unit="µs/message",
                better=Better.LOWER,
            ),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        messages = int(profile.latency_messages * scale)
        with temporary_topic(broker, "cluster-latency") as topic:
            measured = load(
                broker,
                "latency",
                TIMEOUT_S,
                topic=topic,
                warm_up_messages=WARM_UP_MESSAGES,
                messages=messages,
            )
        figures = {f"cluster-latency.{key}": measured.result[f"{key}_ms"] for key in ("p50", "p99", "p999")}
        figures["cluster-latency.cpu"] = measured.broker_cpu_s / (WARM_UP_MESSAGES + messages) * 1e6
        return figures


def _produce(broker: Broker, case: Case, seconds: float, bytes_max: int) -> Figures:
    with temporary_topic(broker, "cluster", case.partitions) as topic:
        measured = load(
            broker,
            "librdkafka_produce",
            TIMEOUT_S,
            topic=topic,
            partitions=case.partitions,
            record_size=case.record_bytes,
            batch_bytes=case.batch_bytes,
            queue_bytes=QUEUE_BYTES,
            seconds=seconds,
            bytes_max=bytes_max,
        )
        found = sum(broker.record_count(topic, partition) for partition in range(case.partitions))
        expected = int(measured.result["records_total"])
        if found != expected:
            raise BrokerFailed(f"{broker.system}: {topic} holds {found} records instead of {expected}")
    return {
        f"{case.key}.rate": measured.bytes_per_s / 1e6,
        f"{case.key}.cpu": measured.broker_cpu_s / (measured.result["bytes"] / 1e9),
        f"{case.key}.generator": measured.generator_cpu_percent,
    }
