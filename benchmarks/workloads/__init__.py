"""One module for each claim that is measured; these five lists are the only ones."""

from __future__ import annotations

from benchmarks.generators.go_client import has_go
from benchmarks.workloads.base import SharedWorkload, SoloWorkload
from benchmarks.workloads.cluster import ClusterLatency, ClusterProduce
from benchmarks.workloads.consume import LibrdkafkaConsume
from benchmarks.workloads.delayed import QueueDelayed
from benchmarks.workloads.failover import Failover
from benchmarks.workloads.groups import GoGroupCommit, GroupCommit, GroupIdle, GroupRebalance, QueueIdle
from benchmarks.workloads.latency import Latency
from benchmarks.workloads.log_size import LogSize
from benchmarks.workloads.partitions import Partitions
from benchmarks.workloads.plain_consume import PlainConsume
from benchmarks.workloads.produce import JavaProduce, LibrdkafkaProduce, WireProduce
from benchmarks.workloads.queues import (
    QueueHang,
    QueueJava,
    QueueLatency,
    QueueLibrdkafka,
    QueueOne,
    QueueWorkers,
)
from benchmarks.workloads.requests import GoRequests, SingleRecordRequests
from benchmarks.workloads.secured import (
    SecuredConsume,
    SecuredJava,
    SecuredLatency,
    SecuredLogins,
    SecuredProduce,
)
from benchmarks.workloads.spark_read import SparkRead
from benchmarks.workloads.spark_write import SparkWrite
from benchmarks.workloads.startup import StartUp
from benchmarks.workloads.transactions import Transactions
from tools.kafka_distribution import KafkaDistribution


def shared_workloads(distribution: KafkaDistribution | None) -> list[SharedWorkload]:
    """Workloads on one broker. Java's client needs Kafka's jars, the one in Go a Go toolchain."""
    java: list[SharedWorkload] = [JavaProduce(distribution)] if distribution else []
    go: list[SharedWorkload] = [GoRequests(), GoGroupCommit()] if has_go() else []
    return [
        *java,
        LibrdkafkaProduce(),
        WireProduce(),
        LibrdkafkaConsume(),
        PlainConsume(),
        Latency(),
        SingleRecordRequests(),
        GroupCommit(),
        *go,
        GroupRebalance(),
        Transactions(),
    ]


def cluster_workloads() -> list[SharedWorkload]:
    """Workloads like the shared ones, on three brokers of each system instead of one."""
    return [ClusterProduce(), ClusterLatency()]


def secured_workloads(distribution: KafkaDistribution | None) -> list[SharedWorkload]:
    """Workloads on one broker with a listener for TLS and logins."""
    java: list[SharedWorkload] = [SecuredJava(distribution)] if distribution else []
    return [SecuredProduce(), SecuredConsume(), SecuredLatency(), SecuredLogins(), *java]


def queue_workloads(distribution: KafkaDistribution | None) -> list[SharedWorkload]:
    """Workloads of share groups on one broker. They are apart, since commits of before have no share groups
    to be compared with."""
    java: list[SharedWorkload] = [QueueJava(distribution), QueueWorkers(distribution)] if distribution else []
    return [*java, QueueLibrdkafka(), QueueOne(), QueueLatency(), QueueHang()]


def solo_workloads() -> list[SoloWorkload]:
    return [
        StartUp(),
        Partitions(),
        LogSize(),
        GroupIdle(),
        QueueIdle(),
        QueueDelayed(),
        Failover(),
        SparkRead(),
        SparkWrite(),
    ]
