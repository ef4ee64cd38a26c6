"""A capacity plan: brokers, partitions, disk and network for a load, from measured figures of one broker.

Arithmetic only. Every figure of a plan comes with its reason; what is assumed is an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from millrace.core.units import bytes_text, count_text, seconds_text
from millrace.pipeline.errors import PipelineError

DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What comes in, and how long it is kept."""

    messages_per_s: float
    message_bytes: float
    retention_s: float
    replication: int = 3
    consumer_groups: float = 1
    """How many times everything is read by consumers."""
    peak: float = 1.0
    """The busiest minutes over the average; disk follows the average, all else the peak."""
    compression: float = 1.0
    """Bytes before over bytes after compression by producers."""
    partitions: int = 0
    """Partitions that there must be anyhow, of all topics together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """What one broker can do, and how far it may be used."""

    write_s_per_gb: float
    read_s_per_gb: float
    """Seconds of the broker's one busy core for each gigabyte (10^9 bytes) written and read."""
    partition_bytes_per_s: float
    disk_bytes: float = 4e12
    network_bytes_per_s: float = 10e9 / 8
    """In each direction."""
    partitions: int = 4_000
    """How many replicas of partitions one broker may hold."""
    busy: float = 0.6
    """The share of processor and network that is planned for."""
    disk_fill: float = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a plan allows for beside the load itself."""

    consumer_bytes_per_s: float = 10e6
    """What one consumer manages with the work that it does."""
    record_overhead_bytes: float = 12
    """What the log adds: the record's own fields, and its share of the batch's header and of indexes."""
    spare_brokers: int = 1
    """Brokers that may be down while the rest still carries the load."""


@dataclass(frozen=True, slots=True)
class Need:
    """How many brokers or partitions something needs, and why."""

    name: str
    count: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a load needs: brokers, partitions, disks, network, each with the reason."""

    write_bytes_per_s: float
    disk_bytes: float
    disk_bytes_per_day: float
    brokers: int
    broker_needs: tuple[Need, ...]
    partitions: int
    partitions_even: int
    partition_needs: tuple[Need, ...]
    disk_bytes_per_broker: float
    network_in_per_broker: float
    network_out_per_broker: float
    busy_share: float
    notes: tuple[str, ...] = field(default=())


def make_plan(load: Load, broker: Broker, policy: Policy | None = None) -> Plan:
    """The smallest cluster that carries `load`, with the reason for each of its sizes."""
    policy = policy or Policy()
    _require_sound(load, broker, policy)
    stored_message = load.message_bytes / load.compression + policy.record_overhead_bytes
    average = load.messages_per_s * stored_message
    write = average * load.peak
    disk = average * load.retention_s * load.replication
    partition_needs = _partition_needs(load, broker, policy, write)
    partitions = max(need.count for need in partition_needs)
    broker_needs = _broker_needs(load, broker, write, disk, partitions)
    carrying = max(need.count for need in broker_needs)
    brokers = carrying + policy.spare_brokers
    copies_out = load.replication - 1 + load.consumer_groups
    return Plan(
        write_bytes_per_s=write,
        disk_bytes=disk,
        disk_bytes_per_day=average * DAY_S * load.replication,
        brokers=brokers,
        broker_needs=broker_needs,
        partitions=partitions,
        partitions_even=math.ceil(partitions / brokers) * brokers,
        partition_needs=partition_needs,
        disk_bytes_per_broker=disk / brokers,
        network_in_per_broker=write * load.replication / brokers,
        network_out_per_broker=write * copies_out / brokers,
        busy_share=_core_seconds(load, broker, write) / brokers,
        notes=_notes(load, policy, brokers, partitions),
    )


def _partition_needs(load: Load, broker: Broker, policy: Policy, write: float) -> tuple[Need, ...]:
    readers = Need(
        "consumers",
        _at_least_one(write / policy.consumer_bytes_per_s),
        f"{bytes_text(write)}/s in, {bytes_text(policy.consumer_bytes_per_s)}/s for each consumer of a group",
    )
    writers = Need(
        "writing",
        _at_least_one(write / (broker.partition_bytes_per_s * broker.busy)),
        f"{bytes_text(write)}/s in, at most {bytes_text(broker.partition_bytes_per_s)}/s into one partition,"
        f" {broker.busy:.0%} of it planned",
    )
    if not load.partitions:
        return readers, writers
    return readers, writers, Need("asked for", load.partitions, "the topics that there must be")


def _broker_needs(load: Load, broker: Broker, write: float, disk: float, partitions: int) -> tuple[Need, ...]:
    usable_disk = broker.disk_bytes * broker.disk_fill
    usable_network = broker.network_bytes_per_s * broker.busy
    incoming = write * load.replication
    outgoing = write * (load.replication - 1 + load.consumer_groups)
    replicas = partitions * load.replication
    core_seconds = _core_seconds(load, broker, write)
    return (
        Need(
            "disk",
            _at_least_one(disk / usable_disk),
            f"{bytes_text(disk)} in all, {bytes_text(usable_disk)} usable on each"
            f" ({broker.disk_fill:.0%} of {bytes_text(broker.disk_bytes)})",
        ),
        Need(
            "processor",
            _at_least_one(core_seconds / broker.busy),
            f"{core_seconds:.3g} busy cores in all, {broker.busy:.0%} of one core planned on each:"
            f" {broker.write_s_per_gb:.3g} s for a GB written, {broker.read_s_per_gb:.3g} s for a GB read",
        ),
        Need(
            "network",
            _at_least_one(max(incoming, outgoing) / usable_network),
            f"{bytes_text(incoming)}/s in and {bytes_text(outgoing)}/s out in all,"
            f" {bytes_text(usable_network)}/s planned on each",
        ),
        Need(
            "partitions",
            _at_least_one(replicas / broker.partitions),
            f"{replicas:,} replicas of partitions, {broker.partitions:,} on each",
        ),
        Need("replication", load.replication, f"{load.replication} replicas on different brokers"),
    )


def summary(load: Load) -> str:
    """The load in one line."""
    replicas = f"{load.replication} replica{'s' if load.replication > 1 else ''}"
    return (
        f"{count_text(load.messages_per_s)} messages/s of {bytes_text(load.message_bytes)},"
        f" kept for {seconds_text(load.retention_s)}, {replicas}, read {load.consumer_groups:g}x"
    )


def _core_seconds(load: Load, broker: Broker, write: float) -> float:
    """Busy cores of the whole cluster: leaders and followers append, followers and consumers fetch."""
    appended = write * load.replication
    fetched = write * (load.replication - 1 + load.consumer_groups)
    return (appended * broker.write_s_per_gb + fetched * broker.read_s_per_gb) / 1e9


def _notes(load: Load, policy: Policy, brokers: int, partitions: int) -> tuple[str, ...]:
    """What a reader of the plan should know beside its figures."""
    notes = []
    if load.replication > 1:
        notes.append("followers are counted like leaders that take the same bytes from producers")
    if policy.spare_brokers:
        notes.append(
            f"{policy.spare_brokers} of the {brokers} brokers may be down while the rest carries the load"
        )
    elif load.replication > 1:
        notes.append("no broker is spare: with one down the rest is over its planned share")
    if load.replication == 1:
        notes.append("one replica: a lost disk is lost data")
    if partitions < brokers:
        notes.append(
            f"{partitions} partitions cannot use all {brokers} brokers as leaders; take the even number"
        )
    return tuple(notes)


def _at_least_one(number: float) -> int:
    # A division that should be even may come out a hair above.
    return max(1, math.ceil(number - 1e-9))


def _require_sound(load: Load, broker: Broker, policy: Policy) -> None:
    positive = {
        "messages per second": load.messages_per_s,
        "message size": load.message_bytes,
        "retention": load.retention_s,
        "peak": load.peak,
        "compression": load.compression,
        "disk of a broker": broker.disk_bytes,
        "network of a broker": broker.network_bytes_per_s,
        "rate of a partition": broker.partition_bytes_per_s,
        "rate of a consumer": policy.consumer_bytes_per_s,
    }
    for name, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise PipelineError(f"the {name} is {value:g}; it must be more than 0")
    for name, share in (("busy share", broker.busy), ("disk fill", broker.disk_fill)):
        if not 0 < share <= 1:
            raise PipelineError(f"the {name} is {share:g}; it must be more than 0 and at most 1")
    if load.replication < 1:
        raise PipelineError(f"the replication is {load.replication}; it must be at least 1")
    if load.consumer_groups < 0 or broker.write_s_per_gb < 0 or broker.read_s_per_gb < 0:
        raise PipelineError("consumer groups and seconds for a GB cannot be negative")
