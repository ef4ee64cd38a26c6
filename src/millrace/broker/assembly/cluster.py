"""Builds the metadata and this broker's place in it: alone, or as one of several with all that a cluster
needs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.storage import Storage
from millrace.broker.config.config import BrokerConfig
from millrace.broker.queues.remote_state import RemoteState
from millrace.broker.replication.failed_disks import FailedDisks
from millrace.broker.replication.failovers import Failovers
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.broker.replication.membership import Alone, Membership, Place
from millrace.broker.replication.replication import Replication
from millrace.broker.transactions.remote_transactions import RemoteTransactions
from millrace.core.background import Tasks
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.image import BrokerState, Endpoint
from millrace.metadata.service import Metadata
from millrace.metadata.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The metadata that a start has loaded, the store that it came from, and how both know this broker's
    disks."""

    metadata: Metadata
    store: Store
    directory_ids: Sequence[str]
    """The ids of this broker's data directories, by which the cluster knows its disks."""


async def start_metadata(ground: Ground, storage: Storage, found_cluster_id: str | None) -> Knowledge:
    """Open the store, load the image, and check that the data directories belong to this cluster."""
    surroundings, config = ground.surroundings, ground.config
    store = surroundings.open_store(config.now)
    metadata = Metadata(store, policy=config.policy, ids=surroundings.ids, chance=surroundings.chance)
    await metadata.start(ground.background, found_cluster_id=found_cluster_id)
    directory_ids = storage.directories.ensure_identity(
        node_id=config.now.node_id, cluster_id=metadata.image.cluster_id
    )
    return Knowledge(metadata, store, directory_ids)


class Neighbours:
    """The parts through which a broker of a cluster deals with the others. Constructing it starts nothing."""

    def __init__(self, ground: Ground, metadata: Metadata, storage: Storage) -> None:
        config, failures = ground.config, ground.background.failures
        self.replication = Replication(
            metadata,
            storage.partitions,
            node_id=config.now.node_id,
            settings=part_settings.replication_settings(config.now),
            background=ground.background,
            chance=ground.surroundings.chance,
        )
        peers = self.replication.peers
        self._questions = Tasks(failures)
        self.transactions = RemoteTransactions(
            metadata, peers, node_id=config.now.node_id, start_task=self._questions.starter("ask-peer")
        )
        self.share_state = RemoteState(peers, self._questions.starter("ask-peer-for-share-state"))
        self.failovers = Failovers(lambda: metadata.image, lambda: peers.is_probing, failures)
        config.subscribe(self._reconfigure)
        storage.directories.tell_of_damage(self.replication.mender.damage_found)

    def _reconfigure(self, _before: BrokerConfig, config: BrokerConfig) -> None:
        try:
            settings = part_settings.replication_settings(config)
        except InvalidConfig as error:
            # Of what is set while brokers run, not everything can be checked against all else.
            log.error("other brokers are reached and followed as before: %s", error)
            return
        self.replication.reconfigure(settings)

    def start(self) -> None:
        """Dial the others, once this broker can be reached itself: they take a closed port for a dead
        broker."""
        self.replication.start()

    def stop(self) -> None:
        self.replication.stop()
        self._questions.cancel()


def describe_broker(ground: Ground, directory_ids: Sequence[str]) -> BrokerState:
    """This run of the broker, as the metadata is to know it."""
    config, surroundings = ground.config.now, ground.surroundings
    advertised = config.advertised_listeners
    broker = BrokerState(
        node_id=config.node_id,
        incarnation=surroundings.ids.topic_id().hex(),
        rack=part_settings.rack(config),
        # The advertised address where there is one, else the bound one.
        endpoints=tuple(
            Endpoint(
                listener.name,
                *advertised.get(listener.name, (listener.host, listener.port)),
                listener.security_protocol,
            )
            for listener in config.listeners
        ),
        directory_ids=tuple(directory_ids),
    )
    if not config.is_clustered:
        return broker
    return replace(broker, rack=broker.rack or surroundings.host_name or None, boot_id=surroundings.boot_id)


def find_failed_disks(knowledge: Knowledge, broker: BrokerState, storage: Storage) -> FailedDisks:
    """Compare the image with the logs, when all are loaded that can be: those that are missing were on disks
    that cannot be used."""
    disks = FailedDisks(
        storage.directories, knowledge.metadata, node_id=broker.node_id, incarnation=broker.incarnation
    )
    disks.compare(knowledge.metadata.image)
    return disks


def build_place(
    ground: Ground,
    knowledge: Knowledge,
    broker: BrokerState,
    storage: Storage,
    replicas: LocalReplicas,
    disks: FailedDisks,
) -> Place:
    """The broker's place in the cluster, or what stands for it where there is only one broker."""
    config = ground.config
    if not config.now.is_clustered:
        return Alone(knowledge.metadata, broker, disks)
    membership = Membership(
        knowledge.metadata,
        knowledge.store,
        broker,
        settings=part_settings.membership_settings(config.now),
        is_clean=storage.directories.progress.is_clean,
        chance=ground.surroundings.chance,
        on_fence=replicas.fence,
        disks=disks,
    )
    config.subscribe(lambda _, new: membership.reconfigure(part_settings.membership_settings(new)))
    return membership
