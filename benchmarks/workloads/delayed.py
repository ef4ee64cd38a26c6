"""Delayed messages: what many that wait cost, how soon a restarted broker delivers, how late they come.

Apache Kafka has none: only Millrace is measured.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from benchmarks import share_frames as frames
from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System
from benchmarks.connection import Connection
from benchmarks.metrics import Metric
from benchmarks.profiles import Profile
from benchmarks.servers import HOST
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load

TOPIC: Final = "bench-delayed"
SETTINGS: Final = {"delayed.delivery.enable": "true"}
PENDING: Final = {"standard": 10_000_000, "quick": 1_000_000, "smoke": 20_000, "counted": 20_000}
RATE: Final = {"standard": 5_000, "quick": 5_000, "smoke": 500, "counted": 500}
DUE_S: Final = {"standard": 20.0, "quick": 10.0, "smoke": 4.0, "counted": 4.0}
FILL_BATCH: Final = 500
DUE_BATCH: Final = 50
DAY_S: Final = 86_400
OVERDUE_S: Final = 1.0
LEAD_S: Final = {"standard": 40.0, "quick": 25.0, "smoke": 10.0, "counted": 60.0}
"""Long enough to stop and start again before the first of them is due."""
TIMEOUT_S: Final = 1_800.0
PATIENCE_S: Final = 60.0


class QueueDelayed:
    name: ClassVar[str] = "queue-delayed"
    summary: ClassVar[str] = "10 million delayed messages pending: restart, memory, lateness (Millrace alone)"

    def metrics(self, profile: Profile) -> list[Metric]:
        title = f"{PENDING[profile.name]:,} delayed messages"
        rate = f"{RATE[profile.name]:,} due per second"

        def metric(key: str, name: str, unit: str, target: float | None = None) -> Metric:
            return Metric(
                key=f"queue-delayed.{key}",
                title=f"{title}: {name}",
                unit=unit,
                better=Better.LOWER,
                target=None if target is None else Target(target, of_ratio=False),
            )

        return [
            Metric(key="queue-delayed.fill", title=f"{title}: writing them", unit="rec/s"),
            metric("first", "restart to the first delivery", "s", 5.0),
            metric("mb", "more memory", "MB", 300.0),
            metric("late_p50", f"lateness at {rate}, p50", "ms"),
            metric("late_p99", f"lateness at {rate}, p99", "ms", 1_000.0),
            metric("late_max", f"lateness at {rate}, at most", "ms"),
        ]

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        if system is System.KAFKA:
            return {}
        broker = factory.create(system)
        try:
            broker.start()
            _create_topic(broker)
            # The first of them bring what code and buffers take; after that memory is theirs.
            _fill(broker, records=FILL_BATCH, batch_records=FILL_BATCH, due_from_s=time.time() + DAY_S)
            before_mb = broker.resident_mb()
            filled = _fill(
                broker,
                records=PENDING[profile.name],
                batch_records=FILL_BATCH,
                due_from_s=time.time() + DAY_S,
                due_s=DAY_S,
            )
            figures = {"queue-delayed.fill": filled["records"] / filled["elapsed_s"]}
            figures |= _deliver(broker, profile, before_mb)
        finally:
            broker.stop()
            broker.remove_files()
        return figures


def _deliver(broker: Broker, profile: Profile, before_mb: float) -> dict[str, float]:
    """Stop, start again when something is overdue, and watch."""
    name = profile.name
    count, now_s = int(RATE[name] * DUE_S[name]), time.time()
    _fill(broker, records=1, batch_records=1, due_from_s=now_s + OVERDUE_S)
    due_from_s = now_s + LEAD_S[name]
    due = {"records": count, "batch_records": DUE_BATCH, "due_from_s": due_from_s, "due_s": DUE_S[name]}
    _fill(broker, **due)
    broker.stop()
    time.sleep(max(0.0, now_s + OVERDUE_S - time.time()))
    started_s = time.time()
    broker.start()
    result = load(
        broker,
        "queue_delayed",
        TIMEOUT_S,
        work="watch",
        topic=TOPIC,
        started_s=started_s,
        due_from_ms=int(due_from_s * 1000),
        records=count,
        patience_s=LEAD_S[name] + PATIENCE_S,
    ).result
    return {
        "queue-delayed.first": result["first_s"],
        "queue-delayed.mb": broker.resident_mb() - before_mb,
        **{f"queue-delayed.{key}": result[f"{key}_ms"] for key in ("late_p50", "late_p99", "late_max")},
    }


def _create_topic(broker: Broker) -> None:
    broker.create_topic(TOPIC)
    with Connection(HOST, broker.port) as connection:
        answer = connection.request(frames.topic_settings(TOPIC, SETTINGS))
    (changed,) = frames.decoded(frames.INCREMENTAL_ALTER_CONFIGS, answer)["responses"]
    if changed["error_code"] != "none":
        raise BrokerFailed(f"{TOPIC} cannot hold delayed messages: {changed['error_message']}")


def _fill(broker: Broker, *, due_from_s: float, due_s: float = 1.0, **arguments: Any) -> dict[str, float]:
    measured = load(
        broker,
        "queue_delayed",
        TIMEOUT_S,
        work="fill",
        topic=TOPIC,
        due_from_ms=int(due_from_s * 1000),
        due_s=due_s,
        **arguments,
    )
    return dict(measured.result)
