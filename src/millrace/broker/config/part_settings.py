"""What the configuration means to each part: the parts themselves know none of its names."""

from __future__ import annotations

import logging
from typing import Final

from millrace.broker.config.config import BrokerConfig
from millrace.broker.network.server import ServerLimits
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.commands import ConsumerSettings
from millrace.groups.service import OffsetsTopic
from millrace.log.cleaning.cleaner_policy import CleanerConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.scrubber import ScrubConfig
from millrace.transactions.commands import TransactionSettings
from millrace.transactions.service import TransactionTopic

log: Final = logging.getLogger(__name__)


def name_those_without_effect(config: BrokerConfig) -> None:
    """Say which of the chosen settings mean nothing here: nobody is to wait for what they do in Kafka."""
    if config.without_effect:
        names = ", ".join(config.without_effect)
        log.warning("settings of Kafka without effect here", extra={"settings": names})


def directory_settings(config: BrokerConfig) -> DirectorySettings:
    cached_bytes = config.integer("replica.follower.cached.bytes")
    return DirectorySettings(
        checkpoint_interval_ms=config.integer("log.flush.offset.checkpoint.interval.ms"),
        high_watermark_interval_ms=config.integer("replica.high.watermark.checkpoint.interval.ms"),
        recovery_threads=config.integer("num.recovery.threads.per.data.dir"),
        unread_cache_bytes=None if cached_bytes < 0 else cached_bytes,
        # A sole directory of a sole broker has nobody to hand over to: it waits until it is writable again.
        gives_up_unwritable=config.is_clustered or len(config.log_dirs) > 1,
    )


def server_limits(config: BrokerConfig) -> ServerLimits:
    return ServerLimits(
        frame_bytes_max=config.integer("socket.request.max.bytes"),
        request_memory_bytes=config.integer("queued.max.request.bytes"),
        connections_max=config.integer("max.connections"),
        connections_per_ip_max=config.integer("max.connections.per.ip"),
        connections_per_ip_overrides=config.connection_limits_by_ip,
        idle_timeout_s=config.integer("connections.max.idle.ms") / 1000,
        frame_timeout_s=config.integer("socket.frame.timeout.ms") / 1000,
    )


def group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_min_ms=config.integer("group.min.session.timeout.ms"),
        session_timeout_max_ms=config.integer("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
        size_max=config.integer("group.max.size"),
        offset_metadata_max=config.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=config.integer("offsets.retention.minutes") * 60_000,
        offsets_retention_check_ms=config.integer("offsets.retention.check.interval.ms"),
    )


def consumer_settings(config: BrokerConfig) -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=config.integer("group.consumer.session.timeout.ms"),
        heartbeat_interval_ms=config.integer("group.consumer.heartbeat.interval.ms"),
        size_max=config.integer("group.consumer.max.size"),
        assignors=config.texts("group.consumer.assignors"),
        migration_policy=config.text("group.consumer.migration.policy"),
        assignment_interval_ms=config.integer("group.consumer.assignment.interval.ms"),
    )


def offsets_topic(config: BrokerConfig) -> OffsetsTopic:
    return OffsetsTopic(
        partition_count=config.integer("offsets.topic.num.partitions"),
        replication_factor=config.integer("offsets.topic.replication.factor"),
        segment_bytes=config.integer("offsets.topic.segment.bytes"),
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    return TransactionSettings(
        timeout_ms_max=config.integer("transaction.max.timeout.ms"),
        id_expiration_ms=config.integer("transactional.id.expiration.ms"),
        id_expiration_check_ms=config.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


def transaction_topic(config: BrokerConfig) -> TransactionTopic:
    return TransactionTopic(
        partition_count=config.integer("transaction.state.log.num.partitions"),
        replication_factor=config.integer("transaction.state.log.replication.factor"),
        min_insync_replicas=config.integer("transaction.state.log.min.isr"),
        segment_bytes=config.integer("transaction.state.log.segment.bytes"),
    )


def cleaner_config(config: BrokerConfig) -> CleanerConfig:
    return CleanerConfig(
        is_enabled=config.boolean("log.cleaner.enable"),
        backoff_ms=config.integer("log.cleaner.backoff.ms"),
        dedupe_buffer_bytes=config.integer("log.cleaner.dedupe.buffer.size"),
        io_buffer_bytes=config.integer("log.cleaner.io.buffer.size"),
        io_bytes_per_second=config.number("log.cleaner.io.max.bytes.per.second"),
    )


def scrub_config(config: BrokerConfig) -> ScrubConfig:
    return ScrubConfig(
        bytes_per_second=config.integer("log.scrub.io.max.bytes.per.second"),
        interval_ms=config.integer("log.scrub.interval.ms"),
    )
