"""The broker's figures in Prometheus' terms, put together when somebody asks; requests only count.

The loop reads the numbers in one step, and a thread renders them: thousands of partitions make a long page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.broker.network.dispatch import LATENCY_BOUNDS_S, ApiStats
from millrace.broker.watching.cluster_figures import cluster_figures
from millrace.broker.watching.delayed_metrics import lateness_family
from millrace.broker.watching.group_metrics import GroupFigures, group_families, group_figures
from millrace.broker.watching.listener_metrics import ListenerFigures, listener_families, listener_figures
from millrace.broker.watching.queue_figures import QueueFigures, queue_families, queue_figures
from millrace.broker.watching.quota_metrics import QuotaFigures, quota_families, quota_figures
from millrace.broker.watching.throttle_metrics import ThrottleFigures, throttle_families, throttle_figures
from millrace.broker.watching.transaction_metrics import (
    TransactionFigures,
    transaction_families,
    transaction_figures,
)
from millrace.core.override import override
from millrace.log.errors import StorageError
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from millrace.broker.handlers.services import Services
    from millrace.broker.network.server import Server
    from millrace.broker.replication.throttles import Throttle
    from millrace.broker.watching.group_reports import GroupReports
    from millrace.core.background import Failures
    from millrace.core.lanes import LaneFigures, Lanes
    from millrace.groups.lag import LagReader
    from millrace.log.directories.log_directory import LogDirectory
    from millrace.queues.delayed.lateness import DelayedFigures

_ERROR_NAMES: Final = {int(code): code.name for code in ErrorCode}
PlainFigures = Mapping[str, tuple[str, float]]
"""The text and the value of each figure, by its name."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class TopicFigures(NamedTuple):
    topic: str
    bytes_in: int
    bytes_out: int
    messages_in: int
    produces: int
    produces_failed: int
    fetches: int
    fetches_failed: int
    deduplicated: int


class PartitionFigures(NamedTuple):
    topic: str
    partition: str
    size_bytes: int
    start_offset: int
    end_offset: int
    segments: int


class DirectoryFigures(NamedTuple):
    path: str
    free_bytes: int | None
    is_offline: bool
    logs: int
    arriving: int


class ApiFigures(NamedTuple):
    api: str
    requests: int
    sum_s: float
    buckets: list[int]
    errors: dict[int, int]


class Figures(NamedTuple):
    """A snapshot, safe to read from another thread."""

    topics: list[TopicFigures]
    partitions: list[PartitionFigures]
    directories: list[DirectoryFigures]
    apis: list[ApiFigures]
    refused: dict[str, int]
    background_failures: dict[str, int]
    lanes: list[LaneFigures]
    groups: GroupFigures
    queues: list[QueueFigures]
    transactions: TransactionFigures
    throttles: list[ThrottleFigures]
    listeners: ListenerFigures
    quotas: QuotaFigures
    gauges: dict[str, tuple[str, float]]
    counters: dict[str, tuple[str, float]]
    lateness: tuple[list[int], int]
    """Of delayed messages: how many were so late, and by how many ms they were late together."""


class MoreFigures(NamedTuple):
    """What others have to tell beside what is read here."""

    gauges: Callable[[], PlainFigures]
    counters: Callable[[], PlainFigures]
    delayed: DelayedFigures


class BrokerMetrics:
    """Reads the figures from those who count them."""

    def __init__(
        self,
        server: Server,
        services: Services,
        *,
        more: MoreFigures,
        group_reports: GroupReports,
        lags: LagReader,
        throttles: Mapping[str, Throttle],
        background_failures: Failures,
        lanes: Lanes | None = None,
    ) -> None:
        self._server = server
        self._services = services
        self._more = more
        self._group_reports = group_reports
        self._lags = lags
        self._throttles = throttles
        self._background_failures = background_failures
        self._lanes = lanes

    async def render(self) -> bytes:
        """The page for /metrics."""
        groups = group_figures(await self._group_reports.all(), self._services.clock.wall_ms())
        figures = self.collect(groups, await self.queues())
        return await asyncio.get_running_loop().run_in_executor(None, render, figures)

    async def queues(self, group_id: str | None = None) -> list[QueueFigures]:
        """How share groups are doing in the partitions that this broker leads: all groups, or one."""
        services = self._services
        return await queue_figures(services.shares, self._lags, services.clock.wall_ms(), group_id)

    def collect(self, groups: GroupFigures, queues: list[QueueFigures]) -> Figures:
        services, server = self._services, self._server
        return Figures(
            topics=[
                TopicFigures(
                    topic,
                    stats.bytes_in,
                    stats.bytes_out,
                    stats.messages_in,
                    stats.produces,
                    stats.produces_failed,
                    stats.fetches,
                    stats.fetches_failed,
                    stats.deduplicated,
                )
                for topic, stats in services.partitions.stats.items()
            ],
            partitions=[
                PartitionFigures(
                    partition.topic,
                    str(partition.index),
                    partition.log.size_bytes,
                    partition.log.log_start_offset,
                    partition.log.log_end_offset,
                    len(partition.log.segments),
                )
                for partition in services.partitions
            ],
            directories=[_directory_figures(directory) for directory in services.log_directories.all],
            apis=[_api_figures(key, stats) for key, stats in server.dispatcher.stats.items()],
            refused=dict(server.refused),
            groups=groups,
            queues=queues,
            background_failures=dict(self._background_failures.counts),
            lanes=[] if self._lanes is None else self._lanes.figures(),
            transactions=transaction_figures(services.transactions.all(), services.clock.wall_ms()),
            throttles=throttle_figures(self._throttles),
            listeners=listener_figures(server.logins, server.tls, services.clock.wall_ms()),
            quotas=quota_figures(server, services),
            gauges={**self._gauges(), **self._more.gauges()},
            counters={**self._counters(), **self._more.counters()},
            lateness=(list(self._more.delayed.late_counts), self._more.delayed.late_ms_sum),
        )

    def _gauges(self) -> dict[str, tuple[str, float]]:
        services, server = self._services, self._server
        return {
            "millrace_connections": ("Open client connections.", server.connection_count),
            "millrace_request_memory_bytes": (
                "Memory held by requests that are not yet complete or handled, and by held answers.",
                server.request_memory.used_bytes,
            ),
            "millrace_held_answers_bytes": (
                "Memory held by answers that wait for an earlier answer of their connection.",
                server.request_memory.held_bytes,
            ),
            "millrace_request_memory_waiting": (
                "Connections that wait for request memory.",
                server.request_memory.waiting_count,
            ),
            "millrace_fetch_sessions": ("Fetch sessions in the cache.", len(services.fetch_sessions)),
            "millrace_fetch_session_partitions": (
                "Partitions in all fetch sessions.",
                services.fetch_sessions.partition_count,
            ),
            "millrace_topics": ("Topics in the cluster.", len(services.metadata.image.topics)),
            "millrace_partitions": ("Partitions on this broker.", len(services.partitions)),
            **cluster_figures(services.metadata.image, services.config.node_id),
        }

    def _counters(self) -> dict[str, tuple[str, float]]:
        return {
            "millrace_connections_accepted": ("Connections accepted.", self._server.accepted_count),
            "millrace_fetch_session_evictions": (
                "Fetch sessions that gave way to others.",
                self._services.fetch_sessions.evictions,
            ),
        }


def render(figures: Figures) -> bytes:
    """The figures in the text format that Prometheus reads."""
    # Imported here, so that only a broker whose metrics are read pays for it.
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Snapshot(Collector):
        @override
        def collect(self) -> Iterator[Metric]:
            yield from _families(figures)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Snapshot())
    return generate_latest(registry)


def _directory_figures(directory: LogDirectory) -> DirectoryFigures:
    try:
        free_bytes = directory.free_bytes()
    except StorageError:
        free_bytes = None
    return DirectoryFigures(
        directory.path,
        free_bytes,
        directory.offline_reason is not None,
        len(directory.logs),
        len(directory.arriving),
    )


def _api_figures(key: int, stats: ApiStats) -> ApiFigures:
    return ApiFigures(ApiKey(key).name, stats.count, stats.sum_s, list(stats.buckets), dict(stats.errors))


def _families(figures: Figures) -> Iterator[Metric]:
    yield from _topic_families(figures.topics)
    yield from _partition_families(figures.partitions)
    yield from _directory_families(figures.directories)
    yield from _api_families(figures.apis)
    yield from group_families(figures.groups)
    yield from queue_families(figures.queues)
    yield from transaction_families(figures.transactions)
    yield from throttle_families(figures.throttles)
    yield from listener_families(figures.listeners)
    yield from quota_families(figures.quotas)
    yield from lateness_family(*figures.lateness)
    yield from _plain_families(figures)


def _topic_families(topics: list[TopicFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    described = (
        ("millrace_topic_bytes_in", "Bytes of records appended.", "bytes_in"),
        ("millrace_topic_bytes_out", "Bytes of records sent to consumers.", "bytes_out"),
        ("millrace_topic_messages_in", "Records appended.", "messages_in"),
        ("millrace_topic_produce_requests", "Batches of records that producers sent.", "produces"),
        ("millrace_topic_produce_failures", "Batches of records that were refused.", "produces_failed"),
        ("millrace_topic_fetch_requests", "Reads of a partition for consumers.", "fetches"),
        ("millrace_topic_fetch_failures", "Reads of a partition that were refused.", "fetches_failed"),
        ("millrace_topic_deduplicated", "Records not stored: their id was there already.", "deduplicated"),
    )
    for name, text, attribute in described:
        family = CounterMetricFamily(name, text, labels=("topic",))
        for figures in topics:
            family.add_metric((figures.topic,), getattr(figures, attribute))
        yield family


def _partition_families(partitions: list[PartitionFigures]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    described = (
        ("millrace_log_size_bytes", "Bytes in the partition's log.", "size_bytes"),
        ("millrace_log_start_offset", "The first offset that can be read.", "start_offset"),
        ("millrace_log_end_offset", "The offset that the next record gets.", "end_offset"),
        ("millrace_log_segments", "Segment files of the partition's log.", "segments"),
    )
    for name, text, attribute in described:
        family = GaugeMetricFamily(name, text, labels=("topic", "partition"))
        for figures in partitions:
            family.add_metric((figures.topic, figures.partition), getattr(figures, attribute))
        yield family


def _directory_families(directories: list[DirectoryFigures]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    described = (
        ("millrace_log_directory_free_bytes", "Free space where the logs are.", "free_bytes"),
        (
            "millrace_log_directory_offline",
            "1 when the log directory has failed and takes no writes.",
            "is_offline",
        ),
        ("millrace_log_directory_logs", "Logs in the directory.", "logs"),
        ("millrace_log_directory_arriving", "Logs that are being copied into the directory.", "arriving"),
    )
    for name, text, attribute in described:
        family = GaugeMetricFamily(name, text, labels=("directory",))
        for figures in directories:
            value = getattr(figures, attribute)
            if value is not None:
                family.add_metric((figures.path,), float(value))
        yield family


def _api_families(apis: list[ApiFigures]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    latency = HistogramMetricFamily(
        "millrace_request_duration_seconds", "From a request's arrival to its answer.", labels=("api",)
    )
    errors = CounterMetricFamily(
        "millrace_request_errors", "Errors in answers, by code.", labels=("api", "error")
    )
    for figures in apis:
        cumulated = 0
        buckets = []
        for bound, count in zip([*map(str, LATENCY_BOUNDS_S), "+Inf"], figures.buckets, strict=True):
            cumulated += count
            buckets.append((bound, float(cumulated)))
        latency.add_metric((figures.api,), buckets=buckets, sum_value=figures.sum_s)
        for code, count in sorted(figures.errors.items()):
            errors.add_metric((figures.api, _ERROR_NAMES.get(code, str(code))), count)
    yield latency
    yield errors


def _plain_families(figures: Figures) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    refused = CounterMetricFamily(
        "millrace_refused", "Connections and requests that were refused, by reason.", labels=("reason",)
    )
    for reason, count in sorted(figures.refused.items()):
        refused.add_metric((reason,), count)
    yield refused
    failed = CounterMetricFamily(
        "millrace_background_failures",
        "Failures of background work that nobody expected, by task. Loops are begun again.",
        labels=("task",),
    )
    for name, count in sorted(figures.background_failures.items()):
        failed.add_metric((name,), count)
    yield failed
    for name, text, attribute in (
        ("millrace_lane_queued", "Blocking work that waits for a thread, by lane.", "queued"),
        ("millrace_lane_oldest_seconds", "Age of the oldest blocking work not yet done.", "oldest_s"),
    ):
        lanes = GaugeMetricFamily(name, text, labels=("lane",))
        for lane in figures.lanes:
            lanes.add_metric((lane.name,), getattr(lane, attribute))
        yield lanes
    for name, (text, value) in sorted(figures.gauges.items()):
        yield GaugeMetricFamily(name, text, value=value)
    for name, (text, value) in sorted(figures.counters.items()):
        yield CounterMetricFamily(name, text, value=value)
