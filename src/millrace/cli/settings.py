"""Settings of topics, groups and brokers as a running broker reports and accepts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from millrace.cli import clients
from millrace.cli.options import BrokerAddress

_SOURCES: Final = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "DYNAMIC_TOPIC",
    ConfigSource.DYNAMIC_BROKER_CONFIG.value: "DYNAMIC_BROKER",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "DYNAMIC_DEFAULT_BROKER",
    ConfigSource.STATIC_BROKER_CONFIG.value: "STATIC_BROKER",
    ConfigSource.DEFAULT_CONFIG.value: "DEFAULT",
    ConfigSource.GROUP_CONFIG.value: "DYNAMIC_GROUP",
}
DEFAULT_SOURCE: Final = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as a running broker reports it."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, name)


def group_resource(name: str) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.GROUP, name)


def broker_resource(broker_id: int) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.BROKER, str(broker_id))


def describe(admin: AdminClient, address: BrokerAddress, resource: ConfigResource) -> list[Setting]:
    """All settings of one topic, group or broker, sorted by name."""
    future = admin.describe_configs([resource])[resource]
    entries: dict[str, ConfigEntry] = clients.answer_of(future, address, subject=str(resource.name))
    return [
        Setting(
            name=name,
            value=entry.value,
            source=_SOURCES.get(ConfigSource(entry.source).value, "UNKNOWN"),
            read_only=bool(entry.is_read_only),
            sensitive=bool(entry.is_sensitive),
        )
        for name, entry in sorted(entries.items())
    ]


def alter(
    admin: AdminClient,
    address: BrokerAddress,
    resource: ConfigResource,
    changes: dict[str, str],
    deleted: tuple[str, ...],
) -> None:
    """Set and delete settings; all others stay as they are."""
    for name, value in changes.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    for name in deleted:
        resource.add_incremental_config(
            ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        )
    future = admin.incremental_alter_configs([resource])[resource]
    clients.answer_of(future, address, subject=str(resource.name))
