"""Transactions: throughput with a commit every 100 ms, and how long a commit takes."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Final

from benchmarks.brokers import Broker, BrokerFailed
from benchmarks.metrics import HALF, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, Load, load, temporary_topic

INTERVAL_S: Final = 0.1
RECORD_SIZE: Final = 1_000
LATENCY_PARTITIONS: Final = 3
TIMEOUT_S: Final = 180.0
# A commit waits for what is queued: this is little enough to keep commits short, and enough to fill batches.
QUEUE_BYTES: Final = 16 * 1024 * 1024
_ids: Final = itertools.count(1)


class Transactions:
    name: ClassVar[str] = "transactions"
    summary: ClassVar[str] = (
        "librdkafka in transactions: throughput with a commit every 100 ms, commit latency"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        title = "transactional produce, commit every 100 ms"
        return [
            Metric(key="transactions.rate", title=title, unit="rec/s", target=Target(1.2)),
            Metric(key="transactions.cpu", title=f"{title}: broker CPU", unit="s/GB", better=Better.LOWER),
            Metric(
                key="transactions.generator",
                title=f"{title}: generator",
                unit="% of a core",
                is_compared=False,
            ),
            Metric(
                key="transactions.commit.p50", title="commit latency, p50", unit="ms", better=Better.LOWER
            ),
            Metric(
                key="transactions.commit.p99",
                title="commit latency, p99",
                unit="ms",
                better=Better.LOWER,
                target=HALF,
            ),
            Metric(key="transactions.small.rate", title="small transactions, one at a time", unit="txn/s"),
        ]

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        with temporary_topic(broker, "transactions") as topic:
            bulk = _load(broker, topic, "throughput", profile, scale, partitions=1)
            # In its only partition, every transaction has left one marker.
            _require(broker, topic, int(bulk.result["records_total"] + bulk.result["transactions_total"]))
        with temporary_topic(broker, "commits", LATENCY_PARTITIONS) as topic:
            small = _load(broker, topic, "latency", profile, scale, partitions=LATENCY_PARTITIONS).result
        return {
            "transactions.rate": bulk.result["records"] / bulk.result["elapsed_s"],
            "transactions.cpu": bulk.broker_cpu_s / (bulk.result["bytes"] / 1e9),
            "transactions.generator": bulk.generator_cpu_percent,
            "transactions.commit.p50": small["commit_p50_ms"],
            "transactions.commit.p99": small["commit_p99_ms"],
            "transactions.small.rate": small["transactions"] / small["elapsed_s"],
        }


def _load(broker: Broker, topic: str, mode: str, profile: Profile, scale: float, **arguments: Any) -> Load:
    return load(
        broker,
        "transactions",
        TIMEOUT_S,
        topic=topic,
        mode=mode,
        transactional_id=f"bench-{next(_ids)}",
        interval_s=INTERVAL_S,
        record_size=RECORD_SIZE,
        queue_bytes=QUEUE_BYTES,
        warm_up_s=profile.produce_s * scale / 2,
        seconds=profile.produce_s * scale,
        **arguments,
    )


def _require(broker: Broker, topic: str, expected: int) -> None:
    """A rate counts only if every committed record is there."""
    found = broker.record_count(topic)
    if found != expected:
        raise BrokerFailed(f"{broker.system}: {topic} ends at {found} instead of {expected}")
