"""Permissions: the rules that handlers decide by are those of the metadata's present image and settings."""

from __future__ import annotations

from millrace.broker.assembly import part_settings
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.live import LiveConfig
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.security.acls.decisions import Access


def follow_permissions(config: LiveConfig, metadata: Metadata) -> Access:
    """What everybody may do now, and from then on after every change.

    Another authorizer takes the place of the one before in the same step in which the image or the setting
    changes, so that no request is judged by rules that have passed."""
    access = Access()

    def renew() -> None:
        settings = part_settings.access_settings(config.now)
        access.replace(
            None
            if settings is None
            else metadata.image.security.authorizer(
                super_users=settings.super_users, is_open_without_acl=settings.is_open_without_acl
            )
        )

    def image_changed(old: Image, new: Image) -> None:
        if new.security.access_revision != old.security.access_revision and access.authorizer is not None:
            renew()

    def settings_changed(before: BrokerConfig, now: BrokerConfig) -> None:
        if part_settings.access_settings(before) != part_settings.access_settings(now):
            renew()

    renew()
    _ = metadata.subscribe(image_changed)
    config.subscribe(settings_changed)
    return access
