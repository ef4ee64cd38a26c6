"""Worked examples of capacity plans: estimates on paper, redone by the plan under the same assumptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.core.units import bytes_text
from millrace.pipeline.capacity.estimate import DAY_S, Broker, Load, Plan, Policy

# On paper nothing is kept free, the format costs nothing, and no broker is spare.
_PAPER_POLICY: Final = Policy(record_overhead_bytes=0, spare_brokers=0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One figure of an estimate, and how a plan shows the same."""

    what: str
    on_paper: str
    of_plan: Callable[[Plan], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A load with the estimates that were made for it on paper, to compare a plan with."""

    name: str
    about: str
    load: Load
    paper_broker: Broker
    estimates: tuple[Estimate, ...]
    paper_policy: Policy = _PAPER_POLICY


def _paper_broker(
    *, write_mb_per_s: float = 0, partition_mb_per_s: float = 1e6, disk: float = 4e12, partitions: int = 4_000
) -> Broker:
    """A broker as estimates know it: a rate for writing with all it entails, and a disk to be filled."""
    return Broker(
        write_s_per_gb=1e3 / write_mb_per_s if write_mb_per_s else 0,
        read_s_per_gb=0,
        partition_bytes_per_s=partition_mb_per_s * 1e6,
        disk_bytes=disk,
        network_bytes_per_s=1e15,
        partitions=partitions,
        busy=1.0,
        disk_fill=1.0,
    )


def _rate(plan: Plan) -> str:
    return f"{bytes_text(plan.write_bytes_per_s)}/s"


def _disk(plan: Plan) -> str:
    return bytes_text(plan.disk_bytes)


def _brokers(plan: Plan) -> str:
    return f"{plan.brokers:,}"


def _partitions(plan: Plan) -> str:
    return f"{plan.partitions:,}"


EXAMPLES: Final = (
    Example(
        name="week",
        about="a million messages a second of 1 kB, kept for a week",
        load=Load(messages_per_s=1e6, message_bytes=1e3, retention_s=7 * DAY_S),
        paper_broker=_paper_broker(),
        estimates=(
            Estimate("rate in", "1 GB/s", _rate),
            Estimate("disk of one replica", "600 TB", lambda plan: bytes_text(plan.disk_bytes / 3)),
            Estimate("disk", "1.8 PB", _disk),
        ),
    ),
    Example(
        name="billion-a-day",
        about="a billion messages a day of 1 kB, kept for a week",
        load=Load(messages_per_s=1e9 / DAY_S, message_bytes=1e3, retention_s=7 * DAY_S),
        paper_broker=_paper_broker(),
        estimates=(Estimate("disk", "21 TB", _disk),),
    ),
    Example(
        name="half-a-gigabyte",
        about="500 MB/s into brokers that take 50 MB/s each, consumers that take 10 MB/s each",
        load=Load(messages_per_s=5e5, message_bytes=1e3, retention_s=3600, consumer_groups=0),
        paper_broker=_paper_broker(write_mb_per_s=50),
        estimates=(Estimate("brokers", "30", _brokers), Estimate("partitions", "50", _partitions)),
    ),
    Example(
        name="day-on-ssd",
        about="a million messages a second of 1 kB, kept for a day on disks of 4 TB",
        load=Load(messages_per_s=1e6, message_bytes=1e3, retention_s=DAY_S),
        paper_broker=_paper_broker(),
        estimates=(
            Estimate("disk of one replica", "86.4 TB", lambda plan: bytes_text(plan.disk_bytes / 3)),
            Estimate("disk", "259 TB", _disk),
            Estimate("brokers", "65", _brokers),
        ),
    ),
    Example(
        name="ten-partitions",
        about="500 MB/s into partitions that take 50 MB/s each",
        load=Load(messages_per_s=5e5, message_bytes=1e3, retention_s=3600, replication=1),
        paper_broker=_paper_broker(partition_mb_per_s=50),
        paper_policy=Policy(record_overhead_bytes=0, spare_brokers=0, consumer_bytes_per_s=100e6),
        estimates=(Estimate("partitions", "10", _partitions),),
    ),
    Example(
        name="many-topics",
        about="1,000 topics of 10 partitions, a million messages a second of 10 kB, 2,000 replicas a broker",
        load=Load(messages_per_s=1e6, message_bytes=1e4, retention_s=3600, partitions=10_000),
        paper_broker=_paper_broker(disk=1e15, partitions=2_000),
        estimates=(
            Estimate("rate in", "10 GB/s", _rate),
            Estimate("partitions", "10,000", _partitions),
            Estimate("brokers", "15", _brokers),
        ),
    ),
)


def example_named(name: str) -> Example | None:
    return next((example for example in EXAMPLES if example.name == name), None)
