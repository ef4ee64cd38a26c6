"""How cost grows with the size of a log: appends, fetches from the middle, restarts clean and by kill -9."""

from __future__ import annotations

from typing import ClassVar, Final

from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System
from benchmarks.metrics import NOT_SLOWER, Metric
from benchmarks.profiles import Profile
from benchmarks.summary import Better
from benchmarks.workloads.base import Figures, Load, load, temporary_topic

RECORD_BYTES: Final = 1_000
BATCH_BYTES: Final = 16_384
FETCH_BYTES: Final = 65_536
TIMEOUT_S: Final = 300.0
WARM_UP_BYTES: Final = 100_000_000


class LogSize:
    name: ClassVar[str] = "log-size"
    summary: ClassVar[str] = (
        "append rate and fetches from the middle as a log grows to 4 GB; restarts with it"
    )

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for size in profile.log_sizes_bytes:
            key, title = f"log-size.{_megabytes(size)}", f"log of {size / 1e9:g} GB"
            metrics += [
                Metric(key=f"{key}.rate", title=f"{title}: appending up to it", unit="MB/s"),
                Metric(
                    key=f"{key}.fetch_p50",
                    title=f"{title}: fetch from the middle, p50",
                    unit="ms",
                    better=Better.LOWER,
                    target=NOT_SLOWER,
                ),
                Metric(
                    key=f"{key}.fetch_p99",
                    title=f"{title}: fetch from the middle, p99",
                    unit="ms",
                    better=Better.LOWER,
                ),
            ]
        title = f"log of {profile.log_sizes_bytes[-1] / 1e9:g} GB"
        return [
            *metrics,
            Metric(key="log-size.restart", title=f"{title}: clean restart", unit="s", better=Better.LOWER),
            Metric(
                key="log-size.crash", title=f"{title}: restart after kill -9", unit="s", better=Better.LOWER
            ),
        ]

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        broker = factory.create(system)
        figures: dict[str, float] = {}
        try:
            broker.start()
            with temporary_topic(broker, "warm-up") as topic:
                _append(broker, topic, WARM_UP_BYTES)
            broker.create_topic("bench-log")
            records = size_before = 0
            for size in profile.log_sizes_bytes:
                appended = _append(broker, "bench-log", size - size_before)
                size_before, records = size, records + int(appended.result["records"])
                figures.update(_figures_at(broker, profile, size, records, appended))
            figures.update(_restarts(broker, records))
        finally:
            broker.stop()
            broker.remove_files()
        return figures


def _figures_at(broker: Broker, profile: Profile, size: int, records: int, appended: Load) -> Figures:
    fetched = load(
        broker,
        "fetches",
        TIMEOUT_S,
        topic="bench-log",
        records=records,
        fetches=profile.fetches,
        max_bytes=FETCH_BYTES,
    ).result
    key = f"log-size.{_megabytes(size)}"
    return {
        f"{key}.rate": appended.bytes_per_s / 1e6,
        f"{key}.fetch_p50": fetched["p50_ms"],
        f"{key}.fetch_p99": fetched["p99_ms"],
    }


def _restarts(broker: Broker, records: int) -> Figures:
    broker.stop()
    clean_s = broker.start()
    # Something to recover: without it the log would be as clean as after an orderly stop.
    appended = _append(broker, "bench-log", WARM_UP_BYTES)
    broker.kill()
    crash_s = broker.start()
    expected, found = records + int(appended.result["records"]), broker.record_count("bench-log")
    if found != expected:
        raise BrokerFailed(f"{broker.system} holds {found} records after kill -9 instead of {expected}")
    return {"log-size.restart": clean_s, "log-size.crash": crash_s}


def _append(broker: Broker, topic: str, size: int) -> Load:
    return load(
        broker,
        "pipelined",
        TIMEOUT_S,
        topic=topic,
        record_size=RECORD_BYTES,
        batch_bytes=BATCH_BYTES,
        in_flight=5,
        bytes_max=size,
        seconds=TIMEOUT_S / 2,
    )


def _megabytes(size: int) -> int:
    return size // 1_000_000
