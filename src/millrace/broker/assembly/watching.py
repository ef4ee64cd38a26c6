"""What people and machines see of the broker: its HTTP port, and the level of its log."""

from __future__ import annotations

import ipaddress
import logging

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.cluster import Neighbours
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.serving import Upkeep
from millrace.broker.assembly.storage import Storage
from millrace.broker.network.server import Server
from millrace.broker.queues.dead_letters import DeadLetters
from millrace.broker.queues.delayed.service import DelayedDelivery
from millrace.broker.this_process import process_figures
from millrace.broker.watching import http_security, logs
from millrace.broker.watching.audit_metrics import audit_counters, audit_gauges
from millrace.broker.watching.cleaner_metrics import cleaner_counters
from millrace.broker.watching.delayed_metrics import delayed_counters, delayed_gauges
from millrace.broker.watching.group_reports import GroupReports
from millrace.broker.watching.http import Guarded, HttpServer
from millrace.broker.watching.metrics import BrokerMetrics, MoreFigures, PlainFigures
from millrace.broker.watching.pages import Pages
from millrace.broker.watching.queue_metrics import queue_counters, queue_gauges
from millrace.broker.watching.scrub_metrics import scrub_counters, scrub_gauges
from millrace.broker.watching.throttle_metrics import throttles_of
from millrace.groups.lag import LagReader
from millrace.metadata.errors import InvalidConfig

log = logging.getLogger(__name__)


def follow_log_level(ground: Ground) -> None:
    """Log at the level that is set now. A level that was set for a single logger stays until then."""
    ground.config.subscribe(
        lambda old, new: logs.change_level(part_settings.log_level(old), part_settings.log_level(new))
    )


async def start_http(ground: Ground, pages: Pages) -> HttpServer | None:
    """Open the HTTP port; return None if none is wanted, or if it is taken and nobody asked for exactly this
    one."""
    config = ground.config.now
    if config.metrics_listener is None:
        return None
    host, port = config.metrics_listener
    security = part_settings.http_security(config)
    credentials = await http_security.load(security)
    guarded = None
    if credentials.guard is not None:
        guarded = Guarded(credentials.guard, pages.public if security.are_probes_open else {})
    elif not _is_loopback(host):
        log.warning("everybody who reaches the metrics port may read it: metrics.auth.token is not set")
    server = HttpServer(pages.paths, pages.collections, guarded=guarded, failures=ground.background.failures)
    try:
        bound_host, bound_port = await server.start(host, port, credentials.listening)
    except OSError as error:
        if part_settings.has_metrics_listener(config):
            raise InvalidConfig("metrics.listener", f"{host}:{port}", str(error)) from error
        log.warning("no metrics and health checks: the port is taken", extra={"port": port})
        return None
    scheme = "http" if credentials.listening is None else "https"
    log.info("metrics and health checks", extra={"url": f"{scheme}://{bound_host}:{bound_port}"})
    if credentials.listening is not None or security.token_file is not None:
        _ = ground.background.keep("follow-http-files", credentials.follow)
    return server


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_pages(
    ground: Ground,
    pages: Pages,
    storage: Storage,
    server: Server,
    upkeep: Upkeep,
    neighbours: Neighbours | None,
    delayed: DelayedDelivery,
    dead_letters: DeadLetters,
) -> None:
    """Let all pages tell from now on what there is, and not only how far the start has come."""
    services, surroundings = server.services, ground.surroundings
    directories = storage.directories
    lags = LagReader(storage.partitions, surroundings.clock)
    reports = GroupReports(
        services.groups,
        lags,
        surroundings.clock,
        lambda: services.metadata.image,
        lambda: _fetch_times(server, surroundings.clock.wall_ms()),
        services.share_groups.summaries,
    )

    def gauges() -> PlainFigures:
        return {
            **process_figures(),
            **scrub_gauges(upkeep.scrubber, directories),
            **audit_gauges(services.access.auditor),
            "millrace_dedup_ids": (
                "Ids of records in memory, for topics that store each id once.",
                services.deduplication.ids_count,
            ),
            **delayed_gauges(delayed.pending_count, delayed.next_due_ms),
            **queue_gauges(services.shares, dead_letters),
            "millrace_open_files": ("Log files held open.", surroundings.open_file_count()),
        }

    def counters() -> PlainFigures:
        return {
            **scrub_counters(upkeep.scrubber.metrics, directories),
            **cleaner_counters(upkeep.cleaner.metrics),
            **audit_counters(services.access.auditor),
            "millrace_dedup_ids_dropped": (
                "Ids of records that were forgotten before their time, because there is no more memory.",
                services.deduplication.dropped_count,
            ),
            **delayed_counters(delayed.figures),
            **queue_counters(services.shares, dead_letters),
        }

    metrics = BrokerMetrics(
        server,
        services,
        more=MoreFigures(gauges, counters, delayed.figures),
        group_reports=reports,
        lags=lags,
        throttles={} if neighbours is None else throttles_of(neighbours.replication),
        background_failures=ground.background.failures,
        lanes=surroundings.lanes,
    )
    pages.open(metrics, reports)


def _fetch_times(server: Server, now_ms: int) -> dict[tuple[str, str], int]:
    # Kafka writes a client's host with a slash in front.
    return {
        (client_id, "/" + host): now_ms - round(age_s * 1000)
        for (client_id, host), age_s in server.fetch_ages_s().items()
    }
