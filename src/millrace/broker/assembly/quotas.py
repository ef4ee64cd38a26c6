"""Quotas and tenants: what clients are limited by is what the metadata's present image says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.cluster import Neighbours
from millrace.broker.assembly.ground import Ground
from millrace.broker.assembly.storage import Storage
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.live import LiveConfig
from millrace.broker.network.throttling import Throttling
from millrace.broker.replication.peers import Peers
from millrace.broker.tenant_storage import Sizes, TenantStorage
from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

LOG_DIRS_VERSION: Final = 4


def follow_quotas(config: LiveConfig, metadata: Metadata) -> Throttling:
    """What clients may take now, and from then on after every change."""
    throttling = Throttling(*part_settings.quota_windows(config.now))

    def renew() -> None:
        security = metadata.image.security
        throttling.replace(
            security.quotas,
            brokers=_sharers(config.now, metadata.image),
            tenants=security.tenants,
            roles=security.roles,
        )

    def image_changed(old: Image, new: Image) -> None:
        before, now = old.security, new.security
        if (
            now.quotas is not before.quotas
            or now.tenants is not before.tenants
            or (now.roles is not before.roles and len(now.tenants))
            or _sharers(config.now, old) != _sharers(config.now, new)
        ):
            renew()

    def settings_changed(before: BrokerConfig, now: BrokerConfig) -> None:
        if part_settings.quotas_are_for_cluster(before) != part_settings.quotas_are_for_cluster(now):
            renew()

    renew()
    _ = metadata.subscribe(image_changed)
    config.subscribe(settings_changed)
    return throttling


def tenant_storage(
    ground: Ground, metadata: Metadata, storage: Storage, neighbours: Neighbours | None
) -> TenantStorage:
    """What adds up the bytes of tenants; its owner has it run."""
    config = ground.config
    return TenantStorage(
        lambda: metadata.image,
        storage.partitions,
        node_id=config.now.node_id,
        interval_s=lambda: part_settings.tenant_storage_interval_s(config.now),
        ask=None if neighbours is None else partial(_sizes_at, neighbours.replication.peers),
    )


async def _sizes_at(peers: Peers, node_id: NodeId, partitions: Sequence[TopicPartition]) -> Sizes:
    """What another broker says that the logs of these partitions hold."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    request = DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=topic, partitions=found) for topic, found in by_topic.items()]
    )
    response = await peers.call(node_id, ApiKey.DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, request)
    return {
        TopicPartition(topic.name, log.partition_index): log.partition_size
        for directory in response.results
        for topic in directory.topics
        for log in topic.partitions
        if not log.is_future_key
    }


def _sharers(config: BrokerConfig, image: Image) -> int:
    """Among how many brokers each limit is divided."""
    return max(1, len(image.brokers)) if part_settings.quotas_are_for_cluster(config) else 1
