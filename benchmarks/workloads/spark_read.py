"""Reading topics with Spark: Millrace's source, and Spark's own Kafka connector (JVM) in Kafka's column.

Both read the same records from a Millrace broker, on as many cores as there are: the broker's speed is not
the question here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks import spark_environment
from benchmarks.brokers import Broker, BrokerFactory, System
from benchmarks.metrics import Metric
from benchmarks.processes import GeneratorFailed
from benchmarks.profiles import Profile
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load, new_topic_name
from millrace.pipeline.errors import SparkUnavailable

RECORDS: Final[Mapping[str, Mapping[int, int]]] = {
    # A new query costs either Spark about a second, whatever it reads: these are enough to make that little.
    "standard": {100: 5_000_000, 1_000: 1_000_000},
    "quick": {100: 1_500_000, 1_000: 300_000},
    "smoke": {100: 20_000, 1_000: 5_000},
    "counted": {100: 20_000, 1_000: 5_000},
}
PARTITIONS: Final = 2
FILL_BATCH_BYTES: Final = 65_536
FILL_TIMEOUT_S: Final = 120.0
SPARK_TIMEOUT_S: Final = 600.0
MODES: Final = {"batch": Target(1.3), "stream": Target(1.0)}

_SCRIPT: Final = Path(__file__).parent.parent / "generators" / "spark_read.py"


class SparkRead:
    name: ClassVar[str] = "spark-read"
    summary: ClassVar[str] = (
        "Spark reads topics whole, batch and AvailableNow stream, 100 B and 1,000 B: Millrace's source"
        " against Spark's own Kafka connector (in Kafka's column), both on a Millrace broker"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in RECORDS[profile.name]:
            for mode, target in MODES.items():
                key, title = f"spark-read.{mode}.{size}", f"Spark {mode} read, {size:,} B"
                metrics.append(Metric(key=f"{key}.rate", title=title, unit="krows/s", target=target))
                metrics.append(
                    Metric(key=f"{key}.cpu", title=f"{title}: CPU", unit="s/M rows", better=Better.LOWER)
                )
        return metrics

    def rounds(self, profile: Profile) -> int:
        # A round takes a minute or two for each side.
        return max(1, profile.start_ups - 1)

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        broker = factory.create(System.MILLRACE)
        try:
            broker.start()
            topics = {
                size: _filled_topic(broker, size, count) for size, count in RECORDS[profile.name].items()
            }
            result = _run_spark(system, broker.bootstrap, {size: name for size, (name, _) in topics.items()})
        finally:
            broker.stop()
            broker.remove_files()
        figures: dict[str, float] = {}
        for size, (_, written) in topics.items():
            rows = result[f"{size}.rows"]
            if rows != written:
                raise GeneratorFailed(f"spark-read: {rows:.0f} of {written} records of {size} B were read")
            for mode in MODES:
                key = f"spark-read.{mode}.{size}"
                figures[f"{key}.rate"] = rows / result[f"{mode}.{size}.elapsed_s"] / 1e3
                figures[f"{key}.cpu"] = result[f"{mode}.{size}.cpu_s"] / (rows / 1e6)
        return figures


def _filled_topic(broker: Broker, size: int, records: int) -> tuple[str, int]:
    topic = new_topic_name(f"spark-{size}")
    broker.create_topic(topic, PARTITIONS)
    written = 0
    for partition in range(PARTITIONS):
        filled = load(
            broker,
            "pipelined",
            FILL_TIMEOUT_S,
            topic=topic,
            partition=partition,
            record_size=size,
            batch_bytes=FILL_BATCH_BYTES,
            in_flight=5,
            bytes_max=records * size // PARTITIONS,
            seconds=FILL_TIMEOUT_S / 2,
        )
        written += int(filled.result["records"])
    return topic, written


def _run_spark(system: System, bootstrap: str, topics: Mapping[int, str]) -> dict[str, float]:
    """Run the script in the environment of one of the two sources."""
    arguments: dict[str, Any] = {"topics": topics, "master": f"local[{os.cpu_count() or 2}]"}
    if system is System.MILLRACE:
        command, environment = [sys.executable, str(_SCRIPT)], dict(os.environ)
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        arguments |= {"format": "millrace", "options": {"bootstrap.servers": bootstrap}}
    else:
        try:
            other = spark_environment.locate()
        except SparkUnavailable as missing:
            raise GeneratorFailed(f"spark-read: {missing}") from missing
        command, environment = other.command(_SCRIPT), dict(other.environment())
        arguments |= {"format": "kafka", "options": {"kafka.bootstrap.servers": bootstrap}}
    try:
        answer = subprocess.run(
            [*command, json.dumps(arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SPARK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GeneratorFailed(f"spark-read: no end within {SPARK_TIMEOUT_S:.0f} s") from error
    if answer.returncode != 0:
        raise GeneratorFailed(f"spark-read: {answer.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return result
