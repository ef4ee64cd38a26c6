"""Writing into topics with Spark: what exactly-once costs beside at-least-once, with Millrace's sink."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Final

from benchmarks.brokers import BrokerFactory, BrokerFailed, System
from benchmarks.metrics import Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Target
from benchmarks.workloads.base import Figures, load, new_topic_name

RECORDS: Final[Mapping[str, Mapping[int, int]]] = {
    "standard": {100: 1_000_000, 1_000: 150_000},
    "quick": {100: 400_000, 1_000: 80_000},
    "smoke": {100: 10_000, 1_000: 2_000},
    "counted": {100: 10_000, 1_000: 2_000},
}
TURNS: Final = {"standard": 3, "quick": 2, "smoke": 1, "counted": 1}
PARTITIONS: Final = 4
TASKS: Final = 4
EPOCHS: Final = 8
MODES: Final = ("batch", "stream")
DELIVERIES: Final = ("exactly_once", "at_least_once")
RATIO: Final = Target(0.7, of_ratio=False)
TIMEOUT_S: Final = 900.0


class SparkWrite:
    name: ClassVar[str] = "spark-write"
    summary: ClassVar[str] = (
        "Spark writes into a topic, one batch and a stream of 8 epochs, 100 B and 1,000 B, exactly once and"
        " at least once in turns: Millrace's sink on both brokers"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in RECORDS[profile.name]:
            for mode in MODES:
                key, title = f"spark-write.{mode}.{size}", f"Spark {mode} write, {size:,} B"
                for delivery in DELIVERIES:
                    words = delivery.replace("_", " ")
                    metrics.append(Metric(key=f"{key}.{delivery}", title=f"{title}, {words}", unit="krows/s"))
                metrics.append(
                    Metric(
                        key=f"{key}.ratio",
                        title=f"{title}: exactly to at least once",
                        unit="x",
                        target=RATIO,
                    )
                )
        return metrics

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        records, turns = RECORDS[profile.name], TURNS[profile.name]
        broker = factory.create(system)
        try:
            broker.start()
            topic = new_topic_name("spark-write")
            broker.create_topic(topic, PARTITIONS)
            result = load(
                broker,
                "spark_write",
                TIMEOUT_S,
                topic=topic,
                records=dict(records),
                master=f"local[{os.cpu_count() or 2}]",
                tasks=TASKS,
                epochs=EPOCHS,
                turns=turns,
            ).result
            written = sum(records.values()) * len(MODES) * len(DELIVERIES) * (turns + 1)
            found = sum(broker.record_count(topic, partition) for partition in range(PARTITIONS))
        finally:
            broker.stop()
            broker.remove_files()
        # Markers of transactions have offsets too.
        if found < written:
            raise BrokerFailed(f"{system}: {topic} ends at {found}, below the {written} records written")
        figures: dict[str, float] = {}
        for size, count in records.items():
            for mode in MODES:
                key = f"spark-write.{mode}.{size}"
                for delivery in DELIVERIES:
                    seconds = result[f"{mode}.{size}.{delivery}.elapsed_s"]
                    figures[f"{key}.{delivery}"] = count / seconds / 1e3
                figures[f"{key}.ratio"] = figures[f"{key}.exactly_once"] / figures[f"{key}.at_least_once"]
        return figures
