"""What the configuration means to each part. Only `config` and this module know settings by their names; the
parts get values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.broker.auditing.audit_file import AuditFileSettings
from millrace.broker.auditing.audit_topic import AuditTopicPlan
from millrace.broker.config.between_brokers import security_to_others
from millrace.broker.config.config import BrokerConfig
from millrace.broker.handlers.services import RequestSettings
from millrace.broker.network.admission import ConnectionLimits
from millrace.broker.network.server import ServerLimits
from millrace.broker.queues.dead_letters import DeadLetterSettings
from millrace.broker.queues.delayed.store import DelayedTopicPlan
from millrace.broker.replication.fetcher import FetcherSettings
from millrace.broker.replication.membership import MembershipSettings
from millrace.broker.replication.replication import ReplicationSettings
from millrace.broker.upkeep import RetentionPace
from millrace.broker.watching.http_security import HttpSecurity
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.commands import ConsumerSettings
from millrace.groups.service import OffsetsTopic
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.streams.commands import StreamsSettings
from millrace.log.cleaning.cleaner_policy import CleanerConfig
from millrace.log.directories.directory_settings import DirectorySettings
from millrace.log.directories.scrubber import ScrubConfig
from millrace.metadata.config_definitions import group_value, listener_value, topic_value
from millrace.metadata.config_definitions.listener_settings import names_for
from millrace.metadata.config_definitions.model import INT_MAX
from millrace.metadata.config_definitions.resolution import NOTHING_SET
from millrace.metadata.controller_task import ControllerSettings
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.session import SessionSettings
from millrace.queues.deduplication import ID_BYTES
from millrace.queues.settings import ShareSettings
from millrace.queues.state.commands import StateSettings
from millrace.queues.state.service import StateTopic
from millrace.security.acls.authorizer import parse_super_users
from millrace.security.acls.decisions import AccessSettings
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import Kind
from millrace.security.credentials.first_users import FirstUsers, InvalidFirstUsers, parse_first_users
from millrace.security.quotas.rates import Window
from millrace.security.tokens import TokenSettings
from millrace.transactions.commands import TransactionSettings
from millrace.transactions.service import TransactionTopic

if TYPE_CHECKING:
    from millrace.metadata.store.etcd_calls import EtcdSettings

log: Final = logging.getLogger(__name__)

_TAKES_DEAD_LETTERS: Final = "errors.deadletterqueue.group.enable"


def name_those_without_effect(config: BrokerConfig) -> None:
    """Say which of the chosen settings mean nothing here, so that nobody waits for what they do in Kafka."""
    if config.without_effect:
        names = ", ".join(config.without_effect)
        log.warning("settings of Kafka without effect here", extra={"settings": names})


# The process.


def log_level(config: BrokerConfig) -> str:
    return config.text("logging.level")


def log_style(config: BrokerConfig) -> str:
    return config.text("logging.format")


def shutdown_s_max(config: BrokerConfig) -> float:
    """How long the logs may take to be closed."""
    return config.integer("shutdown.timeout.ms") / 1000


def has_metrics_listener(config: BrokerConfig) -> bool:
    """Whether somebody asked for exactly this address."""
    return config.is_set("metrics.listener")


def http_security(config: BrokerConfig) -> HttpSecurity:
    return HttpSecurity(
        key_store=config.optional_text("metrics.ssl.keystore.location"),
        key_password=config.optional_text("metrics.ssl.key.password"),
        token=config.optional_text("metrics.auth.token"),
        token_file=config.optional_text("metrics.auth.token.file"),
        are_probes_open=config.boolean("metrics.auth.probes.open"),
    )


def has_node_id(config: BrokerConfig) -> bool:
    return config.is_set("node.id")


def rack(config: BrokerConfig) -> str | None:
    return config.optional_text("broker.rack")


# Permissions.


def access_settings(config: BrokerConfig) -> AccessSettings | None:
    """None where everybody may do everything."""
    if not config.text("authorizer.class.name"):
        return None
    return AccessSettings(
        super_users=parse_super_users(config.text("super.users")),
        is_open_without_acl=config.boolean("allow.everyone.if.no.acl.found"),
    )


# Logs.


def open_files_max(config: BrokerConfig) -> int | None:
    """The bound on open log files, if one is set."""
    limit = config.integer("log.open.files.max")
    return limit if limit > 0 else None


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


def move_bytes_per_second(config: BrokerConfig) -> float:
    return config.number("replica.alter.log.dirs.io.max.bytes.per.second")


def retention_pace(config: BrokerConfig) -> RetentionPace:
    return RetentionPace(
        first_delay_ms=config.integer("log.initial.task.delay.ms"),
        interval_ms=config.integer("log.retention.check.interval.ms"),
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


# The cluster.


def etcd_settings(config: BrokerConfig) -> EtcdSettings:
    # Imported only here: one broker alone needs neither the packages nor the memory that they take.
    from millrace.metadata.store.etcd_calls import EtcdSettings

    return EtcdSettings(
        endpoints=config.texts("etcd.endpoints"),
        prefix=config.text("etcd.prefix"),
        username=config.optional_text("etcd.username"),
        password=config.optional_text("etcd.password"),
        certificate_authority=_file_of(config, "etcd.tls.ca.file"),
        certificate=_file_of(config, "etcd.tls.cert.file"),
        private_key=_file_of(config, "etcd.tls.key.file"),
        request_timeout_ms=config.integer("etcd.request.timeout.ms"),
    )


def _file_of(config: BrokerConfig, name: str) -> bytes | None:
    path = config.optional_text(name)
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(name, path, f"cannot be read: {error.strerror}") from error


def replication_settings(config: BrokerConfig) -> ReplicationSettings:
    return ReplicationSettings(
        listener=config.listener_between_brokers,
        security=security_to_others(config),
        lag_ms_max=config.integer("replica.lag.time.max.ms"),
        fetcher=FetcherSettings(
            wait_ms_max=config.integer("replica.fetch.wait.max.ms"),
            bytes_min=config.integer("replica.fetch.min.bytes"),
            partition_bytes_max=config.integer("replica.fetch.max.bytes"),
            response_bytes_max=config.integer("replica.fetch.response.max.bytes"),
            timeout_ms=config.integer("replica.socket.timeout.ms"),
        ),
        leader_bytes_per_second=config.integer("leader.replication.throttled.rate"),
        follower_bytes_per_second=config.integer("follower.replication.throttled.rate"),
        new_broker_bytes_per_second=config.integer("auto.rebalance.throttled.rate"),
    )


def membership_settings(config: BrokerConfig) -> MembershipSettings:
    return MembershipSettings(
        session=SessionSettings(
            timeout_ms=config.integer("broker.session.timeout.ms"),
            heartbeat_ms=config.integer("broker.heartbeat.interval.ms"),
        ),
        controller=ControllerSettings(
            is_rebalance_enabled=config.boolean("auto.leader.rebalance.enable"),
            rebalance_interval_ms=config.integer("leader.imbalance.check.interval.seconds") * 1000,
            imbalance_percent=config.integer("leader.imbalance.per.broker.percentage"),
            is_filling_enabled=config.boolean("auto.rebalance.new.brokers"),
            filling_partitions_max=config.integer("auto.rebalance.partitions.max"),
        ),
        hands_over=config.boolean("controlled.shutdown.enable"),
    )


# Security.


def first_users(config: BrokerConfig) -> FirstUsers:
    """Those of a cluster that has none yet; nobody without such a file."""
    name = "metadata.bootstrap.credentials.file"
    content = _file_of(config, name)
    if content is None:
        return {}
    try:
        return parse_first_users(content.decode())
    except (InvalidFirstUsers, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, InvalidFirstUsers) else "is no text in UTF-8"
        raise InvalidConfig(name, config.optional_text(name), why) from None


def token_settings(config: BrokerConfig) -> TokenSettings:
    secret_key = config.optional_text("delegation.token.secret.key")
    return TokenSettings(
        secret_key=None if secret_key is None else secret_key.encode(),
        lifetime_ms_max=config.integer("delegation.token.max.lifetime.ms"),
        renewal_ms=config.integer("delegation.token.expiry.time.ms"),
    )


def token_sweep_interval_ms(config: BrokerConfig) -> int:
    return config.integer("delegation.token.expiry.check.interval.ms")


# Requests.


def request_settings(config: BrokerConfig) -> RequestSettings:
    return RequestSettings(
        fetch_bytes_max=config.integer("fetch.max.bytes"),
        paces_fetches=config.boolean("fetch.pacing.enable"),
        creates_topics=config.boolean("auto.create.topics.enable"),
        described_partitions_max=config.integer("max.request.partition.size.limit"),
        reads_from_followers=config.optional_text("replica.selector.class") is not None,
        listener_between_brokers=config.listener_between_brokers or config.listeners[0].name,
        dedup_ids_max=config.integer("dedup.memory.bytes") // ID_BYTES,
    )


def fetch_sessions_max(config: BrokerConfig) -> int:
    return config.integer("max.incremental.fetch.session.cache.slots")


def idle_poll_s(config: BrokerConfig) -> float:
    """How long the loop looks for the next request before it sleeps."""
    return config.integer("socket.idle.poll.us") / 1e6


def server_limits(config: BrokerConfig) -> ServerLimits:
    return ServerLimits(
        frame_bytes_max=config.integer("socket.request.max.bytes"),
        request_memory_bytes=config.integer("queued.max.request.bytes"),
        connections=connection_limits(config),
        idle_timeout_s=config.integer("connections.max.idle.ms") / 1000,
        frame_timeout_s=config.integer("socket.frame.timeout.ms") / 1000,
    )


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    names = [listener.name for listener in config.listeners]
    between_brokers = config.listener_between_brokers or names[0]
    rate = config.integer("max.connection.creation.rate")
    return ConnectionLimits(
        connections_max=config.integer("max.connections"),
        per_ip_max=config.integer("max.connections.per.ip"),
        per_ip_overrides=config.connection_limits_by_ip,
        rate=None if rate == INT_MAX else rate,
        listener_max=_own_of_listeners(config, "max.connections"),
        listener_rates=_own_of_listeners(config, "max.connection.creation.rate"),
        protected_listener=between_brokers if len(names) > 1 else None,
        window=quota_windows(config)[0],
    )


def _own_of_listeners(config: BrokerConfig, name: str) -> dict[str, int]:
    """What single listeners have of a setting that the broker has as well, beside that."""
    found: dict[str, int] = {}
    for listener in config.listeners:
        own = names_for(name, listener.name)[0]
        if config.is_set(own):
            value = listener_value(name, config.layers, listener.name)
            assert isinstance(value, int), value
            found[listener.name] = value
    return found


def quota_windows(config: BrokerConfig) -> tuple[Window, Window]:
    """Over which time rates are measured, and how much of a rate of changes can be saved up."""
    return (
        Window(config.integer("quota.window.num"), config.integer("quota.window.size.seconds") * 1000),
        Window(
            config.integer("controller.quota.window.num"),
            config.integer("controller.quota.window.size.seconds") * 1000,
        ),
    )


def tenant_storage_interval_s(config: BrokerConfig) -> float:
    return config.integer("tenant.storage.check.interval.ms") / 1000


def quotas_are_for_cluster(config: BrokerConfig) -> bool:
    return config.text("quota.scope") == "cluster"


# Coordinators.


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


def share_group_settings(
    config: BrokerConfig, configs: Mapping[str, str] = NOTHING_SET
) -> ShareGroupSettings:
    """What counts for the membership of a share group, given what is set for the group itself."""
    return ShareGroupSettings(
        session_timeout_ms=_group_integer("share.session.timeout.ms", configs, config),
        heartbeat_interval_ms=_group_integer("share.heartbeat.interval.ms", configs, config),
        assignment_interval_ms=_group_integer("share.assignment.interval.ms", configs, config),
        size_max=config.integer("group.share.max.size"),
        initialize_retry_ms=config.integer("group.share.initialize.retry.interval.ms"),
        is_paused=group_value("share.delivery.pause", configs, config.layers) is True,
    )


def streams_settings(config: BrokerConfig, configs: Mapping[str, str] = NOTHING_SET) -> StreamsSettings:
    """What counts for a streams group, given what is set for the group itself."""
    return StreamsSettings(
        session_timeout_ms=_group_integer("streams.session.timeout.ms", configs, config),
        heartbeat_interval_ms=_group_integer("streams.heartbeat.interval.ms", configs, config),
        size_max=config.integer("group.streams.max.size"),
        standby_count=_group_integer("streams.num.standby.replicas", configs, config),
        initial_rebalance_delay_ms=_group_integer("streams.initial.rebalance.delay.ms", configs, config),
        assignment_interval_ms=_group_integer("streams.assignment.interval.ms", configs, config),
    )


def share_settings(config: BrokerConfig, configs: Mapping[str, str] = NOTHING_SET) -> ShareSettings:
    """What counts for the records of a share group, given what is set for the group itself. Not cheap: keep
    the result."""

    def value(name: str) -> Any:
        return group_value(name, configs, config.layers)

    return ShareSettings(
        lock_duration_ms=value("share.record.lock.duration.ms"),
        delivery_count_limit=value("share.delivery.count.limit"),
        record_locks_max=value("share.partition.max.record.locks"),
        member_record_locks_max=value("share.member.max.record.locks"),
        auto_offset_reset=value("share.auto.offset.reset"),
        reads_committed=value("share.isolation.level") == "read_committed",
        may_renew=value("share.renew.acknowledge.enable"),
        retry_backoff_ms=value("share.retry.backoff.ms"),
        retry_backoff_max_ms=value("share.retry.backoff.max.ms"),
        counts_failures_only=value("share.count.failures.only"),
        is_ordered_by_key=value("share.order") == "key",
        record_max_age_ms=value("share.record.max.age.ms"),
        is_paused=value("share.delivery.pause"),
        dead_letter_topic=value("errors.deadletterqueue.topic.name"),
        copies_dead_letters=value("errors.deadletterqueue.copy.record.enable"),
        breaker_ratio=float(value("share.dlq.breaker.ratio")),
        breaker_window_ms=value("share.dlq.breaker.window.ms"),
    )


def queue_priority(config: BrokerConfig, configs: Mapping[str, str] = NOTHING_SET) -> int:
    """How urgent a topic's records are to share consumers, given what is set for the topic itself."""
    value = topic_value("queue.priority", configs, config.layers)
    assert isinstance(value, int), value
    return value


def dead_letter_settings(config: BrokerConfig) -> DeadLetterSettings:
    return DeadLetterSettings(
        topic_prefix=config.text("errors.deadletterqueue.topic.name.prefix"),
        creates_topics=config.boolean("errors.deadletterqueue.auto.create.topics.enable"),
        new_topic_configs={_TAKES_DEAD_LETTERS: "true"},
    )


def takes_dead_letters(config: BrokerConfig, configs: Mapping[str, str] = NOTHING_SET) -> bool:
    """Whether share groups may write dead letters to a topic, given what is set for the topic itself."""
    return topic_value(_TAKES_DEAD_LETTERS, configs, config.layers) is True


def share_sessions_max(config: BrokerConfig) -> int:
    return config.integer("group.share.max.share.sessions")


def _group_integer(name: str, configs: Mapping[str, str], config: BrokerConfig) -> int:
    value = group_value(name, configs, config.layers)
    assert isinstance(value, int), (name, value)
    return value


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


def share_state_settings(config: BrokerConfig) -> StateSettings:
    return StateSettings(
        updates_per_snapshot=config.integer("share.coordinator.snapshot.update.records.per.snapshot"),
        write_timeout_ms=config.integer("share.coordinator.write.timeout.ms"),
        prune_interval_ms=config.integer("share.coordinator.state.topic.prune.interval.ms"),
        rewrite_interval_ms=config.integer("share.coordinator.cold.partition.snapshot.interval.ms"),
    )


def share_state_topic(config: BrokerConfig) -> StateTopic:
    return StateTopic(
        partition_count=config.integer("share.coordinator.state.topic.num.partitions"),
        replication_factor=config.integer("share.coordinator.state.topic.replication.factor"),
        min_insync_replicas=config.integer("share.coordinator.state.topic.min.isr"),
        segment_bytes=config.integer("share.coordinator.state.topic.segment.bytes"),
    )


# Delayed messages.


def delayed_topic(config: BrokerConfig) -> DelayedTopicPlan:
    return DelayedTopicPlan(
        partition_count=config.integer("delayed.messages.topic.num.partitions"),
        replication_factor=config.integer("delayed.messages.topic.replication.factor"),
        min_insync_replicas=config.integer("delayed.messages.topic.min.isr"),
        segment_bytes=config.integer("delayed.messages.topic.segment.bytes"),
    )


def delayed_rate_max(config: BrokerConfig) -> int:
    return config.integer("delayed.delivery.max.rate")


# The audit.


def is_audited(config: BrokerConfig) -> bool:
    return config.boolean("audit.enable")


def audit_policy(config: BrokerConfig) -> AuditPolicy:
    principals = config.text("audit.excluded.principals").split(";")
    return AuditPolicy(
        kinds=frozenset(Kind(name) for name in config.texts("audit.event.types")),
        excluded_principals=frozenset(one.strip() for one in principals if one.strip()),
        excluded_topics=frozenset(config.texts("audit.excluded.topics")),
        is_closed=config.text("audit.failure") == "closed",
    )


def audit_events_max(config: BrokerConfig) -> int:
    return config.integer("audit.queue.max.events")


def audit_topic(config: BrokerConfig) -> AuditTopicPlan | None:
    """How `__audit` is created; None if the audit does not go there."""
    if not config.boolean("audit.topic.enable"):
        return None
    return AuditTopicPlan(
        replication_factor=config.integer("audit.topic.replication.factor"),
        retention_ms=config.integer("audit.topic.retention.ms"),
    )


def audit_file(config: BrokerConfig) -> AuditFileSettings | None:
    """Where the audit's lines go; None if nobody wants any."""
    path = config.text("audit.log.file")
    if not path:
        return None
    return AuditFileSettings(
        path=path,
        bytes_max=config.integer("audit.log.file.bytes.max"),
        files_max=config.integer("audit.log.file.count"),
    )
