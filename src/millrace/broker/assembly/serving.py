"""The listeners and their connections, the handlers' services, and the work beside requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.access import follow_permissions
from millrace.broker.assembly.cluster import Neighbours
from millrace.broker.assembly.coordinators import Coordinators
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.quotas import follow_quotas, tenant_storage
from millrace.broker.assembly.storage import Storage
from millrace.broker.config.config import BrokerConfig
from millrace.broker.handlers.services import Services
from millrace.broker.network.dispatch import Dispatcher
from millrace.broker.network.fetch_sessions import FetchSessions
from millrace.broker.network.login import ListenerLogins
from millrace.broker.network.lookout import Lookout
from millrace.broker.network.server import Server
from millrace.broker.network.tls_listener import TlsListener
from millrace.broker.queues.end_offsets import EndOffsets
from millrace.broker.queues.share_group_states import ShareGroupStates
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.broker.replication.membership import Place
from millrace.broker.upkeep import enforce_retention
from millrace.log.cleaning.cleaner import LogCleaner
from millrace.log.directories.scrubber import Scrubber
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.security.delegation_tokens import DelegationTokens, sweep_tokens
from millrace.metadata.service import Metadata

log = logging.getLogger(__name__)


def build_services(
    ground: Ground,
    metadata: Metadata,
    storage: Storage,
    coordinators: Coordinators,
    neighbours: Neighbours | None,
) -> Services:
    config, surroundings = ground.config.now, ground.surroundings
    services = Services(
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        markers=coordinators.markers,
        producer_ids=coordinators.producer_ids,
        share_state=coordinators.share_state,
        persister=coordinators.persister,
        shares=coordinators.shares,
        share_groups=ShareGroupStates(
            coordinators.groups, coordinators.persister, ground.background.starter("share-group-state")
        ),
        end_offsets=EndOffsets(
            metadata, storage.partitions, None if neighbours is None else neighbours.replication.peers
        ),
        clock=surroundings.clock,
        config=config,
        settings=part_settings.request_settings(config),
        metadata=metadata,
        partitions=storage.partitions,
        log_directories=storage.directories,
        tokens=DelegationTokens(
            metadata,
            part_settings.token_settings(config),
            clock=surroundings.clock,
            ids=surroundings.ids,
        ),
        fetch_sessions=FetchSessions(part_settings.fetch_sessions_max(config), surroundings.chance),
        lookout=Lookout(surroundings.ticks, _patience_s(ground, config)),
        access=follow_permissions(ground.config, metadata),
        throttling=follow_quotas(ground.config, metadata),
        tenant_storage=tenant_storage(ground, metadata, storage, neighbours),
        replica_sessions=None if neighbours is None else neighbours.replication.sessions,
        remote_transactions=None if neighbours is None else neighbours.transactions,
        failovers=None if neighbours is None else neighbours.failovers,
    )

    def reconfigure(_before: BrokerConfig, config: BrokerConfig) -> None:
        services.config = config
        services.settings = part_settings.request_settings(config)
        services.deduplication.ids_max = services.settings.dedup_ids_max
        services.lookout.patience_s = _patience_s(ground, config)

    ground.config.subscribe(reconfigure)
    return services


def _patience_s(ground: Ground, config: BrokerConfig) -> float:
    return part_settings.idle_poll_s(config) if ground.surroundings.may_stay_awake else 0.0


def build_server(ground: Ground, services: Services, place: Place) -> Server:
    server = Server(
        dispatcher=Dispatcher(ground.release.apis),
        services=services,
        limits=part_settings.server_limits(ground.config.now),
        ticks=ground.surroundings.ticks,
        failures=ground.background.failures,
        before_requests=place.before_requests,
    )
    ground.config.subscribe(lambda _, config: server.reconfigure(part_settings.server_limits(config)))
    return server


async def listen(
    ground: Ground,
    server: Server,
    logins: Mapping[str, ListenerLogins],
    tls: Mapping[str, TlsListener],
) -> dict[str, int]:
    """Open all listeners; return the port that each has got, by its name."""
    config = ground.config.now
    bound_ports: dict[str, int] = {}
    for listener in config.listeners:
        try:
            host, port = await server.listen(
                listener.name,
                listener.host,
                listener.port,
                logins.get(listener.name),
                tls.get(listener.name),
            )
        except OSError as error:
            raise InvalidConfig("listeners", f"{listener.host}:{listener.port}", str(error)) from error
        bound_ports[listener.name] = port
        log.info(
            "listening",
            extra={"address": f"{host}:{port}", "listener": listener.name, "node_id": config.node_id},
        )
    return bound_ports


def start_token_sweep(ground: Ground, services: Services) -> None:
    """Remove delegation tokens that have expired, where there are any."""
    if services.tokens.is_enabled:
        interval_ms = part_settings.token_sweep_interval_ms(ground.config.now)
        _ = ground.background.keep("token-sweep", lambda: sweep_tokens(services.tokens, interval_ms))


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The parts of the work beside requests that the metrics tell of."""

    cleaner: LogCleaner
    scrubber: Scrubber


def start_upkeep(ground: Ground, storage: Storage, disks: FailedDisks) -> Upkeep:
    """Start the work on the logs that goes on beside requests until the broker ends."""
    directories, background, config = storage.directories, ground.background, ground.config
    clock = ground.surroundings.clock
    cleaner = LogCleaner(
        directories.all_logs,
        ground.surroundings.compaction,
        clock,
        part_settings.cleaner_config(config.now),
        directories.save_cleaner_offsets,
    )
    scrubber = Scrubber(lambda: directories.online, clock, part_settings.scrub_config(config.now))

    def reconfigure(_before: BrokerConfig, config: BrokerConfig) -> None:
        cleaner.config = part_settings.cleaner_config(config)
        scrubber.config = part_settings.scrub_config(config)

    config.subscribe(reconfigure)
    directories.start(background)
    _ = background.keep("failed-disks", disks.run)
    _ = background.keep("log-cleaner", cleaner.run)
    _ = background.keep("log-scrubber", scrubber.run)
    _ = background.keep(
        "retention",
        lambda: enforce_retention(directories, clock, lambda: part_settings.retention_pace(config.now)),
    )
    return Upkeep(cleaner, scrubber)
