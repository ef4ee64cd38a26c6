"""Consumer groups: how fast offsets are committed, how long a rebalance takes, what idle groups cost."""

from __future__ import annotations

import itertools
from typing import ClassVar, Final

from benchmarks.brokers import Broker, BrokerFactory, System
from benchmarks.metrics import REQUESTS, Metric
from benchmarks.processes import run_generator
from benchmarks.profiles import Profile
from benchmarks.servers import HOST
from benchmarks.summary import Better, Target
from benchmarks.workloads.base import Figures, load, temporary_topic

PROTOCOLS: Final = ("classic", "consumer")
COMMIT_CONNECTIONS: Final = (1, 10, 100)
COMMIT_GROUPS: Final = 100
MEMBERS: Final = 100
PARTITIONS: Final = 1_000
IDLE_MEMBERS: Final = 10
IDLE_GROUPS: Final = {"standard": 1_000, "quick": 1_000, "smoke": 20, "counted": 20}
IDLE_S: Final = {"standard": 20.0, "quick": 10.0, "smoke": 2.0, "counted": 15.0}
# What clients use unless told otherwise: 3 s by their own setting, 5 s by the broker's.
HEARTBEAT_INTERVAL_S: Final = {"classic": 3.0, "consumer": 5.0, "share": 5.0}
TIMEOUT_S: Final = 400.0
_group_numbers: Final = itertools.count(1)


def _new_group(purpose: str) -> str:
    return f"bench-{purpose}-{next(_group_numbers)}"


class GroupCommit:
    name: ClassVar[str] = "group-commit"
    summary: ClassVar[str] = "OffsetCommit requests of 100 groups over 1 to 100 connections"
    client: ClassVar[str] = "python"
    title: ClassVar[str] = "offset commits"

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for count in COMMIT_CONNECTIONS:
            key, title = (
                f"{self.name}.{count}",
                f"{self.title}, {count} connection{'s' if count > 1 else ''}",
            )
            metrics += [
                Metric(key=f"{key}.rate", title=title, unit="req/s", target=REQUESTS),
                Metric(key=f"{key}.cpu", title=f"{title}: broker CPU", unit="µs/req", better=Better.LOWER),
                Metric(
                    key=f"{key}.generator",
                    title=f"{title}: generator",
                    unit="% of a core",
                    is_compared=False,
                ),
            ]
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        group = _new_group("commit")
        with temporary_topic(broker, "commit") as topic:
            for count in COMMIT_CONNECTIONS:
                measured = load(
                    broker,
                    "group_commits",
                    TIMEOUT_S,
                    client=self.client,
                    topic=topic,
                    group=group,
                    groups=COMMIT_GROUPS,
                    connections=count,
                    warm_up_s=profile.requests_s * scale / 3,
                    seconds=profile.requests_s * scale,
                )
                result = measured.result
                figures[f"{self.name}.{count}.rate"] = result["requests"] / result["elapsed_s"]
                figures[f"{self.name}.{count}.cpu"] = measured.broker_cpu_s / result["requests_total"] * 1e6
                figures[f"{self.name}.{count}.generator"] = measured.generator_cpu_percent
        return figures


class GoGroupCommit(GroupCommit):
    name: ClassVar[str] = "group-commit-go"
    summary: ClassVar[str] = "the same commits from a client in Go, where there is a Go toolchain"
    client: ClassVar[str] = "go"
    title: ClassVar[str] = "offset commits, Go client"


class GroupRebalance:
    name: ClassVar[str] = "group-rebalance"
    summary: ClassVar[str] = "a group of 100 members over 1,000 partitions: all join, then one more"

    def metrics(self, profile: Profile) -> list[Metric]:
        size = f"{MEMBERS} members, {PARTITIONS:,} partitions"
        metrics = []
        for protocol in PROTOCOLS:
            for key, title in (("joined", "all join"), ("rebalanced", "one more joins")):
                is_aim = (protocol, key) == ("classic", "rebalanced")
                metrics.append(
                    Metric(
                        key=f"group-rebalance.{protocol}.{key}",
                        title=f"{protocol} group, {size}: {title}",
                        unit="s",
                        better=Better.LOWER,
                        target=Target(3.0, of_ratio=False) if is_aim else None,
                    )
                )
        for key, title, unit, target in (
            ("pause", "longest wait of a member that stays", "ms", None),
            ("interrupted", "partitions taken and given back", "", Target(0.0, of_ratio=False)),
        ):
            metrics.append(
                Metric(
                    key=f"group-rebalance.consumer.{key}",
                    title=f"consumer group: {title}",
                    unit=unit,
                    better=Better.LOWER,
                    target=target,
                )
            )
        return metrics

    def measure(self, broker: Broker, profile: Profile, scale: float) -> Figures:
        figures: dict[str, float] = {}
        with temporary_topic(broker, "rebalance", PARTITIONS) as topic:
            for protocol in PROTOCOLS:
                result = load(
                    broker,
                    "group_rebalance",
                    TIMEOUT_S,
                    topic=topic,
                    group=_new_group(protocol),
                    protocol=protocol,
                    members=MEMBERS,
                    partitions=PARTITIONS,
                ).result
                figures[f"group-rebalance.{protocol}.joined"] = result["joined_s"]
                figures[f"group-rebalance.{protocol}.rebalanced"] = result["rebalanced_s"]
                if protocol == "consumer":
                    figures["group-rebalance.consumer.pause"] = result["longest_pause_ms"]
                    figures["group-rebalance.consumer.interrupted"] = result["interrupted"]
        return figures


class GroupIdle:
    name: ClassVar[str] = "group-idle"
    summary: ClassVar[str] = "1,000 groups with 10 members each that only send heartbeats: broker CPU"

    protocols: ClassVar[tuple[str, ...]] = PROTOCOLS

    def metrics(self, profile: Profile) -> list[Metric]:
        metrics = []
        for protocol in self.protocols:
            title = f"{IDLE_GROUPS[profile.name]:,} idle {protocol} groups of {IDLE_MEMBERS}"
            key = f"{self.name}.{protocol}"
            metrics += [
                Metric(
                    key=f"{key}.cpu",
                    title=f"{title}: broker CPU",
                    unit="% of a core",
                    better=Better.LOWER,
                    target=Target(20.0, of_ratio=False),
                ),
                Metric(
                    key=f"{key}.longest", title=f"{title}: longest answer", unit="ms", better=Better.LOWER
                ),
                Metric(key=f"{key}.mb", title=f"{title}: memory", unit="MB", better=Better.LOWER),
            ]
        return metrics

    def rounds(self, profile: Profile) -> int:
        return 1

    def measure(self, factory: BrokerFactory, system: System, profile: Profile) -> Figures:
        figures: dict[str, float] = {}
        for protocol in self.protocols:
            broker = factory.create(system)
            try:
                broker.start()
                figures |= self._measure_protocol(broker, profile, protocol)
            finally:
                broker.stop()
                broker.remove_files()
        return figures

    def _measure_protocol(self, broker: Broker, profile: Profile, protocol: str) -> Figures:
        with temporary_topic(broker, "idle", IDLE_MEMBERS) as topic:
            result = run_generator(
                "group_idle",
                {
                    "host": HOST,
                    "port": broker.port,
                    "broker_pid": broker.server.pids[0],
                    "topic": topic,
                    "partitions": IDLE_MEMBERS,
                    "group": _new_group("idle"),
                    "protocol": protocol,
                    "groups": IDLE_GROUPS[profile.name],
                    "members": IDLE_MEMBERS,
                    "heartbeat_interval_s": HEARTBEAT_INTERVAL_S[protocol],
                    "seconds": IDLE_S[profile.name],
                },
                timeout_s=TIMEOUT_S,
            )
            return {
                f"{self.name}.{protocol}.cpu": result["broker_cpu_percent"],
                f"{self.name}.{protocol}.longest": result["longest_answer_ms"],
                f"{self.name}.{protocol}.mb": broker.resident_mb(),
            }


class QueueIdle(GroupIdle):
    name: ClassVar[str] = "queue-idle"
    summary: ClassVar[str] = "1,000 share groups with 10 members each that only send heartbeats: broker CPU"
    protocols: ClassVar[tuple[str, ...]] = ("share",)
