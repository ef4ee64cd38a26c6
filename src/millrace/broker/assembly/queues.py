"""The share partitions of this broker, and what they follow."""

from __future__ import annotations

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.config.config import BrokerConfig
from millrace.broker.internal_appends import InternalAppends
from millrace.broker.queues.dead_letters import DeadLetters
from millrace.broker.queues.persister import Persister
from millrace.broker.queues.share_partitions import SharePartitions
from millrace.broker.queues.share_sessions import ShareSessions
from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.core.ids import TopicId
from millrace.metadata.service import Metadata
from millrace.queues.settings import ShareSettings
from millrace.replica.partitions import Partitions


def start_dead_letters(
    ground: Ground,
    metadata: Metadata,
    partitions: Partitions,
    appends: InternalAppends,
    shares: SharePartitions,
    producer_ids: ProducerIds,
) -> DeadLetters:
    """Write what share partitions give up from now on."""
    config = ground.config
    dead_letters = DeadLetters(
        appends,
        metadata,
        partitions,
        clock=ground.surroundings.clock,
        start_task=ground.background.starter("write-dead-letters"),
        settings=lambda: part_settings.dead_letter_settings(config.now),
        is_enabled=lambda configs: part_settings.takes_dead_letters(config.now, configs),
        next_producer_id=producer_ids.next,
    )
    _ = metadata.subscribe(dead_letters.metadata_changed)
    shares.write_dead_letters = dead_letters.write
    return dead_letters


def start_shares(
    ground: Ground, metadata: Metadata, replicas: LocalReplicas, persister: Persister
) -> SharePartitions:
    """Serve share partitions, and follow leaders, topics and settings from now on."""
    config, surroundings = ground.config, ground.surroundings

    def settings_of(group_id: str) -> ShareSettings:
        return part_settings.share_settings(config.now, metadata.image.group_configs.get(group_id, {}))

    def priority_of(topic_id: TopicId) -> int | None:
        topic = metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else part_settings.queue_priority(config.now, topic.configs)

    shares = SharePartitions(
        ShareSessions(part_settings.share_sessions_max(config.now)),
        persister,
        clock=surroundings.clock,
        chance=surroundings.chance,
        start_task=ground.background.starter("load-share-partition"),
        settings_of=settings_of,
        priority_of=priority_of,
    )

    def reconfigure(_before: BrokerConfig, config: BrokerConfig) -> None:
        shares.sessions.sessions_max = part_settings.share_sessions_max(config)
        shares.settings_changed()

    config.subscribe(reconfigure)
    replicas.subscribe(shares.leadership_changed)
    _ = metadata.subscribe(shares.metadata_changed)
    return shares
