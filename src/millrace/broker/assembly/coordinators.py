"""The coordinators of groups, of transactions and of share state, and what they need of each other."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.cluster import Neighbours
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.queues import start_dead_letters, start_shares
from millrace.broker.internal_appends import InternalAppends
from millrace.broker.queues.dead_letters import DeadLetters
from millrace.broker.queues.persister import Persister, StatePersister
from millrace.broker.queues.share_partitions import SharePartitions
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.broker.transactions.markers import Markers
from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.service import Groups, Kinds
from millrace.groups.share.share_groups import ShareGroups
from millrace.groups.streams.streams_groups import StreamsGroups
from millrace.metadata.service import Metadata
from millrace.queues.state.service import ShareState
from millrace.replica.partitions import Partitions
from millrace.transactions.service import Transactions


@dataclass(frozen=True, slots=True)
class Coordinators:
    """The coordinators of this broker with the parts that only they and handlers need."""

    groups: Groups
    transactions: Transactions
    markers: Markers
    producer_ids: ProducerIds
    appends: InternalAppends
    share_state: ShareState
    persister: Persister
    """Where this broker's share partitions keep their state, whoever coordinates it."""
    shares: SharePartitions
    dead_letters: DeadLetters

    def stop(self) -> None:
        """Let nobody wait any longer: members that wait for others to join would keep their connections
        busy."""
        self.groups.stop()
        self.transactions.stop()
        self.share_state.stop()


def start_coordinators(
    ground: Ground,
    metadata: Metadata,
    partitions: Partitions,
    replicas: LocalReplicas,
    neighbours: Neighbours | None,
) -> Coordinators:
    """Load what this broker coordinates, and follow its partitions from now on."""
    groups = _build_groups(ground, metadata, partitions)
    groups.start(ground.background)
    producer_ids = ProducerIds(metadata)
    others = None if neighbours is None else neighbours.transactions
    markers = Markers(metadata, partitions, groups, ground.surroundings.clock, others)
    transactions = Transactions(
        metadata,
        partitions,
        clock=ground.surroundings.clock,
        settings=part_settings.transaction_settings(ground.config.now),
        topic=part_settings.transaction_topic(ground.config.now),
        next_producer_id=producer_ids.next,
        write_marker=markers.write_for_coordinator,
    )
    transactions.start(ground.background)
    replicas.subscribe(groups.runtime.leadership_changed)
    share_state = _build_share_state(ground, metadata, partitions)
    share_state.start(ground.background)
    persister = StatePersister(
        share_state,
        None if neighbours is None else neighbours.share_state,
        node_id=ground.config.now.node_id,
        start_task=ground.background.starter("write-share-state"),
    )
    replicas.subscribe(transactions.runtime.leadership_changed)
    appends = InternalAppends(
        metadata,
        partitions,
        clock=ground.surroundings.clock,
        node_id=ground.config.now.node_id,
        peers=None if neighbours is None else neighbours.replication.peers,
    )
    replicas.subscribe(share_state.runtime.leadership_changed)
    shares = start_shares(ground, metadata, replicas, persister)
    dead_letters = start_dead_letters(ground, metadata, partitions, appends, shares, producer_ids)
    return Coordinators(
        groups,
        transactions,
        markers,
        producer_ids,
        appends,
        share_state,
        persister,
        shares,
        dead_letters,
    )


def _build_share_state(ground: Ground, metadata: Metadata, partitions: Partitions) -> ShareState:
    return ShareState(
        metadata,
        partitions,
        clock=ground.surroundings.clock,
        settings=part_settings.share_state_settings(ground.config.now),
        topic=part_settings.share_state_topic(ground.config.now),
    )


def _build_shares(ground: Ground, metadata: Metadata) -> ShareGroups:
    shares = ShareGroups(
        metadata, lambda configs: part_settings.share_group_settings(ground.config.now, configs)
    )
    ground.config.subscribe(lambda _before, _config: shares.settings_changed())
    return shares


def _build_streams(ground: Ground, metadata: Metadata) -> StreamsGroups:
    streams = StreamsGroups(
        metadata, lambda configs: part_settings.streams_settings(ground.config.now, configs)
    )
    ground.config.subscribe(lambda _before, _config: streams.settings_changed())
    return streams


def _build_groups(ground: Ground, metadata: Metadata, partitions: Partitions) -> Groups:
    config, surroundings = ground.config.now, ground.surroundings
    return Groups(
        metadata,
        partitions,
        clock=surroundings.clock,
        chance=surroundings.chance,
        settings=part_settings.group_settings(config),
        kinds=Kinds(
            Consumers(metadata, part_settings.consumer_settings(config)),
            (_build_shares(ground, metadata), _build_streams(ground, metadata)),
        ),
        offsets_topic=part_settings.offsets_topic(config),
        codec=ground.release.group_records,
    )
