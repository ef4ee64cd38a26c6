"""Consume throughput of a librdkafka client as users have it, and of one that was tuned for a benchmark.

A plain client differs in two ways. glibc gives its buffers back to the kernel. And when it holds more
messages than `queued.min.messages` or `queued.max.messages.kbytes`, it asks for no more during a whole second
(`fetch.queue.backoff.ms`), although the application takes what it holds in a tenth of that: a broker that
sends faster than the application reads makes it slow. The pauses are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from benchmarks.brokers import Broker
from benchmarks.metrics import CONSUME, Metric
from benchmarks.profiles import Profile
from benchmarks.workloads.base import Figures, load, new_topic_name
from benchmarks.workloads.consume import TUNED

RECORD_BYTES: Final = 1_000
BATCH_BYTES: Final = 1_000_000
MIB: Final = 1024 * 1024
TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One client: how it asks, and how its messages are taken."""

    key: str
    title: str
    fetch_bytes: int
    messages_per_call: int
    keeps_memory: bool = False
    settings: Mapping[str, int | str]


def _cases() -> list[Case]:
    cases = []
    for mebibytes in (1, 10):
        fetch = f"fetches of {mebibytes} MiB"
        for key, title, per_call, settings, keeps_memory in (
            ("plain", "plain consumer", 1_000, {}, False),
            ("poll", "plain consumer, one by one", 1, {}, False),
            ("tuned", "tuned consumer", 1_000, TUNED, True),
        ):
            cases.append(
                Case(
                    key=f"plain-consume.{mebibytes}.{key}",
                    title=f"{title}, {fetch}",
                    fetch_bytes=mebibytes * MIB,
                    messages_per_call=per_call,
                    keeps_memory=keeps_memory,
                    settings=settings,
                )
            )
    return cases


CASES: Final = _cases()


class PlainConsume:
    name: ClassVar[str] = "plain-consume"
    summary: ClassVar[str] = (
        "librdkafka consumer as users have it, and tuned: 1,000 B in batches of 1 MB, fetches of 1 and 10 MiB"
    )

    def __init__(self) -> None:
        self._topics: dict[Broker, tuple[str, int]] = {}

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for case in CASES:
            metrics.append(Metric(key=f"{case.key}.rate", title=case.title, unit="MB/s", target=CONSUME))
            for key, title, unit in (
                ("pauses", "pauses of a second", ""),
                ("generator", "client", "% of a core"),
            ):
                metrics.append(
                    Metric(
                        key=f"{case.key}.{key}", title=f"{case.title}: {title}", unit=unit, is_compared=False
                    )
                )
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        topic, records = self._filled_topic(broker, profile)
        figures: dict[str, float] = {}
        for case in CASES:
            measured = load(
                broker,
                "librdkafka_consume",
                TIMEOUT_S,
                keeps_memory=case.keeps_memory,
                topic=topic,
                record_size=RECORD_BYTES,
                records=records,
                messages_per_call=case.messages_per_call,
                passes=1,
                settings={"max.partition.fetch.bytes": case.fetch_bytes, **case.settings},
            )
            figures[f"{case.key}.rate"] = measured.bytes_per_s / 1e6
            figures[f"{case.key}.pauses"] = measured.result["pauses"]
            figures[f"{case.key}.generator"] = measured.generator_cpu_percent
        return figures

    def _filled_topic(self, broker: Broker, profile: Profile) -> tuple[str, int]:
        """The topic of this broker with its number of records, filled in the warm-up round."""
        if broker not in self._topics:
            topic = new_topic_name("plain-consume")
            broker.create_topic(topic)
            filled = load(
                broker,
                "pipelined",
                TIMEOUT_S,
                topic=topic,
                record_size=RECORD_BYTES,
                batch_bytes=BATCH_BYTES,
                in_flight=5,
                bytes_max=profile.consume_bytes,
                seconds=TIMEOUT_S / 2,
            )
            self._topics[broker] = (topic, int(filled.result["records"]))
        return self._topics[broker]
