"""Queues: share groups of Kafka's own client, of librdkafka and of a bare socket, beside Kafka's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import HALF, PRODUCE, Metric
from benchmarks.processes import GeneratorFailed, run_bounded
from benchmarks.profiles import Profile
from benchmarks.servers import HOST
from benchmarks.share_client import begin_with_all_records
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load, new_topic_name, temporary_topic, with_broker_cpu
from tools.kafka_distribution import KafkaDistribution

TIMEOUT_S: Final = 240.0
SMALL_BATCH: Final = 16_384
LARGE_BATCH: Final = 1_000_000
JAVA_SOURCE: Final = Path(__file__).parents[1] / "generators" / "java" / "ShareLoad.java"
JAVA_RECORDS: Final = {"standard": 2_000_000, "quick": 800_000, "smoke": 40_000, "counted": 40_000}
PERFORMANCE_PARTITIONS: Final = 4
INTERVAL_MS: Final = 250
DRAIN_BYTES: Final = {
    "standard": 200_000_000,
    "quick": 80_000_000,
    "smoke": 8_000_000,
    "counted": 8_000_000,
}
RECORD_SIZES: Final = (100, 1_000)
ONE_RECORDS: Final = 100_000
WARM_UP_MESSAGES: Final = 300
WORKERS: Final = 64
WORK_MS: Final = 5
POSSIBLE: Final = WORKERS * 1000 / WORK_MS
WORKERS_S: Final = {"standard": (8.0, 10.0), "quick": (5.0, 5.0), "smoke": (2.0, 1.0), "counted": (2.0, 1.0)}
"""Until all of them are in the group, and then measured."""
WORKER_RECORDS: Final = 400_000
HANG_RECORDS: Final = 50_000
HANG_BATCH: Final = 1_500
"""About ten records in each batch."""
HELD: Final = 10
HANG_S: Final = 10.0

DRAIN: Final = Target(1.0)
FIRST_S: Final = Target(0.5, of_ratio=False)
ONE_RATE: Final = Target(3_000, of_ratio=False)
ONE_TAIL_MS: Final = Target(1.0, of_ratio=False)
WORKERS_PERCENT: Final = Target(85.0, of_ratio=False)
ALL_PERCENT: Final = Target(100.0, of_ratio=False)


def _fill(
    broker: Broker, topic: str, size: int, records: int, batch_bytes: int = SMALL_BATCH, partitions: int = 1
) -> int:
    """Write records into a topic; how many there are."""
    found = 0
    for partition in range(partitions):
        filled = load(
            broker,
            "pipelined",
            TIMEOUT_S,
            topic=topic,
            partition=partition,
            record_size=size,
            batch_bytes=batch_bytes,
            in_flight=5,
            bytes_max=size * records // partitions,
            seconds=TIMEOUT_S / 2,
        )
        found += int(filled.result["records"])
    return found


def _new_group(broker: Broker) -> str:
    """One that begins with all records that there are."""
    group = new_topic_name("queue")
    begin_with_all_records(HOST, broker.port, group)
    return group


def _rate(key: str, title: str, target: Target | None) -> Metric:
    return Metric(key=f"{key}.rate", title=title, unit="rec/s", target=target)


def _cost(key: str, title: str, target: Target | None = None) -> Metric:
    return Metric(
        key=f"{key}.cpu", title=f"{title}: broker CPU", unit="s/M rec", better=Better.LOWER, target=target
    )


def _time(key: str, title: str, unit: str, target: Target | None = None) -> Metric:
    return Metric(key=key, title=title, unit=unit, better=Better.LOWER, target=target)


class QueueJava:
    name: ClassVar[str] = "queue-java"
    summary: ClassVar[str] = "share groups: Kafka's ShareConsumerPerformance, and Java with an ack per record"

    def __init__(self, distribution: KafkaDistribution) -> None:
        self._distribution = distribution

    def metrics(self, profile: Profile) -> list[Metric]:
        implicit, explicit = "queue, ShareConsumerPerformance", "queue, Java, every record acknowledged"
        return [
            _rate("queue-java.performance", implicit, PRODUCE),
            _cost("queue-java.performance", implicit, HALF),
            _rate("queue-java.acknowledge", explicit, PRODUCE),
            _cost("queue-java.acknowledge", explicit, HALF),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        wanted = int(JAVA_RECORDS[profile.name] * scale)
        figures: dict[str, float] = {}
        with temporary_topic(broker, "queue-performance", PERFORMANCE_PARTITIONS) as topic:
            records = _fill(broker, topic, 100, wanted, partitions=PERFORMANCE_PARTITIONS)
            output, cpu_s = self._run(
                broker,
                "org.apache.kafka.tools.ShareConsumerPerformance",
                *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", _new_group(broker)),
                *("--num-records", str(records), "--timeout", str(int(TIMEOUT_S * 500))),
                *("--show-detailed-stats", "--reporting-interval", str(INTERVAL_MS)),
            )
            figures["queue-java.performance.rate"] = steady_share_rate(output)
            figures["queue-java.performance.cpu"] = cpu_s / (records / 1e6)
        with temporary_topic(broker, "queue-acknowledge") as topic:
            records = _fill(broker, topic, 100, wanted)
            arguments = ("acknowledge", broker.bootstrap, topic, _new_group(broker), str(records))
            output, cpu_s = self._run(broker, str(JAVA_SOURCE), *arguments)
            figures["queue-java.acknowledge.rate"] = share_load_rate(output)
            figures["queue-java.acknowledge.cpu"] = cpu_s / (records / 1e6)
        return figures

    def _run(self, broker: Broker, *words: str) -> tuple[str, float]:
        command = self._distribution.command(words[0], *words[1:], heap="512M")
        return with_broker_cpu(broker, partial(run_bounded, command, timeout_s=TIMEOUT_S))


class QueueLibrdkafka:
    name: ClassVar[str] = "queue-librdkafka"
    summary: ClassVar[str] = "share groups: librdkafka drains a topic, 100 B and 1,000 B; a new group's start"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in RECORD_SIZES:
            key, title = f"queue-librdkafka.{size}", f"queue, librdkafka drain, {size:,} B"
            metrics += [_rate(key, title, DRAIN), _cost(key, title)]
        return [
            *metrics,
            _time("queue-librdkafka.first", "queue, new group to its first record", "s", FIRST_S),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        firsts = []
        for size in RECORD_SIZES:
            with temporary_topic(broker, "queue-drain") as topic:
                wanted = int(DRAIN_BYTES[profile.name] * scale) // size
                records = _fill(broker, topic, size, wanted, LARGE_BATCH)
                measured = load(
                    broker,
                    "queue_librdkafka",
                    TIMEOUT_S,
                    topic=topic,
                    group=new_topic_name("queue"),
                    records=records,
                    record_size=size,
                )
            result = measured.result
            figures[f"queue-librdkafka.{size}.rate"] = result["records"] / result["elapsed_s"]
            figures[f"queue-librdkafka.{size}.cpu"] = measured.broker_cpu_s / (records / 1e6)
            firsts.append(result["first_s"])
        figures["queue-librdkafka.first"] = max(firsts)
        return figures


class QueueOne:
    name: ClassVar[str] = "queue-one"
    summary: ClassVar[str] = "share groups: one record at a time with a confirmed ack, from a bare socket"

    def metrics(self, profile: Profile) -> list[Metric]:
        title = "queue, one at a time with confirmed ack"
        return [
            _rate("queue-one", title, ONE_RATE),
            _time("queue-one.p50", f"{title}, p50", "ms"),
            _time("queue-one.p99", f"{title}, p99", "ms", ONE_TAIL_MS),
            _time("queue-one.ack", f"{title}: the ack alone, p99", "ms"),
            _time("queue-one.cpu", f"{title}: broker CPU", "µs/req"),
            Metric(
                key="queue-one.generator",
                title=f"{title}: generator",
                unit="% of a core",
                is_compared=False,
            ),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        with temporary_topic(broker, "queue-one") as topic:
            _fill(broker, topic, 100, ONE_RECORDS)
            measured = load(
                broker,
                "queue_one",
                TIMEOUT_S,
                topic=topic,
                group=new_topic_name("queue"),
                seconds=profile.requests_s * scale,
            )
        result = measured.result
        return {
            "queue-one.rate": result["records"] / result["elapsed_s"],
            "queue-one.p50": result["p50_ms"],
            "queue-one.p99": result["p99_ms"],
            "queue-one.ack": result["acknowledge_p99_ms"],
            "queue-one.cpu": measured.broker_cpu_s / result["records_total"] * 1e6,
            "queue-one.generator": measured.generator_cpu_percent,
        }


class QueueLatency:
    name: ClassVar[str] = "queue-latency"
    summary: ClassVar[str] = "share groups: end to end, one message at a time, librdkafka: p50, p99"

    def metrics(self, profile: Profile) -> list[Metric]:
        title = "queue, end-to-end latency"
        return [
            _time("queue-latency.p50", f"{title}, p50", "ms", HALF),
            _time("queue-latency.p99", f"{title}, p99", "ms"),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        with temporary_topic(broker, "queue-latency") as topic:
            measured = load(
                broker,
                "queue_latency",
                TIMEOUT_S,
                topic=topic,
                group=new_topic_name("queue"),
                warm_up_messages=WARM_UP_MESSAGES,
                messages=int(profile.latency_messages * scale) // 2,
            )
        return {f"queue-latency.{key}": measured.result[f"{key}_ms"] for key in ("p50", "p99")}


class QueueWorkers:
    name: ClassVar[str] = "queue-workers"
    summary: ClassVar[str] = "share groups: 64 Java workers of 5 ms for each record, default client settings"

    def __init__(self, distribution: KafkaDistribution) -> None:
        self._distribution = distribution

    def metrics(self, profile: Profile) -> list[Metric]:
        title = f"queue, {WORKERS} workers of {WORK_MS} ms"
        return [
            Metric(
                key="queue-workers.percent",
                title=f"{title}, share of what is possible",
                unit="%",
                target=WORKERS_PERCENT,
            ),
            Metric(key="queue-workers.busy", title=f"{title}: those that got anything", unit=""),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        warm_up_s, seconds = WORKERS_S[profile.name]
        with temporary_topic(broker, "queue-workers") as topic:
            _fill(broker, topic, 100, WORKER_RECORDS)
            command = self._distribution.command(
                str(JAVA_SOURCE),
                *("workers", broker.bootstrap, topic, _new_group(broker), str(WORKERS), str(WORK_MS)),
                *(str(warm_up_s), str(seconds * scale)),
                heap="1G",
            )
            result = _last_json(run_bounded(command, timeout_s=TIMEOUT_S))
        done_per_s = result["records"] / result["elapsed_s"]
        return {"queue-workers.percent": 100 * done_per_s / POSSIBLE, "queue-workers.busy": result["busy"]}


class QueueHang:
    name: ClassVar[str] = "queue-hang"
    summary: ClassVar[str] = "share groups: a member hangs with 10 records while another drains 50,000"

    def metrics(self, profile: Profile) -> list[Metric]:
        title = f"queue, a member hangs with {HELD} records"
        return [
            Metric(
                key="queue-hang.percent",
                title=f"{title}: what another gets of the rest in {HANG_S:.0f} s",
                unit="%",
                target=ALL_PERCENT,
            )
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        with temporary_topic(broker, "queue-hang") as topic:
            records = _fill(broker, topic, 100, HANG_RECORDS, HANG_BATCH)
            measured = load(
                broker,
                "queue_hang",
                TIMEOUT_S,
                topic=topic,
                group=new_topic_name("queue"),
                records=records,
                held=HELD,
                seconds=HANG_S * scale,
            )
        return {"queue-hang.percent": measured.result["drained_percent"]}


def steady_share_rate(output: str) -> float:
    """Records per second from the first quarter of all records on, from ShareConsumerPerformance's lines for
    each interval: the tool's own figure counts the time to join, which is five seconds with Kafka."""
    points = [_point(line.split(",")) for line in output.splitlines() if "for share consumer" in line]
    if not points:
        raise GeneratorFailed(f"no intervals in the output of ShareConsumerPerformance: {output[-300:]}")
    quarter = points[-1][1] / 4
    steady = [point for point in points if point[1] >= quarter]
    (first_s, first), (last_s, last) = steady[0], steady[-1]
    if last_s <= first_s:
        raise GeneratorFailed("ShareConsumerPerformance ended within one interval: more records are needed")
    return (last - first) / (last_s - first_s)


def share_load_rate(output: str) -> float:
    result = _last_json(output)
    return result["records"] / result["elapsed_s"]


def _point(fields: Sequence[str]) -> tuple[float, int]:
    """When an interval ended, and how many records there were by then."""
    ended = datetime.strptime(fields[1].strip(), "%Y-%m-%d %H:%M:%S:%f")  # noqa: DTZ007 - differences only
    return ended.timestamp(), int(fields[5])


def _last_json(output: str) -> dict[str, float]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise GeneratorFailed(f"ShareLoad told nothing: {output[-300:]}")
    result: dict[str, float] = json.loads(lines[-1])
    return result
