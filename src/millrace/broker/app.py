"""The assembly: builds every part of a broker, joins them, starts and stops them in order. Nothing else
does."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import orjson
import uvloop

from millrace.broker import stopping
from millrace.broker.config import part_settings
from millrace.broker.config.config import BrokerConfig
from millrace.broker.handlers import APIS
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.fetch_sessions import FetchSessions
from millrace.broker.network.lookout import Lookout
from millrace.broker.network.server import Server
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.broker.replication.failovers import Failovers
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.broker.replication.membership import HAND_OVER_S_MAX, Membership
from millrace.broker.replication.replication import Replication
from millrace.broker.services import Services
from millrace.broker.surroundings import Surroundings, of_this_machine
from millrace.broker.this_process import process_figures, raise_open_files_limit
from millrace.broker.transactions.markers import Markers
from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.broker.upkeep import Flusher, enforce_retention
from millrace.broker.watching import logs
from millrace.broker.watching.group_reports import GroupReports
from millrace.broker.watching.http import HttpResponse, HttpServer
from millrace.broker.watching.metrics import CONTENT_TYPE, BrokerMetrics
from millrace.broker.watching.readiness import Readiness
from millrace.broker.watching.scrub_metrics import scrub_counters, scrub_gauges
from millrace.broker.watching.throttle_metrics import throttles_of
from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_EPOCH, Epoch, TopicPartition
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.lag import LagReader
from millrace.groups.service import Groups
from millrace.log.cleaning.cleaner import LogCleaner
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.scrubber import Scrubber
from millrace.log.directories.survey import LoadProgress
from millrace.log.errors import LogDirectoryOffline
from millrace.metadata.adoption import FoundLog, belongs_to
from millrace.metadata.commands import Policy
from millrace.metadata.config_definitions import BrokerLayers, topic_settings
from millrace.metadata.errors import InvalidConfig, MetadataError
from millrace.metadata.image import BrokerState, Endpoint
from millrace.metadata.reconciler import Reconciler
from millrace.metadata.service import Metadata
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.transactions.service import Transactions

log = logging.getLogger("millrace.broker")

STOP_GRACE_S: Final = 2.0
"""For requests under way when the broker stops; clients try again elsewhere or later."""
ROOT_LOGGER: Final = "millrace"


def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or SIGINT; raises MillraceError when the broker cannot start."""
    if not __debug__:
        raise MillraceError("python -O takes the assertions out, and they guard the data: start without it")
    logs.set_up(config.text("logging.level"), config.text("logging.format"))
    raise_open_files_limit()
    uvloop.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    broker = Broker(config, of_this_machine(config))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # What waits for a disk or a file has lanes of its own (`core/lanes.py`).
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="cpu"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.serve(stop)


class Broker:
    """One broker process, from its first to its last moment."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        self._config = config
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._ids = surroundings.ids
        self._chance = surroundings.chance
        self.background = Background(surroundings.chance)
        self.readiness = Readiness()
        self.directories = LogDirectories(
            surroundings.volume,
            config.log_dirs,
            clock=self._clock,
            ids=self._ids,
            random_source=self._chance,
            settings=part_settings.directory_settings(config),
        )
        self.partitions = Partitions()
        self._flusher = Flusher()
        self._http: HttpServer | None = None
        self._metrics: BrokerMetrics | None = None
        self._server: Server | None = None
        self._services: Services | None = None
        self._cleaner: LogCleaner | None = None
        self._scrubber: Scrubber | None = None
        self._reconciler: Reconciler | None = None
        self._membership: Membership | None = None
        """In a cluster only."""
        self._replication: Replication | None = None
        """Likewise."""
        self._groups: Groups | None = None
        self._group_reports: GroupReports | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Start, serve until `stop` is set, stop in order."""
        ticks = self._surroundings.ticks
        started = ticks()
        background = self.background
        try:
            metadata = await background.unless_fatal(self._start())
            background.on_fatal = stop.set
            took_ms = (ticks() - started) * 1000
            log.info("ready", extra={"took_ms": round(took_ms), "partitions": len(self.partitions)})
            await stop.wait()
            await self._stop(metadata)
        finally:
            await background.end()
        if background.fatal is not None:
            raise background.fatal

    # Starting.

    async def _start(self) -> Metadata:
        await self._start_http()
        metadata = await self._start_storage()
        await self._start_serving(metadata)
        part_settings.name_those_without_effect(self._config)
        return metadata

    async def _start_http(self) -> None:
        address = self._config.metrics_listener
        if address is None:
            return
        self._http = HttpServer(
            {
                "/metrics": self._serve_metrics,
                "/healthz": self._serve_health,
                "/readyz": self._serve_readiness,
            },
            {"/v1/groups": self._serve_groups},
        )
        try:
            host, port = await self._http.start(*address)
        except OSError as error:
            if self._config.is_set("metrics.listener"):
                raise InvalidConfig("metrics.listener", f"{address[0]}:{address[1]}", str(error)) from error
            log.warning("no metrics and health checks: the port is taken", extra={"port": address[1]})
            self._http = None
            return
        log.info("metrics and health checks", extra={"url": f"http://{host}:{port}"})

    async def _start_storage(self) -> Metadata:
        """The logs and the metadata, in the order in which each needs the other."""
        directories = self.directories
        await directories.open()
        identity = directories.read_identity() or {}
        if "node.id" in identity and not self._config.is_set("node.id"):
            self._config = self._config.with_static("node.id", identity["node.id"])
        config = self._config
        node_id = config.node_id
        if config.is_clustered and not config.is_set("node.id"):
            raise InvalidConfig("node.id", None, "a broker of a cluster needs a number of its own")
        self._check_store_directory()
        store = self._surroundings.open_store(config)
        metadata = Metadata(
            store,
            policy=self._policy,
            ids=self._ids,
            chance=self._chance,
        )
        await metadata.start(self.background, found_cluster_id=identity.get("cluster.id"))
        directory_ids = directories.ensure_identity(node_id=node_id, cluster_id=metadata.image.cluster_id)
        replicas = LocalReplicas(
            directories, self.partitions, node_id=node_id, flush_wanted=self._flusher.wanted
        )
        if config.is_clustered:
            self._replication = Replication(
                metadata,
                self.partitions,
                config=lambda: self._config,
                background=self.background,
                chance=self._chance,
            )
            replicas.roles = self._replication
            replicas.latest_state = self._replication.state_of
            # Until this broker has its place in the cluster, others may lead what it led before.
            replicas.fence(True)
        reconciler = Reconciler(
            metadata,
            replicas,
            node_id=node_id,
            static=config.layers.static,
            on_broker_settings=self._apply_settings,
        )
        reconciler.load_settings(metadata.image)

        default_log_config = topic_settings({}, self._config.layers).log

        def log_config_of(topic_partition: TopicPartition) -> LogConfig:
            topic = metadata.image.topics.get(topic_partition.topic)
            return default_log_config if topic is None else reconciler.settings_of(topic).log

        await directories.load(log_config_of, self._recovering, belongs_to(metadata.image))
        directories.mover.bytes_per_second = lambda: self._config.number(
            "replica.alter.log.dirs.io.max.bytes.per.second"
        )
        await self._adopt(metadata)
        broker = BrokerState(
            node_id=node_id,
            incarnation=self._ids.topic_id().hex(),
            rack=config.optional_text("broker.rack"),
            endpoints=tuple(self._endpoints()),
            directory_ids=directory_ids,
        )
        self._failed_disks = FailedDisks(
            directories, metadata, node_id=node_id, incarnation=broker.incarnation
        )
        self._failed_disks.compare(metadata.image)
        if config.is_clustered:
            self._membership = Membership(
                metadata,
                store,
                broker,
                config=lambda: self._config,
                surroundings=self._surroundings,
                is_clean=directories.progress.is_clean,
                disks=self._failed_disks,
            )
            self._membership.on_fence.append(replicas.fence)
            await self._membership.prepare()
        else:
            await metadata.register_broker(broker, offline=self._failed_disks.offline_replicas())
        await reconciler.start(self.background)
        self._groups = self._start_groups(self.background, metadata)
        self._producer_ids = ProducerIds(metadata)
        others = None if self._replication is None else self._replication.transactions
        self._markers = Markers(metadata, self.partitions, self._groups, self._clock, others)
        self._transactions = self._start_transactions(metadata, self._markers)
        coordinators = (self._groups.runtime, self._transactions.runtime)

        def leadership_changed(partition: Partition) -> None:
            for runtime in coordinators:
                runtime.leadership_changed(partition)

        replicas.leadership_changed = leadership_changed
        self._reconciler = reconciler
        metadata.applied_by(reconciler.wait_until_applied)
        return metadata

    def _check_store_directory(self) -> None:
        """A new store in the place of one that is out of reach would know nothing of the topics."""
        config = self._config
        for path, reason in self.directories.offline.items():
            if not config.is_clustered and config.metadata_store_path.startswith(f"{path}/"):
                raise LogDirectoryOffline(path, f"{reason} (the metadata store is in it)")

    def _start_groups(self, background: Background, metadata: Metadata) -> Groups:
        config = self._config
        groups = Groups(
            metadata,
            self.partitions,
            clock=self._clock,
            chance=self._chance,
            settings=part_settings.group_settings(config),
            consumers=Consumers(metadata, part_settings.consumer_settings(config)),
            offsets_topic=part_settings.offsets_topic(config),
        )
        groups.start(background)
        return groups

    def _start_transactions(self, metadata: Metadata, markers: Markers) -> Transactions:
        config = self._config
        transactions = Transactions(
            metadata,
            self.partitions,
            clock=self._clock,
            settings=part_settings.transaction_settings(config),
            topic=part_settings.transaction_topic(config),
            next_producer_id=self._producer_ids.next,
            write_marker=markers.write_for_coordinator,
        )
        transactions.start(self.background)
        return transactions

    async def _adopt(self, metadata: Metadata) -> None:
        """Take in what is on the disk and not in the metadata: Kafka's directory, or ours after the store
        was lost."""
        known = metadata.image.topics
        self.directories.doubt_ids({name: topic.topic_id for name, topic in known.items()})
        found = []
        next_producer_id = 0
        recovered = self.directories.recovered
        for topic_partition, partition_log in self.directories.logs.items():
            is_known = topic_partition.topic in known
            if not is_known and metadata.image.members:
                # In a cluster the store knows better: this may be left over from a topic that is gone.
                log.warning("a log of an unknown topic is left alone", extra={"log": str(topic_partition)})
                continue
            epoch = NO_EPOCH
            if not is_known or topic_partition in recovered:
                epoch = Epoch(partition_log.latest_epoch)
            if not is_known:
                highest = max(partition_log.producers.entries, default=-1)
                next_producer_id = max(next_producer_id, highest + 1)
            found.append(
                FoundLog(topic_partition.topic, topic_partition.partition, partition_log.topic_id, epoch)
            )
        strays = await metadata.adopt_logs(
            found, node_id=self._config.node_id, next_producer_id=next_producer_id
        )
        for stray in strays:
            self.directories.set_aside(TopicPartition(stray.topic, stray.partition))

    async def _start_serving(self, metadata: Metadata) -> None:
        config = self._config
        assert self._groups is not None
        services = Services(
            groups=self._groups,
            transactions=self._transactions,
            markers=self._markers,
            producer_ids=self._producer_ids,
            clock=self._clock,
            config=config,
            metadata=metadata,
            partitions=self.partitions,
            log_directories=self.directories,
            fetch_sessions=FetchSessions(
                config.integer("max.incremental.fetch.session.cache.slots"), self._chance
            ),
            fetch_bytes_max=config.integer("fetch.max.bytes"),
            lookout=Lookout(self._surroundings.ticks, self._patience_s(config)),
        )
        if self._replication is not None:
            services.replica_sessions = self._replication.sessions
            services.remote_transactions = self._replication.transactions
            peers = self._replication.peers
            services.failovers = Failovers(
                lambda: metadata.image, lambda: peers.is_probing, self.background.failures
            )
        self._services = services
        self._cleaner = LogCleaner(
            self.directories.all_logs,
            self._surroundings.compaction,
            self._clock,
            part_settings.cleaner_config(config),
            self.directories.save_cleaner_offsets,
        )
        self._server = Server(
            dispatcher=Dispatcher(APIS),
            services=services,
            limits=part_settings.server_limits(config),
            ticks=self._surroundings.ticks,
            failures=self.background.failures,
        )
        if self._membership is not None:
            self._server.before_requests = self._membership.check_time
        self._group_reports = GroupReports(
            self._groups,
            LagReader(self.partitions, self._clock),
            self._clock,
            lambda: metadata.image,
            self._fetch_times,
        )
        self._metrics = BrokerMetrics(
            self._server,
            services,
            process_figures=lambda: {**process_figures(), **scrub_gauges(self._scrubber, self.directories)},
            cleaner_figures=self._cleaner_figures,
            open_file_count=self._surroundings.open_file_count,
            group_reports=self._group_reports,
            throttles={} if self._replication is None else throttles_of(self._replication),
            background_failures=self.background.failures,
            lanes=self._surroundings.lanes,
        )
        self._start_upkeep(self._cleaner)
        self._surroundings.settle()
        bound_ports: dict[str, int] = {}
        for listener in config.listeners:
            try:
                host, port = await self._server.listen(listener.name, listener.host, listener.port)
                bound_ports[listener.name] = port
            except OSError as error:
                raise InvalidConfig("listeners", f"{listener.host}:{listener.port}", str(error)) from error
            log.info(
                "listening",
                extra={"address": f"{host}:{port}", "listener": listener.name, "node_id": config.node_id},
            )
        if self._membership is not None:
            # Last of all: from now on others send requests here.
            await self._membership.join(self.background, bound_ports)
        if self._replication is not None:
            self._replication.start()
        self.readiness.phase = "ready"

    def _start_upkeep(self, cleaner: LogCleaner) -> None:
        background = self.background
        self.directories.start(background)
        _ = background.keep("failed-disks", self._failed_disks.run)
        _ = background.keep("log-cleaner", cleaner.run)
        self._scrubber = Scrubber(
            lambda: self.directories.online, self._clock, part_settings.scrub_config(self._config)
        )
        _ = background.keep("log-scrubber", self._scrubber.run)
        if self._replication is not None:
            self.directories.tell_of_damage(self._replication.mender.damage_found)
        _ = background.keep(
            "retention",
            lambda: enforce_retention(
                self.directories,
                self._clock,
                first_delay_ms=lambda: self._config.integer("log.initial.task.delay.ms"),
                interval_ms=lambda: self._config.integer("log.retention.check.interval.ms"),
            ),
        )

    # Running.

    def _policy(self) -> Policy:
        return self._config.policy()

    def _apply_settings(self, layers: BrokerLayers) -> None:
        """Broker settings have changed in the metadata: what can change on a running broker changes now."""
        before, self._config = self._config, BrokerConfig(layers)
        config = self._config
        if config.text("logging.level") != before.text("logging.level"):
            # Only then: a level that was set for a single logger is to stay.
            logging.getLogger(ROOT_LOGGER).setLevel(config.text("logging.level").upper())
        if self._server is not None:
            self._server.reconfigure(part_settings.server_limits(config))
        if self._services is not None:
            self._services.config = config
            self._services.fetch_bytes_max = config.integer("fetch.max.bytes")
            self._services.lookout.patience_s = self._patience_s(config)
        if self._cleaner is not None:
            self._cleaner.config = part_settings.cleaner_config(config)
        if self._scrubber is not None:
            self._scrubber.config = part_settings.scrub_config(config)
        if self._replication is not None:
            self._replication.reconfigure()

    def _patience_s(self, config: BrokerConfig) -> float:
        return config.integer("socket.idle.poll.us") / 1e6 if self._surroundings.may_stay_awake else 0.0

    def _recovering(self, progress: LoadProgress) -> None:
        self.readiness.recovering(progress.logs_done, progress.logs_total)
        if not progress.is_clean and progress.logs_total and progress.logs_done % 100 == 0:
            log.info(
                "checking logs after an unclean stop",
                extra={
                    "logs": f"{progress.logs_done}/{progress.logs_total}",
                    "bytes": f"{progress.bytes_done}/{progress.bytes_total}",
                },
            )

    async def _serve_metrics(self) -> HttpResponse:
        if self._metrics is None:
            return HttpResponse(503, b'{"error":"the broker is starting"}\n')
        return HttpResponse(200, await self._metrics.render(), CONTENT_TYPE)

    async def _serve_groups(self, name: str | None, query: Mapping[str, str]) -> HttpResponse:
        """How the groups of this broker are doing: a page of all of them, or one with all its details."""
        reports = self._group_reports
        if reports is None:
            return HttpResponse(503, b'{"error":"the broker is starting"}\n')
        if name is None:
            page, has_more = await reports.page(query.get("after", ""))
            body = {"groups": [reports.summarise(each) for each in page], "has_more": has_more}
            return HttpResponse(200, orjson.dumps(body) + b"\n")
        report = await reports.of(name)
        if report is None:
            return HttpResponse(404, orjson.dumps({"error": f"there is no group {name}"}) + b"\n")
        if isinstance(report, MillraceError):
            return HttpResponse(503, orjson.dumps({"error": str(report)}) + b"\n")
        return HttpResponse(200, orjson.dumps(reports.describe(report)) + b"\n")

    def _fetch_times(self) -> dict[tuple[str, str], int]:
        assert self._server is not None
        now_ms = self._clock.wall_ms()
        # Kafka writes a client's host with a slash in front.
        return {
            (client_id, "/" + host): now_ms - round(age_s * 1000)
            for (client_id, host), age_s in self._server.fetch_ages_s().items()
        }

    async def _serve_health(self) -> HttpResponse:
        offline = self.directories.offline_reason
        state = {
            "status": "ok" if offline is None else "failed",
            "reason": offline,
            "offline_directories": self.directories.offline,
        }
        return HttpResponse(200 if offline is None else 503, orjson.dumps(state) + b"\n")

    async def _serve_readiness(self) -> HttpResponse:
        progress = self.directories.progress
        offline = self.directories.offline_reason
        state = {
            "status": self.readiness.phase if offline is None else "failed",
            "reason": offline,
            "offline_directories": self.directories.offline,
            "logs_loaded": progress.logs_done,
            "logs_total": progress.logs_total,
            "bytes_checked": progress.bytes_done,
            "bytes_to_check": progress.bytes_total,
        }
        is_ready = self.readiness.is_ready and offline is None
        return HttpResponse(200 if is_ready else 503, orjson.dumps(state) + b"\n")

    def _cleaner_figures(self) -> Mapping[str, tuple[str, float]]:
        assert self._cleaner is not None
        assert self._scrubber is not None
        figures = self._cleaner.metrics
        return {
            **scrub_counters(self._scrubber.metrics, self.directories),
            "millrace_cleaner_passes": ("Compactions done.", figures.passes_count),
            "millrace_cleaner_aborted": ("Compactions broken off, to be tried again.", figures.aborted_count),
            "millrace_cleaner_worker_deaths": ("Worker processes lost.", figures.worker_deaths_count),
            "millrace_cleaner_failures": ("Compactions that failed.", figures.failures_count),
            "millrace_cleaner_bytes_read": ("Bytes read by compaction.", figures.bytes_read),
            "millrace_cleaner_bytes_written": ("Bytes written by compaction.", figures.bytes_written),
            "millrace_cleaner_records_removed": ("Records removed by compaction.", figures.records_removed),
        }

    def _endpoints(self) -> list[Endpoint]:
        """Where other brokers find this one: as advertised, else as bound."""
        advertised = self._config.advertised_listeners
        return [
            Endpoint(
                listener.name,
                *advertised.get(listener.name, (listener.host, listener.port)),
                listener.security_protocol,
            )
            for listener in self._config.listeners
        ]

    # Stopping.

    async def _stop(self, metadata: Metadata) -> None:
        """Requests first, then the logs, then the metadata: what was acknowledged is on disk when this
        returns."""
        log.info("stopping")
        self.readiness.phase = "stopping"
        server, groups, membership = self._server, self._groups, self._membership
        assert server is not None
        assert groups is not None
        # Who cannot follow the metadata, or has lost its place, has nothing to hand over.
        if membership is not None and not isinstance(self.background.fatal, MetadataError):
            await stopping.step("handing over", membership.hand_over(), 2 * HAND_OVER_S_MAX)
        # Members that wait for others to join would keep their connections busy until the grace is over.
        groups.stop()
        self._transactions.stop()
        await stopping.step("ending connections", server.stop(STOP_GRACE_S))
        if membership is not None:
            await stopping.step("leaving the cluster", membership.leave())
        if self._replication is not None:
            self._replication.stop()
        close_s_max = self._config.integer("shutdown.timeout.ms") / 1000
        await stopping.step(
            "closing the logs", self.directories.close(), close_s_max, "the next start will check them"
        )
        if self._reconciler is not None:
            self._reconciler.close()
        await stopping.step("closing the metadata store", metadata.close())
        if self._http is not None:
            self._http.stop()
        log.info("stopped")
