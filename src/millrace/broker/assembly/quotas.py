"""Quotas and tenants: what clients are limited by is what the metadata's present image says."""

from __future__ import annotations

from millrace.broker.assembly import part_settings
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.live import LiveConfig
from millrace.broker.network.throttling import Throttling
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata


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


def _sharers(config: BrokerConfig, image: Image) -> int:
    """Among how many brokers each limit is divided."""
    return max(1, len(image.brokers)) if part_settings.quotas_are_for_cluster(config) else 1
