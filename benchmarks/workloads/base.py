"""The two kinds of workload and what they share: topics for one round, the broker's CPU around a load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar

from benchmarks.brokers import Broker, BrokerFactory, System
from benchmarks.metrics import Metric
from benchmarks.processes import run_generator
from benchmarks.profiles import Profile
from benchmarks.servers import HOST

T = TypeVar("T")
Figures = Mapping[str, float]
"""Values by the key of their metric."""

WARM_UP_SCALE: Final = 0.5
_topic_numbers: Final = itertools.count(1)


class SharedWorkload(Protocol):
    """Runs on brokers that stay up, in interleaved rounds, so that the JVM stays warm."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def metrics(self, profile: Profile) -> list[Metric]: ...

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        """One round; `scale` below 1 shortens it for the warm-up."""
        ...


class SoloWorkload(Protocol):
    """Starts, stops and kills its own broker; no other broker runs meanwhile."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def metrics(self, profile: Profile) -> list[Metric]: ...

    def rounds(self, profile: Profile) -> int: ...

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures: ...


@dataclass(frozen=True, slots=True)
class Load:
    """What a generator measured, and the CPU time that the broker spent meanwhile."""

    result: Mapping[str, float]
    broker_cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.result["bytes"] / self.result["elapsed_s"]

    @property
    def generator_cpu_percent(self) -> float:
        """The generator's share of one core."""
        return 100 * self.result["generator_cpu_s"] / self.result["elapsed_s"]


def load(
    broker: Broker, generator: str, timeout_s: float, *, keeps_memory: bool = True, **arguments: Any
) -> Load:
    """Run a generator against `broker`."""
    target = {"host": HOST, "port": broker.port, "bootstrap": broker.bootstrap}
    result, cpu_s = with_broker_cpu(
        broker,
        lambda: run_generator(
            generator, {**target, **arguments}, timeout_s=timeout_s, keeps_memory=keeps_memory
        ),
    )
    return Load(result, cpu_s)


def with_broker_cpu(broker: Broker, work: Callable[[], T]) -> tuple[T, float]:
    before = broker.cpu_s()
    result = work()
    return result, broker.cpu_s() - before


@contextmanager
def temporary_topic(broker: Broker, purpose: str, partitions: int = 1) -> Iterator[str]:
    """A topic for one round: deleted afterwards, so that neither disk nor page cache fills up."""
    topic = new_topic_name(purpose)
    broker.create_topic(topic, partitions)
    yield topic
    broker.delete_topic(topic)
    broker.wait_for_deletions()


def new_topic_name(purpose: str) -> str:
    return f"bench-{purpose}-{next(_topic_numbers)}"


def size_text(size: int) -> str:
    """16384 as "16 KiB", 1000000 as "1 MB"."""
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size // 1_000_000} MB"
