"""The broker-level settings of quotas: how rates are measured, for whom a limit is meant, and how fast
connections may come."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    INT_MAX,
    ConfigType,
    Importance,
    OneOf,
    Range,
    Setting,
    UpdateMode,
)

_INT: Final = ConfigType.INT
_LOW: Final = Importance.LOW
_DYNAMIC: Final = UpdateMode.CLUSTER_WIDE

QUOTA_SETTINGS: Final = (
    Setting(
        name="quota.window.num",
        type=_INT,
        default=11,
        doc="Over how many samples the rates of clients are measured, the present one included. More of them "
        "allow longer bursts.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="quota.window.size.seconds",
        type=_INT,
        default=1,
        doc="How long each of these samples is.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="controller.quota.window.num",
        type=_INT,
        default=11,
        doc="How many samples of a controller_mutation_rate a client can save up for a burst.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="controller.quota.window.size.seconds",
        type=_INT,
        default=1,
        doc="How long each of these samples is.",
        valid=Range(1),
        importance=_LOW,
    ),
    Setting(
        name="quota.scope",
        type=ConfigType.STRING,
        default="broker",
        doc="Whether the limits of users, client ids and tenants are for each broker, as in Kafka, or for "
        "the whole cluster. For the cluster, each broker enforces an equal part of a limit: it is divided by "
        "the number of brokers that are alive. A client that uses only some of the brokers then gets only "
        "their parts. Limits of addresses are always for each broker.",
        valid=OneOf(("broker", "cluster")),
        update=_DYNAMIC,
    ),
    Setting(
        name="tenant.storage.check.interval.ms",
        type=ConfigType.LONG,
        default=5_000,
        doc="How often a broker adds up what tenants store, where they have a limit of that. A tenant that "
        "writes more than it may store is refused from the next time on.",
        valid=Range(100),
        importance=_LOW,
        update=_DYNAMIC,
    ),
)

CONNECTION_SETTINGS: Final = (
    Setting(
        name="max.connection.creation.rate",
        type=_INT,
        default=INT_MAX,
        doc="How many connections a second the broker takes. Those that come faster wait before anything is "
        "read from them. For one listener alone as listener.name.<listener>.max.connection.creation.rate. "
        "The listener between brokers does not wait because of others.",
        valid=Range(0),
        update=_DYNAMIC,
    ),
    Setting(
        name="max.connections",
        type=_INT,
        default=INT_MAX,
        doc="How many connections the broker holds at once. Further ones wait, unread, until others end. On "
        "the listener between brokers they do not: the connection of another listener that was silent for "
        "longest is closed for each. For one listener alone as listener.name.<listener>.max.connections.",
        valid=Range(0),
        update=_DYNAMIC,
    ),
)
"""A listener may have these for itself, beside those of the broker."""
