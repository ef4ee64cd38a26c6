"""The broker as a whole. `assembly` builds its parts; this module joins them, starts them in order and stops
them in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import uvloop

from millrace.broker import stopping
from millrace.broker.assembly import part_settings
from millrace.broker.assembly.auditing import build_auditing
from millrace.broker.assembly.cluster import (
    Neighbours,
    build_place,
    describe_broker,
    find_failed_disks,
    start_metadata,
)
from millrace.broker.assembly.coordinators import Coordinators, start_coordinators
from millrace.broker.assembly.delayed import Delayed, start_delayed
from millrace.broker.assembly.first_users import add_first_users
from millrace.broker.assembly.ground import Ground, Release
from millrace.broker.assembly.logins import build_logins
from millrace.broker.assembly.serving import (
    build_server,
    build_services,
    listen,
    start_token_sweep,
    start_upkeep,
)
from millrace.broker.assembly.storage import (
    build_reconciler,
    build_replicas,
    build_storage,
    load_logs,
    open_directories,
)
from millrace.broker.assembly.this_machine import of_this_machine
from millrace.broker.assembly.tls import build_tls, warn_of_open_listeners
from millrace.broker.assembly.watching import follow_log_level, open_pages, start_http
from millrace.broker.auditing.auditing import Auditing
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.live import LiveConfig
from millrace.broker.network.server import Server
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.broker.replication.membership import HAND_OVER_S_MAX, Place
from millrace.broker.surroundings import Surroundings
from millrace.broker.this_process import raise_open_files_limit
from millrace.broker.watching import logs
from millrace.broker.watching.pages import Pages
from millrace.broker.watching.readiness import Readiness
from millrace.core.background import Background
from millrace.core.errors import MillraceError
from millrace.metadata.errors import MetadataError
from millrace.metadata.reconciler import Reconciler
from millrace.metadata.service import Metadata

log = logging.getLogger("millrace.broker")

STOP_GRACE_S: Final = 2.0
"""How long a broker that stops waits for requests under way; their clients try again elsewhere or later."""


def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or SIGINT; raises MillraceError when the broker cannot start."""
    if not __debug__:
        raise MillraceError("python -O takes the assertions out, and they guard the data: start without it")
    logs.set_up(part_settings.log_level(config), part_settings.log_style(config))
    raise_open_files_limit()
    uvloop.run(_run(config))


async def _run(config: BrokerConfig) -> None:
    broker = Broker(config, of_this_machine(config))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # This pool is for CPU work alone: what waits for a disk or a file has lanes of its own (`core/lanes.py`).
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="cpu"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.serve(stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a broker knows of the cluster, its place in it, and the parts that carry out the metadata."""

    metadata: Metadata
    reconciler: Reconciler
    place: Place
    disks: FailedDisks
    neighbours: Neighbours | None
    """None where there is only one broker."""
    coordinators: Coordinators
    delayed: Delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A broker that serves."""

    cluster: Cluster
    server: Server
    auditing: Auditing | None
    """None where nobody wants to know who did what."""


class Broker:
    """One broker process, from its first to its last moment."""

    def __init__(
        self, config: BrokerConfig, surroundings: Surroundings, release: Release | None = None
    ) -> None:
        self.background = Background(surroundings.chance)
        self._ground = Ground(
            config=LiveConfig(config),
            surroundings=surroundings,
            background=self.background,
            release=release or Release(),
        )
        self._storage = build_storage(self._ground)
        self.directories = self._storage.directories
        self.partitions = self._storage.partitions
        self.readiness = Readiness()
        self.running: Running | None = None
        """What the start has built; None until the start is complete."""

    async def serve(self, stop: asyncio.Event) -> None:
        """Start, serve until `stop` is set, stop in order."""
        ticks = self._ground.surroundings.ticks
        started = ticks()
        background = self.background
        follow_log_level(self._ground)
        pages = Pages(self.directories, self.readiness)
        http = await start_http(self._ground, pages)
        try:
            running = self.running = await background.unless_fatal(self._start(pages))
            background.when_fatal(stop.set)
            took_ms = (ticks() - started) * 1000
            log.info("ready", extra={"took_ms": round(took_ms), "partitions": len(self.partitions)})
            await stop.wait()
            await self._stop(running)
        finally:
            await background.end()
            if http is not None:
                http.stop()
        log.info("stopped")
        if background.fatal is not None:
            raise background.fatal

    # Starting.

    async def _start(self, pages: Pages) -> Running:
        ground, storage = self._ground, self._storage
        joined = await self._start_cluster()
        services = build_services(ground, joined.metadata, storage, joined.coordinators, joined.neighbours)
        services.delayed_store = joined.delayed.store
        server = build_server(ground, services, joined.place)
        logins, tls = build_logins(ground, services), build_tls(ground)
        auditing = build_auditing(ground, services, logins)
        start_token_sweep(ground, services)
        upkeep = start_upkeep(ground, storage, joined.disks)
        if services.tenant_storage is not None:
            _ = self.background.keep("tenant-storage", services.tenant_storage.run)
        open_pages(
            ground,
            pages,
            storage,
            server,
            upkeep,
            joined.neighbours,
            joined.delayed.delivery,
            joined.coordinators.dead_letters,
        )
        ground.surroundings.on_built()
        bound_ports = await listen(ground, server, logins.by_listener, tls)
        # The broker joins last: from then on clients and other brokers send requests here.
        await joined.place.join(self.background, bound_ports)
        if joined.neighbours is not None:
            joined.neighbours.start()
        if auditing is not None:
            auditing.start(self.background)
        self.readiness.phase = "ready"
        part_settings.name_those_without_effect(ground.config.now)
        warn_of_open_listeners(ground.config.now)
        return Running(cluster=joined, server=server, auditing=auditing)

    async def _start_cluster(self) -> Cluster:
        """Start the logs and the metadata in turns: each needs what a step of the other has found."""
        ground, storage = self._ground, self._storage
        found_cluster_id = await open_directories(ground, self.directories)
        knowledge = await start_metadata(ground, storage, found_cluster_id)
        metadata = knowledge.metadata
        await add_first_users(ground, metadata)
        neighbours = None
        if ground.config.now.is_clustered:
            neighbours = Neighbours(ground, metadata, storage)
        roles = None if neighbours is None else neighbours.replication
        replicas = build_replicas(ground, storage, roles)
        reconciler = build_reconciler(ground, metadata, replicas)
        await load_logs(ground, self.directories, metadata, reconciler, self.readiness.recovering)
        broker = describe_broker(ground, knowledge.directory_ids)
        disks = find_failed_disks(knowledge, broker, storage)
        place = build_place(ground, knowledge, broker, storage, replicas, disks)
        await place.prepare()
        await reconciler.start(self.background)
        coordinators = start_coordinators(ground, metadata, self.partitions, replicas, neighbours)
        delayed = start_delayed(ground, metadata, self.partitions, replicas, coordinators)
        metadata.applied_by(reconciler.wait_until_applied)
        return Cluster(
            metadata=metadata,
            reconciler=reconciler,
            place=place,
            disks=disks,
            neighbours=neighbours,
            coordinators=coordinators,
            delayed=delayed,
        )

    # Stopping.

    async def _stop(self, running: Running) -> None:
        """End the requests first, then the logs, then the metadata: what was acknowledged is on disk when
        this returns."""
        log.info("stopping")
        self.readiness.phase = "stopping"
        joined = running.cluster
        if running.auditing is not None:
            # While this broker still leads its partition of the audit.
            running.auditing.stops()
            await stopping.step("writing the audit", running.auditing.write_all())
        # A broker that cannot follow the metadata, or has lost its place, has nothing to hand over.
        if not isinstance(self.background.fatal, MetadataError):
            await stopping.step("handing over", joined.place.hand_over(), 2 * HAND_OVER_S_MAX)
        await stopping.step("ending deliveries of delayed messages", joined.delayed.delivery.close())
        joined.coordinators.stop()
        await stopping.step("ending connections", running.server.stop(STOP_GRACE_S))
        if running.auditing is not None:
            await stopping.step("writing the rest of the audit", running.auditing.write_all())
        await stopping.step("leaving the cluster", joined.place.leave())
        if joined.neighbours is not None:
            joined.neighbours.stop()
        await stopping.step(
            "closing the logs",
            self.directories.close(),
            part_settings.shutdown_s_max(self._ground.config.now),
            "the next start will check them",
        )
        joined.reconciler.close()
        await stopping.step("closing the metadata store", joined.metadata.close())
