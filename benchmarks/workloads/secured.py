"""The same work over SASL_SSL: TLS 1.3, a login by SCRAM-SHA-256. librdkafka's and Kafka's own clients."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import Metric
from benchmarks.processes import GeneratorFailed, run_bounded
from benchmarks.profiles import Profile
from benchmarks.secured import Secured
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import (
    Figures,
    load,
    new_topic_name,
    size_text,
    temporary_topic,
    with_broker_cpu,
)
from benchmarks.workloads.consume import FILL_BATCH_BYTES, TUNED
from benchmarks.workloads.produce import BATCH_SIZES, QUEUE_BYTES, steady_rate
from tools.kafka_distribution import KafkaDistribution

RECORD_BYTES: Final = 1_000
TIMEOUT_S: Final = 240.0
WARM_UP_MESSAGES: Final = 500
LOGINS_PER_MINUTE: Final = 10_000
PRODUCE: Final = Target(1.3)
CONSUME: Final = Target(1.5)
CPU: Final = Target(0.6)
MEDIAN: Final = Target(0.6)
TAIL: Final = Target(0.5)
LOGINS: Final = Target(0.99 * LOGINS_PER_MINUTE, of_ratio=False)
SLOWEST_MS: Final = Target(50.0, of_ratio=False)
"""No request of others may take so long while everybody logs in: a login that is worked out on the loop would
show here."""


def listener(broker: Broker) -> Secured:
    assert broker.secured is not None, f"{broker.system} has no secured listener"
    return broker.secured


def _cost(key: str, title: str, target: Target | None = None) -> Metric:
    return Metric(
        key=f"{key}.cpu", title=f"{title}: broker CPU", unit="s/GB", better=Better.LOWER, target=target
    )


class SecuredProduce:
    name: ClassVar[str] = "secured-produce"
    summary: ClassVar[str] = "SASL_SSL: librdkafka producer, acks=all, 1,000 B, batches of 16 KiB and 1 MB"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for batch_bytes in BATCH_SIZES:
            key = f"secured-produce.{batch_bytes}"
            title = f"SASL_SSL librdkafka produce, {size_text(batch_bytes)} batches"
            metrics.append(Metric(key=f"{key}.rate", title=title, unit="MB/s", target=PRODUCE))
            metrics.append(_cost(key, title))
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        secured = listener(broker)
        for batch_bytes in BATCH_SIZES:
            with temporary_topic(broker, "secured") as topic:
                measured = load(
                    broker,
                    "librdkafka_produce",
                    TIMEOUT_S,
                    bootstrap=secured.bootstrap,
                    client=secured.client,
                    topic=topic,
                    record_size=RECORD_BYTES,
                    batch_bytes=batch_bytes,
                    queue_bytes=QUEUE_BYTES,
                    seconds=profile.produce_s * scale,
                    bytes_max=profile.written_bytes_max,
                )
                broker.require_records(topic, int(measured.result["records_total"]))
            key = f"secured-produce.{batch_bytes}"
            figures[f"{key}.rate"] = measured.bytes_per_s / 1e6
            figures[f"{key}.cpu"] = measured.broker_cpu_s / (measured.result["bytes"] / 1e9)
        return figures


class _Filled:
    """Topics that were filled over the plain listener, one for each broker."""

    def __init__(self) -> None:
        self._topics: dict[Broker, tuple[str, int]] = {}

    def topic(self, broker: Broker, profile: Profile) -> tuple[str, int]:
        if broker not in self._topics:
            topic = new_topic_name("secured-consume")
            broker.create_topic(topic)
            filled = load(
                broker,
                "pipelined",
                TIMEOUT_S,
                topic=topic,
                record_size=RECORD_BYTES,
                batch_bytes=FILL_BATCH_BYTES,
                in_flight=5,
                bytes_max=profile.consume_bytes,
                seconds=TIMEOUT_S / 2,
            )
            self._topics[broker] = (topic, int(filled.result["records"]))
        return self._topics[broker]


class SecuredConsume:
    name: ClassVar[str] = "secured-consume"
    summary: ClassVar[str] = "SASL_SSL: librdkafka consumer from the beginning of a topic, 1,000 B"

    def __init__(self) -> None:
        self._filled = _Filled()

    def metrics(self, profile: Profile) -> list[Metric]:
        title = "SASL_SSL librdkafka consume"
        rate = Metric(key="secured-consume.rate", title=title, unit="MB/s", target=CONSUME)
        return [rate, _cost("secured-consume", title, CPU)]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        topic, records = self._filled.topic(broker, profile)
        secured = listener(broker)
        measured = load(
            broker,
            "librdkafka_consume",
            TIMEOUT_S,
            bootstrap=secured.bootstrap,
            topic=topic,
            record_size=RECORD_BYTES,
            records=records,
            passes=max(1, round(profile.consume_passes * scale)),
            settings={**TUNED, **secured.client},
        )
        return {
            "secured-consume.rate": measured.bytes_per_s / 1e6,
            "secured-consume.cpu": measured.broker_cpu_s / (measured.result["bytes"] / 1e9),
        }


class SecuredJava:
    name: ClassVar[str] = "secured-java"
    summary: ClassVar[str] = "SASL_SSL: Kafka's ProducerPerformance and ConsumerPerformance, 1,000 B"

    def __init__(self, distribution: KafkaDistribution) -> None:
        self._distribution = distribution
        self._filled = _Filled()

    def metrics(self, profile: Profile) -> list[Metric]:
        produce, consume = "SASL_SSL Java produce", "SASL_SSL Java consume"
        return [
            Metric(key="secured-java.produce.rate", title=produce, unit="rec/s", target=PRODUCE),
            _cost("secured-java.produce", produce),
            Metric(key="secured-java.consume.rate", title=consume, unit="rec/s", target=CONSUME),
            _cost("secured-java.consume", consume, CPU),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        config = listener(broker).write_java_client()
        records = int(profile.java_records[RECORD_BYTES] * scale)
        total = records + records // 4
        with temporary_topic(broker, "secured-java") as topic:
            produced, produce_cpu_s = with_broker_cpu(
                broker,
                partial(
                    run_bounded,
                    self._command(
                        broker,
                        "ProducerPerformance",
                        *("--topic", topic, "--record-size", str(RECORD_BYTES)),
                        *("--num-records", str(total), "--warmup-records", str(records // 4)),
                        *("--throughput", "-1", "--command-property", "acks=all"),
                        *("--command-config", str(config)),
                    ),
                    timeout_s=TIMEOUT_S,
                ),
            )
            broker.require_records(topic, total)
        topic, records = self._filled.topic(broker, profile)
        consumed, consume_cpu_s = with_broker_cpu(
            broker,
            partial(
                run_bounded,
                self._command(
                    broker,
                    "ConsumerPerformance",
                    *("--topic", topic, "--num-records", str(records), "--timeout", "30000"),
                    *("--command-config", str(config), "--group", new_topic_name("group")),
                ),
                timeout_s=TIMEOUT_S,
            ),
        )
        return {
            "secured-java.produce.rate": steady_rate(produced),
            "secured-java.produce.cpu": produce_cpu_s / (total * RECORD_BYTES / 1e9),
            "secured-java.consume.rate": fetch_rate(consumed),
            "secured-java.consume.cpu": consume_cpu_s / (records * RECORD_BYTES / 1e9),
        }

    def _command(self, broker: Broker, tool: str, *arguments: str) -> list[str]:
        return self._distribution.command(
            f"org.apache.kafka.tools.{tool}",
            *("--bootstrap-server", listener(broker).bootstrap),
            *arguments,
            heap="512M",
        )


def fetch_rate(output: str) -> float:
    """Records per second of fetching, without the time to join, from ConsumerPerformance's last line."""
    lines = [line for line in output.splitlines() if line[:2].isdigit() and line.count(",") >= 9]
    if not lines:
        raise GeneratorFailed(f"no result in the output of ConsumerPerformance: {output[-300:]}")
    return float(lines[-1].split(",")[9])


class SecuredLatency:
    name: ClassVar[str] = "secured-latency"
    summary: ClassVar[str] = "SASL_SSL: end to end, one message at a time, acks=all: p50, p99"

    def metrics(self, profile: Profile) -> list[Metric]:
        return [
            Metric(
                key=f"secured-latency.{key}",
                title=f"SASL_SSL end-to-end latency, {key}",
                unit="ms",
                better=Better.LOWER,
                target=target,
            )
            for key, target in (("p50", MEDIAN), ("p99", TAIL))
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        secured = listener(broker)
        with temporary_topic(broker, "secured-latency") as topic:
            measured = load(
                broker,
                "latency",
                TIMEOUT_S,
                bootstrap=secured.bootstrap,
                client=secured.client,
                topic=topic,
                warm_up_messages=WARM_UP_MESSAGES,
                messages=int(profile.latency_messages * scale),
            )
        return {f"secured-latency.{key}": measured.result[f"{key}_ms"] for key in ("p50", "p99")}


class SecuredLogins:
    name: ClassVar[str] = "secured-logins"
    summary: ClassVar[str] = (
        "SASL_SSL: 10,000 SCRAM logins a minute, and the latency of somebody else's requests"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        latencies = (
            ("alone", "another's requests before the logins, p99", None),
            ("p50", "another's requests beside them, p50", None),
            ("p99", "another's requests beside them, p99", TAIL),
            ("slowest", "another's slowest request beside them", SLOWEST_MS),
            ("login", "a login, p99", None),
        )
        return [
            Metric(key="secured-logins.rate", title="SCRAM logins", unit="/min", target=LOGINS),
            *(
                Metric(
                    key=f"secured-logins.{key}",
                    title=f"SCRAM logins: {title}",
                    unit="ms",
                    better=Better.LOWER,
                    target=target,
                )
                for key, title, target in latencies
            ),
            Metric(
                key="secured-logins.cpu",
                title="SCRAM logins: broker CPU, with the requests beside them",
                unit="% of a core",
                better=Better.LOWER,
            ),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        secured = listener(broker)
        seconds = max(profile.requests_s * 4 * scale, 1.0)
        with temporary_topic(broker, "secured-logins") as topic:
            measured = load(
                broker,
                "logins",
                TIMEOUT_S,
                secured_port=secured.port,
                client=secured.client,
                topic=topic,
                per_minute=LOGINS_PER_MINUTE,
                seconds=seconds,
            )
        result = measured.result
        return {
            "secured-logins.rate": result["logins_per_minute"],
            "secured-logins.alone": result["alone_p99_ms"],
            "secured-logins.p50": result["p50_ms"],
            "secured-logins.p99": result["p99_ms"],
            "secured-logins.slowest": result["slowest_ms"],
            "secured-logins.login": result["login_p99_ms"],
            "secured-logins.cpu": 100 * measured.broker_cpu_s / result["elapsed_s"],
        }
