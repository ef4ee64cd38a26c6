"""Consume throughput: librdkafka from the beginning of a topic that lies in the page cache."""

from __future__ import annotations

from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import CONSUME, HALF, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import Figures, load, new_topic_name

RECORD_SIZES: Final = (100, 1_000)
# Between the 16 KiB of a default Java producer and librdkafka's 1 MB.
FILL_BATCH_BYTES: Final = 65_536
TIMEOUT_S: Final = 180.0
TUNED: Final = {"fetch.queue.backoff.ms": 1}
"""Otherwise the client rests for a second whenever it has enough messages, and we would measure that."""


class LibrdkafkaConsume:
    name: ClassVar[str] = "librdkafka-consume"
    summary: ClassVar[str] = (
        "librdkafka consumer from the beginning of a topic, 100 B and 1,000 B, page cache warm"
    )

    def __init__(self) -> None:
        self._topics: dict[tuple[Broker, int], tuple[str, int]] = {}

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in RECORD_SIZES:
            key, title = f"librdkafka-consume.{size}", f"librdkafka consume, {size:,} B"
            metrics.append(Metric(key=f"{key}.rate", title=title, unit="MB/s", target=CONSUME))
            metrics.append(
                Metric(
                    key=f"{key}.cpu",
                    title=f"{title}: broker CPU",
                    unit="s/GB",
                    better=Better.LOWER,
                    target=HALF,
                )
            )
            metrics.append(
                Metric(
                    key=f"{key}.generator",
                    title=f"{title}: client",
                    unit="% of a core",
                    is_compared=False,
                )
            )
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        for size in RECORD_SIZES:
            topic, records = self._filled_topic(broker, profile, size)
            measured = load(
                broker,
                "librdkafka_consume",
                TIMEOUT_S,
                topic=topic,
                record_size=size,
                records=records,
                passes=max(1, round(profile.consume_passes * scale)),
                settings=TUNED,
            )
            key = f"librdkafka-consume.{size}"
            figures[f"{key}.rate"] = measured.bytes_per_s / 1e6
            figures[f"{key}.cpu"] = measured.broker_cpu_s / (measured.result["bytes"] / 1e9)
            figures[f"{key}.generator"] = measured.generator_cpu_percent
        return figures

    def _filled_topic(self, broker: Broker, profile: Profile, size: int) -> tuple[str, int]:
        """The topic of this broker with its number of records, filled in the warm-up round."""
        if (broker, size) not in self._topics:
            topic = new_topic_name(f"consume-{size}")
            broker.create_topic(topic)
            filled = load(
                broker,
                "pipelined",
                TIMEOUT_S,
                topic=topic,
                record_size=size,
                batch_bytes=FILL_BATCH_BYTES,
                in_flight=5,
                # Small messages take a client about four times as long for each byte.
                bytes_max=profile.consume_bytes // (4 if size < 1_000 else 1),
                seconds=TIMEOUT_S / 2,
            )
            self._topics[broker, size] = (topic, int(filled.result["records"]))
        return self._topics[broker, size]
